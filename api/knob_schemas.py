"""What a job may ask of an engine on a device, as JSON. Field names are public, in docs/glossary.md."""

from __future__ import annotations

from pydantic import BaseModel

from tuner.request import KnobValue


class KnobValueOut(BaseModel):
    """A value of a knob that is known by name, or worth trying."""

    value: KnobValue
    is_possible: bool
    #: Why not; null where it is possible.
    reason: str | None


class KnobChoiceOut(BaseModel):
    """One knob, as a job of this model on this device may name it."""

    name: str
    #: MHz or W; empty for counts and words.
    unit: str
    #: Whether a job has more than one value to choose from.
    is_settable: bool
    #: Why not, or what is not known yet; null where there is nothing to say.
    reason: str | None
    needs_launch: bool
    #: What an untuned deployment uses; null where only a worker can tell.
    default: KnobValue | None
    #: Whether a job that names no knob tries this one, with the values in `tried`.
    is_usual: bool
    tried: list[KnobValue]
    #: Every word, or counts worth trying; empty where any number may be given.
    choices: list[KnobValueOut]
    #: Of a number; null where the device does not say.
    lowest: float | None
    highest: float | None


class KnobChoicesOut(BaseModel):
    """Everything that a job of this model, engine and device may ask for, and why not for the rest."""

    model: str
    engine: str
    device: str
    is_simulated: bool
    #: About how long a launch of the engine keeps the device.
    launch_s: float
    knobs: list[KnobChoiceOut]
    #: How requests may arrive.
    scenarios: list[str]
    #: Why limits on the quality of answers cannot be asked for; null where they can.
    quality_reason: str | None
    #: Why a job that asks to set clocks and limits is refused, or need not ask; null where it has to ask.
    control_reason: str | None
