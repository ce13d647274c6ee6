"""What a tuning job can get wrong before it starts."""

from __future__ import annotations


class TunerError(Exception):
    """Root of everything the tuner raises."""


class InvalidRequest(TunerError):
    """Correct the field that the message names; it gives the value and what is allowed."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} is {value!r}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class TraceChanged(InvalidRequest):
    """Put the trace back as it was, or submit a new job with the one that is there now."""

    def __init__(self, path: str, *, submitted: str, found: str) -> None:
        remedy = (
            f"its content is not what was submitted (SHA-256 {submitted[:12]}..., now {found[:12]}...); put the file "
            "back as it was, or submit a new job with it"
        )
        super().__init__("workload.trace_file", path, remedy)


class EmptySpace(InvalidRequest):
    """Give the knob at least one value that engine and device allow."""
