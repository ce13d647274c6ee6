"""What two nights' measurements were made on and under, and in what that differs: the likely causes of drift. Pure.

What must agree for figures to be compared comes first (device, driver, engine, model, workload), then what moves from
window to window: those are compared at points that both nights measured. Knows nothing of which points moved.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from api.drift_schemas import ProvenanceChangeOut
from probes.device import Conditions
from tuner.measurement import Measurement
from tuner.request import TuneRequest

#: Differences of the medians below which nothing is said: windows of one night scatter by as much.
MIN_TEMPERATURE_C = 5.0
MIN_EVENT_SHARE = 0.1
MIN_CLOCK_SHARE = 0.02

Changes = list[ProvenanceChangeOut]
Figure = Callable[[Conditions], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What one night's measurements were made on and under."""

    request: TuneRequest
    #: All of them.
    measurements: Sequence[Measurement]
    #: Of points that both nights measured, in the same order on both.
    shared: Sequence[Measurement]
    #: Hashes of everything but the settings that they depend on.
    fingerprints: frozenset[str]


def changes_between(before: Provenance, after: Provenance) -> Changes:
    """Return in what two nights differ, most telling first."""
    fixed = [*_of_origin(before, after), *_of_request(before, after)]
    if not fixed and _are_apart(before.fingerprints, after.fingerprints):
        words = "the prompts' text, a trace's content or a detail of the device is another (the fingerprints differ)"
        fixed = [_change("prompts", _short(before.fingerprints), _short(after.fingerprints), words)]
    return [*fixed, *_of_conditions(before, after)]


def _of_origin(before: Provenance, after: Provenance) -> Iterator[ProvenanceChangeOut]:
    for name, words, value in _ORIGIN:
        was, now = ({value(one) for one in night.measurements} - {""} for night in (before, after))
        if was and now and not was & now:
            yield _changed(name, words, ", ".join(sorted(was)), ", ".join(sorted(now)))


def _of_request(before: Provenance, after: Provenance) -> Iterator[ProvenanceChangeOut]:
    for name, was, now in (
        ("workload", asdict(before.request.workload), asdict(after.request.workload)),
        ("window", asdict(before.request.window), asdict(after.request.window)),
    ):
        fields = [field for field in was if was[field] != now[field]]
        if fields:
            old, new = (", ".join(f"{field} {values[field]}" for field in fields) for values in (was, now))
            yield _changed(name, f"the {name}", old, new)


def _of_conditions(before: Provenance, after: Provenance) -> Iterator[ProvenanceChangeOut]:
    limits = _medians(before, after, lambda one: one.power_limit_w)
    if limits is not None and limits[0] != limits[1]:
        yield _changed("power_limit", "the power limit", f"{limits[0]:g} W", f"{limits[1]:g} W")
    for event in sorted(_events(before) | _events(after)):
        shares = _medians(before, after, _share_of(event))
        if shares is not None and abs(shares[1] - shares[0]) >= MIN_EVENT_SHARE:
            words = f"the share of time under the clock event {event}"
            yield _changed(f"clock_event:{event}", words, f"{shares[0]:.0%}", f"{shares[1]:.0%}")
    heat = _medians(before, after, lambda one: one.highest_temperature_c)
    if heat is not None and abs(heat[1] - heat[0]) >= MIN_TEMPERATURE_C:
        yield _changed("temperature", "the device's highest temperature", f"{heat[0]:.0f} °C", f"{heat[1]:.0f} °C")
    clocks = _medians(before, after, lambda one: one.mean_clock_mhz)
    if clocks is not None and abs(clocks[1] - clocks[0]) >= MIN_CLOCK_SHARE * clocks[0]:
        yield _changed("clock", "the mean clock at the same settings", f"{clocks[0]:.0f} MHz", f"{clocks[1]:.0f} MHz")


def _share_of(event: str) -> Figure:
    """Return the figure that is a clock event's share of the time."""
    return lambda one: dict(one.event_shares).get(event, 0.0)


def _medians(before: Provenance, after: Provenance, figure: Figure) -> tuple[float, float] | None:
    """Return a figure's median over the shared points on both nights; None unless both nights have it."""
    found = []
    for night in (before, after):
        of_devices = (figure(device) for one in night.shared for device in one.reading.conditions)
        values = [value for value in of_devices if value is not None]
        if not values:
            return None
        found.append(statistics.median(values))
    return found[0], found[1]


def _events(night: Provenance) -> set[str]:
    return {event for one in night.shared for device in one.reading.conditions for event, _ in device.event_shares}


def _changed(name: str, words: str, before: str, after: str) -> ProvenanceChangeOut:
    return _change(name, before, after, f"{words} was {before} and is {after}")


def _change(name: str, before: str, after: str, words: str) -> ProvenanceChangeOut:
    return ProvenanceChangeOut(name=name, before=before, after=after, words=words)


def _are_apart(before: frozenset[str], after: frozenset[str]) -> bool:
    return bool(before and after) and not before & after


def _short(fingerprints: frozenset[str]) -> str:
    return ", ".join(sorted(one[:12] for one in fingerprints))


_ORIGIN: tuple[tuple[str, str, Callable[[Measurement], str]], ...] = (
    ("device", "the device", lambda one: ", ".join(one.reading.device_uuids)),
    ("model", "the model's hash", lambda one: one.engine.model_hash[:12]),
    ("engine", "the engine", lambda one: f"{one.engine.engine} {one.engine.version}"),
    ("driver", "the driver", lambda one: one.driver or ""),
    ("energy", "what the energy is of", lambda one: f"{one.reading.scope.value} by {one.reading.method.value}"),
)
