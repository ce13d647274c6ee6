"""Hold counted energy against integrated power.

Both come from one sensor, so agreement shows consistency, not accuracy. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from probes.metering.findings import Findings
from probes.validity import Note, Reason

#: A larger disagreement, beyond the counter's own steps, means that one of the two is not what it says.
CROSSCHECK_TOLERANCE = 0.05


def crosschecked(counted: Findings, integrated: Findings) -> Findings:
    """Return the counted energy as judged by the integral over the same stretch.

    A counter that stands still while power can be read is replaced by the integral, and a note says so. Where
    the integral failed, the counted energy stands without a check, and a note says so.
    """
    if counted.reasons == (Reason.COUNTER_STUCK,) and integrated.energy_j and not integrated.reasons:
        return replace(integrated, notes=(Note.COUNTER_STUCK, *integrated.notes))
    notes = (*counted.notes, *integrated.notes)
    trace = integrated.trace or counted.trace
    if counted.energy_j is None:
        return replace(counted, notes=notes, trace=trace)
    distrusted = tuple(reason for reason in integrated.reasons if reason in _AGAINST_THE_SENSOR)
    if integrated.energy_j is None:
        return replace(counted, reasons=distrusted, notes=(*notes, Note.NO_CROSSCHECK), trace=trace)
    allowed_j = CROSSCHECK_TOLERANCE * counted.energy_j + (counted.uncertainty_j or 0.0)
    disagrees = abs(counted.energy_j - integrated.energy_j) > allowed_j
    failed = (Reason.ENERGY_CROSSCHECK_FAILED,) if disagrees else ()
    return replace(counted, reasons=(*distrusted, *failed), notes=notes, trace=trace)


#: What counts against the counter too when power readings show it.
_AGAINST_THE_SENSOR = (Reason.IMPLAUSIBLE_READING, Reason.SAMPLER_DIED)
