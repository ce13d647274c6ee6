"""Common models by name: their config.json fields, as their makers publish them on Hugging Face.

`configs/models.json` has, for each name, the Hugging Face ids that share the shape and those fields of config.json that
say something of it. They were compared with copies of the published configs in NVIDIA's aiconfigurator-core 0.12 and in
other public repositories, and every total with the published parameter count; the `unverified` note of an entry says
what was not compared. Knows nothing of what the fields mean.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from engine.errors import UnknownModel


def names() -> tuple[str, ...]:
    """Return every model's name in the catalogue, in its order."""
    return tuple(_entries())


def ids(name: str) -> tuple[str, ...]:
    """Return the Hugging Face ids whose shape a name stands for."""
    return tuple(_entries()[name]["ids"])


def name_of(model: str) -> str | None:
    """Return the catalogue's name of a model that is given as `find` takes it; None where there is none."""
    wanted = model.strip().lower()
    known = _known()
    return known.get(wanted) or known.get(_without_variant(wanted))


def find(model: str) -> tuple[str, Mapping[str, Any]]:
    """Return name and config of a model by its catalogue name or Hugging Face id, in any case.

    Raises UnknownModel with the closest names.
    """
    name, entries = name_of(model), _entries()
    if name is None:
        wanted = model.strip().lower()
        short = _without_variant(wanted).rsplit("/", 1)[-1]
        close = difflib.get_close_matches(short, entries, n=5, cutoff=0.4) or list(entries)
        raise UnknownModel(
            f"no shape goes by {model!r}; close are {', '.join(close)}; a config.json or its folder will do, too"
        )
    return name, entries[name]["config"]


@functools.cache
def _known() -> dict[str, str]:
    """Names by everything that stands for them, in lower case."""
    return _names_by_id() | {name: name for name in _entries()}


def _names_by_id() -> dict[str, str]:
    """Names by Hugging Face id, with and without its owner, in lower case."""
    full = {known.lower(): name for name, entry in _entries().items() for known in entry["ids"]}
    return full | {known.rsplit("/", 1)[-1]: name for known, name in full.items()}


def _without_variant(model_id: str) -> str:
    """Drop what says how weights are stored: the shape stays."""
    for suffix in ("-fp8", "-fp8-dynamic", "-nvfp4", "-bf16", "-awq"):
        model_id = model_id.removesuffix(suffix)
    return model_id


@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    text = resources.files("engine.simulated").joinpath("configs/models.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries
