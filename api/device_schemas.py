"""What callers may name, as JSON: devices, engines, models. Field names are public, in docs/glossary.md.

Of what the operator's file names, only names get out: no UUID, no path.
"""

from __future__ import annotations

from pydantic import BaseModel

from api.schemas import DeviceOut


class SeenDeviceOut(DeviceOut):
    """A device that jobs ran on, and what runs on it now."""

    #: The job that runs on it, and the host of the worker that runs that; null while it is free.
    running_job: str | None
    worker_host: str | None


class NamedDeviceOut(BaseModel):
    """A device that a job over HTTP may name."""

    name: str
    #: What it is called; null for the operator's, of which only the name is told.
    title: str | None
    #: True when nothing is measured or set: the device is a model of one.
    is_simulated: bool
    #: Whether jobs over HTTP may set it, as far as this server's operator says; nothing is set on a simulated one.
    allow_device_control: bool
    #: Live workers that take jobs for it.
    worker_hosts: list[str]
    #: Null while it is free, and for simulated ones, on which many may run at once.
    running_job: str | None


class DevicesOut(BaseModel):
    """Every device that a job ever ran on, last seen first, and every one that a job over HTTP may name."""

    items: list[SeenDeviceOut]
    named: list[NamedDeviceOut]


class KnobOut(BaseModel):
    """One knob of an engine."""

    name: str
    #: Whether another value needs another launch of the engine.
    needs_launch: bool
    #: What an untuned deployment uses.
    default: int | float | str
    #: What is tried when a job names no values; empty where a job has to name them.
    tried: list[int | float | str]
    #: Every word that it takes; empty where it takes numbers.
    words: list[str]


class EngineOut(BaseModel):
    """An engine of this version."""

    name: str
    is_simulated: bool
    #: Live workers that can start it; empty when none can now.
    worker_hosts: list[str]
    knobs: list[KnobOut]


class EnginesOut(BaseModel):
    """Every engine of this version."""

    items: list[EngineOut]


class ModelOut(BaseModel):
    """A model that a job over HTTP may name."""

    name: str
    #: Where the name is from: `catalogue` for shapes, which simulated devices take, or `operator`.
    origin: str
    #: Hugging Face ids that share the shape; empty for the operator's.
    ids: list[str]


class ModelsOut(BaseModel):
    """Every model that a job over HTTP may name."""

    items: list[ModelOut]
