"""What must be said of a front's intervals, ties and windows, for page and terminal alike. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from api import schemas
from probes.device import Method
from tuner.aggregates import IntervalOf


def interval_notes(points: Sequence[schemas.PointOut]) -> list[str]:
    """Return sentences on what the intervals speak of, which points are ties, and what was done to figures."""
    if not points:
        return []
    notes = [_interval_note(points)]
    num_behind = sum(1 for point in points if not point.is_leading)
    if num_behind:
        is_one = num_behind == 1
        notes.append(
            f"{num_behind} of {len(points)} points {'is' if is_one else 'are'} on the front by a tie: another is ahead "
            f"of {'it' if is_one else 'them'}, but by less than is uncertain."
        )
    for note in dict.fromkeys(point.note for point in points if point.note is not None):
        trials = [str(point.trial) for point in points if point.note == note]
        whose = f"Trial{'s' if len(trials) > 1 else ''} {', '.join(trials)}"
        notes.append(f"{'All points' if len(trials) == len(points) > 1 else whose}: {note}.")
    return notes


def tied_words(point: schemas.PointOut) -> str:
    """Return the trials that a point cannot be ranked with, as in `#3, #7`."""
    return ", ".join(f"#{number}" for number in point.tied_with)


def miss_words(miss: schemas.MissOut) -> str:
    """Return what a point misses, and its worst limit by how much."""
    share = 100 * miss.missed_by
    if miss.is_cut and share == 0:
        return f"{miss.detail} (missed, by how much is not known)"
    least = "at least " if miss.is_cut else ""
    return f"{miss.detail} (missed by {least}{f'{share:.1f}' if share < 10 else f'{share:.0f}'} %)"


def _interval_note(points: Sequence[schemas.PointOut]) -> str:
    if all(point.energy_method == Method.SIMULATED and point.num_sessions > 1 for point in points):
        return "Intervals are between simulated launches, which differ less than real ones."
    of_sessions = [point.interval_of == IntervalOf.SESSIONS for point in points]
    if all(of_sessions):
        return "Intervals are between launches of the engine."
    if any(of_sessions):
        return "Intervals of several windows are between launches; of one window they are of scatter inside it alone."
    return "Intervals are of scatter inside single windows: another launch may differ by more."
