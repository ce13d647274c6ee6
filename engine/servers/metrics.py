"""What a server counts, from the text of its `/metrics`: under one name each, whatever the server calls it.

Reads Prometheus' text format line by line; a line that is none is passed over. Knows nothing of when it is read.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line: a name, its labels, and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """What a server calls each figure; of several names the first that is there counts, as they changed over time.

    Names joined by " + " are one figure: their sum, where all of them are there.
    """

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_use: tuple[str, ...] = ()
    preemptions: tuple[str, ...] = ()
    prefix_hits: tuple[str, ...] = ()
    prefix_queries: tuple[str, ...] = ()
    prompt_tokens: tuple[str, ...] = ()
    generated_tokens: tuple[str, ...] = ()


#: Gauges that each replica has for itself: the mean is told, where everything else is the sum.
_MEANS = ("kv_use",)
#: Counters: they only rise while a server lives.
_RISING = ("preemptions", "prefix_hits", "prefix_queries", "prompt_tokens", "generated_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounters:
    """What a server says of itself at one time, over all of its replicas; None where it does not say."""

    #: Requests that it computes, and that wait.
    running: float | None = None
    waiting: float | None = None
    #: Share of the KV cache that is taken, 0 to 1.
    kv_use: float | None = None
    #: Since it began: sequences thrown out of the cache, prompt tokens found in a prefix cache and looked for in it,
    #: prompt tokens, output tokens.
    preemptions: float | None = None
    prefix_hits: float | None = None
    prefix_queries: float | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChange:
    """What a server did between two readings; None where it does not say, or began anew in between."""

    prefix_hit_share: float | None = None
    num_preemptions: int | None = None
    num_prompt_tokens: int | None = None
    num_generated_tokens: int | None = None
    #: Whether a counter went down: what was counted before is lost.
    has_restarted: bool = False


def samples_of(text: str) -> list[Sample]:
    """Return every sample of a text in Prometheus' format that is a finite number."""
    found = []
    for line in text.split("\n"):  # labels may hold what else ends a line
        match = _LINE.fullmatch(line.strip())
        value = _number(match[3]) if match else None
        if match and value is not None:
            labels = {name: _unescaped(text) for name, text in _LABEL.findall(match[2] or "")}
            found.append(Sample(name=match[1], labels=labels, value=value))
    return found


def counters_of(samples: Sequence[Sample], names: MetricNames) -> ServerCounters:
    """Return a server's figures out of its samples."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        values.setdefault(sample.name, []).append(sample.value)
    figures: dict[str, float | None] = {}
    for field in dataclasses.fields(names):
        parts = (name.split(" + ") for name in getattr(names, field.name))
        found: list[str] = next((part for part in parts if all(name in values for name in part)), [])
        told = [value for name in found for value in values[name]]
        share = len(told) if field.name in _MEANS else 1
        figures[field.name] = math.fsum(told) / share if told else None
    return ServerCounters(**figures)


def change(before: ServerCounters, after: ServerCounters) -> ServerChange:
    """Return what lies between two readings of one server."""
    rises = {name: _rise(getattr(before, name), getattr(after, name)) for name in _RISING}
    if any(rise is not None and rise < 0 for rise in rises.values()):
        return ServerChange(has_restarted=True)
    hits, queries = rises["prefix_hits"], rises["prefix_queries"]
    return ServerChange(
        prefix_hit_share=min(1.0, hits / queries) if hits is not None and queries else None,
        num_preemptions=_whole(rises["preemptions"]),
        num_prompt_tokens=_whole(rises["prompt_tokens"]),
        num_generated_tokens=_whole(rises["generated_tokens"]),
    )


def label_of(samples: Sequence[Sample], name: str, label: str) -> str | None:
    """Return a label of the first sample of a name; None where there is none."""
    return next((one.labels[label] for one in samples if one.name == name and label in one.labels), None)


def _rise(before: float | None, after: float | None) -> float | None:
    """Return by how much a counter rose. One that appears with its first event, as labelled ones do, began at 0.

    One that is gone was counted by a server that is gone, too, unless it never counted anything.
    """
    if after is None:
        return -before if before else None
    return after - (before or 0.0)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPES.get(match[0], match[0]), text)
