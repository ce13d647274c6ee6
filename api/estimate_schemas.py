"""What a job would search and cost, as JSON. Field names are public, in docs/glossary.md."""

from __future__ import annotations

from pydantic import BaseModel


class JobEstimateOut(BaseModel):
    """What a job would search and cost, if it were posted now; nothing of it is measured, and nothing is stored."""

    #: Whether the job's own figures would be of a model of a device.
    is_simulated: bool
    #: Every combination of the values that the device takes.
    num_points: int
    #: Of these, what is not known to be impossible; null where only a worker can tell.
    num_possible: int | None
    #: Points that are measured, windows of finals on top, launches of the engine for both.
    num_trials: int
    num_repeats: int
    num_launches: int
    #: With warm-ups and windows of their usual length, and with the longest that the job allows.
    device_s: float
    device_s_at_most: float
    #: Null without past jobs of this model on this device; `joules_from` says what it rests on, or why there is none.
    joules: float | None
    joules_from: str
    #: At the power limit all the time; null where the limit is not known.
    joules_at_most: float | None
    #: How all this was found, in sentences.
    how: list[str]
    #: The same job as a file, as a request, and as a command.
    yaml: str
    curl: str
    command: str
