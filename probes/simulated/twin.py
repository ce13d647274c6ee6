"""A digital twin on file: an accelerator whose coefficients were fitted to trials of one GPU, and how well they fit.

The file is JSON, written by `wattfront calibrate` and read wherever a simulated device is opened; anything odd in it is
refused with the field's name. What a twin tells is simulated like everything here: nobody measured the points that it
is asked about. Knows nothing of trials, nor of how to fit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from probes.errors import UnknownDevice
from probes.simulated.accelerators import ACCELERATORS, Accelerator
from probes.simulated.coefficients import COEFFICIENT_NAMES, Coefficients
from probes.simulated.description import VERSION

#: Of the file's form.
FILE_VERSION = 1
#: What a device's name ends with that means a twin: `simulated:/path/to/twin.json`.
SUFFIX = ".json"
#: The file says so itself, to whoever opens it.
NOTICE = (
    "coefficients of a simulation, fitted to measured trials; whatever is simulated with them is a model's output, "
    "not a measurement"
)

_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """How large errors are: shares of what was measured, without their sign."""

    median: float
    p90: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Errors of a step's time, of a GPU's power and of the energy of a token; None where no power was measured."""

    seconds: Quantiles
    power: Quantiles | None
    j_per_token: Quantiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a twin was fitted to."""

    device_uuid: str
    device_name: str
    driver: str
    engine: str
    job_ids: tuple[str, ...]
    num_trials: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """An accelerator as one GPU of it was found to be."""

    #: Key of the accelerator that it started from.
    base: str
    coefficients: Coefficients
    #: With a model loaded and no request, per GPU.
    idle_loaded_w: float
    #: Coefficients that the trials say less of than was assumed before: taken over from the base, or nearly.
    untold: tuple[str, ...]
    #: On the trials it was fitted to, and on each trial by a fit without it.
    in_sample: Residuals
    held_out: Residuals
    provenance: Provenance

    @property
    def key(self) -> str:
        """The base's key with a fingerprint of what was changed, so that results of two twins never mix."""
        content = repr((self.base, self.coefficients, self.idle_loaded_w)).encode()
        return f"{self.base}-twin-{hashlib.sha256(content).hexdigest()[:8]}"

    @property
    def accelerator(self) -> Accelerator:
        """The base with the twin's figures, to simulate with."""
        base, of = ACCELERATORS[self.base], self.provenance
        jobs = f"{len(of.job_ids)} job" + "s" * (len(of.job_ids) > 1)
        power = "" if self.held_out.power is None else f", power {self.held_out.power.median:.1%}"
        return replace(
            base,
            key=self.key,
            name=f"{base.name}, twin of {of.device_uuid}",
            coefficients=self.coefficients,
            idle_loaded_w=self.idle_loaded_w,
            coefficients_from=(
                f"fitted to {of.num_trials} trials of {of.device_name} ({jobs}, engine {of.engine}); median error of "
                f"trials left out: time {self.held_out.seconds.median:.1%}{power}"
            ),
        )


def write_twin(twin: Twin, path: Path) -> None:
    """Write a twin's file in place of any that is there. Raises OSError."""
    path.write_text(json.dumps(twin_json(twin), indent=2) + "\n", encoding="utf-8")


def twin_json(twin: Twin) -> dict[str, Any]:
    """Return a twin as the JSON object that its file holds."""
    fields = dataclasses.asdict(twin)
    fields["provenance"]["created_at"] = twin.provenance.created_at.astimezone(UTC).isoformat()
    return {"notice": NOTICE, "version": FILE_VERSION, "simulation": VERSION, **fields}


def read_twin(path: Path) -> Twin:
    """Read a twin's file. Raises UnknownDevice naming the file and the field that is wrong."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownDevice(f"{path}: {error.strerror}; give a file that wattfront calibrate wrote") from error
    except ValueError as error:
        raise UnknownDevice(f"{path}: not JSON: {error}; give a file that wattfront calibrate wrote") from error
    try:
        return twin_from_json(raw)
    except _Wrong as error:
        raise UnknownDevice(f"{path}: {error}") from error


def twin_from_json(raw: object) -> Twin:
    """Return the twin that `twin_json` wrote. Raises ValueError naming the field that is wrong."""
    fields = _object(raw, "the file")
    for name, ours in (("version", str(FILE_VERSION)), ("simulation", VERSION)):
        if str(fields.get(name)) != ours:
            raise _Wrong(f"{name} is {fields.get(name)!r}, this program has {ours}; calibrate anew")
    fields = {name: value for name, value in fields.items() if name not in ("notice", "version", "simulation")}
    return _part(
        Twin,
        fields,
        "",
        base=_base,
        coefficients=lambda value, path: _part(
            Coefficients, value, path, **dict.fromkeys(COEFFICIENT_NAMES, _amount)
        ),
        idle_loaded_w=_amount,
        untold=_names,
        in_sample=_residuals,
        held_out=_residuals,
        provenance=lambda value, path: _part(
            Provenance, value, path, device_uuid=_text, device_name=_text, driver=_text, engine=_text,
            job_ids=_texts, num_trials=_count, created_at=_moment,
        ),
    )  # fmt: skip


class _Wrong(ValueError):
    """Names a field, its value and what is expected."""


#: Reads a value; the second argument is the field's path for messages.
_Reader = Callable[[object, str], Any]


def _part(kind: type[_Part], value: object, path: str, /, **readers: _Reader) -> _Part:
    """Read a record of exactly these fields."""
    fields = _object(value, path or "the file")
    for name in fields:
        if name not in readers:
            raise _Wrong(f"{_join(path, name)} is not known; remove it, or calibrate anew")
    for name in readers:
        if name not in fields:
            raise _Wrong(f"{_join(path, name)} is missing; calibrate anew")
    return kind(**{name: read(fields[name], _join(path, name)) for name, read in readers.items()})


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _object(value: object, path: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _wrong(path, value, "an object")
    return value


def _base(value: object, path: str) -> str:
    if not (isinstance(value, str) and value in ACCELERATORS):
        raise _wrong(path, value, f"one of {', '.join(ACCELERATORS)}")
    return value


def _amount(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise _wrong(path, value, "a number of 0 or more")
    return float(value)


def _count(value: object, path: str) -> int:
    if not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        raise _wrong(path, value, "a whole number of 1 or more")
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, value, "a text")
    return value


def _texts(value: object, path: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _wrong(path, value, "a list of texts")
    return tuple(_text(one, f"{path}[{index}]") for index, one in enumerate(value))


def _names(value: object, path: str) -> tuple[str, ...]:
    names = _texts(value, path)
    for index, name in enumerate(names):
        if name not in COEFFICIENT_NAMES:
            raise _wrong(f"{path}[{index}]", name, f"one of {', '.join(COEFFICIENT_NAMES)}")
    return names


def _moment(value: object, path: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise _wrong(path, value, "a time as in 2026-03-01T12:00:00+00:00") from None
    if moment.tzinfo is None:
        raise _wrong(path, value, "a time with its UTC offset")
    return moment


def _residuals(value: object, path: str) -> Residuals:
    return _part(Residuals, value, path, seconds=_quantiles, power=_maybe_quantiles, j_per_token=_maybe_quantiles)


def _quantiles(value: object, path: str) -> Quantiles:
    return _part(Quantiles, value, path, median=_amount, p90=_amount, worst=_amount)


def _maybe_quantiles(value: object, path: str) -> Quantiles | None:
    return None if value is None else _quantiles(value, path)


def _wrong(path: str, value: object, expected: str) -> _Wrong:
    return _Wrong(f"{path} is {str(value)[:80]!r}; expected {expected}")
