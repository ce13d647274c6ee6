"""A trial stands on a front only with figures that may be used."""

from __future__ import annotations

import pytest

from tests.db.factories import make_measurement, make_trial
from tuner.trial import OUTCOMES, Trial, TrialState


def test_outcomes_are_the_states_that_end_a_trial() -> None:
    """Every state but running and interrupted counts against the budget."""
    assert set(TrialState) - {TrialState.RUNNING, TrialState.INTERRUPTED} == OUTCOMES


def test_a_complete_trial_may_stand_on_a_front() -> None:
    """A complete trial with a valid measurement and energy has what a front shows."""
    assert make_trial().has_front_figures


@pytest.mark.parametrize("state", sorted(set(TrialState) - {TrialState.COMPLETE}))
def test_no_other_state_may_stand_on_a_front(state: TrialState) -> None:
    """A trial in any other state may not, even with a complete measurement."""
    assert not make_trial(state=state).has_front_figures


@pytest.mark.parametrize(
    "trial",
    [
        make_trial(measurement=None),
        make_trial(measurement=make_measurement(tok_per_j=None)),
        make_trial(measurement=make_measurement(reasons=("sampling_gap",))),
        make_trial(measurement=make_measurement(cut_by="dominated")),
    ],
    ids=["no measurement", "no energy", "a reason against it", "a window that ended early"],
)
def test_a_complete_trial_without_usable_figures_may_not(trial: Trial) -> None:
    """A trial called complete whose measurement is missing, without energy, invalid or cut short may not."""
    assert not trial.has_front_figures
