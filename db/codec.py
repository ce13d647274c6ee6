"""Dataclasses to plain JSON and back, driven by their type hints.

Handles nested dataclasses, tuples, unions, StrEnums, aware datetimes and scalars. A field that is missing takes its
default, one that is not known is ignored, so that records can grow. Knows nothing of what the records mean.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from db.errors import RecordNotStorable, RecordUnreadable

Record = TypeVar("Record")
JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


def encode(value: object, path: str) -> JsonValue:
    """Return `value` as JSON; `path` names it in errors. Raises RecordNotStorable."""
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RecordNotStorable(f"{path} is {value}; store None and a reason in its place")
        return value
    if isinstance(value, datetime):
        return _encode_datetime(value, path)
    if isinstance(value, tuple):
        return [encode(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return encode_fields(value, path)
    raise RecordNotStorable(f"{path} is a {type(value).__name__}, which no record may hold")


def encode_fields(record: Any, path: str) -> dict[str, JsonValue]:
    """Return a dataclass as a JSON object. Raises RecordNotStorable."""
    return {field.name: encode(getattr(record, field.name), f"{path}.{field.name}") for field in fields(record)}


def decode(kind: type[Record], value: object, path: str) -> Record:
    """Return the dataclass that `encode_fields` wrote. Raises RecordUnreadable naming the field."""
    if not isinstance(value, dict):
        raise _unreadable(path, value, "an object")
    known: dict[str, Any] = {}
    for name, hint, is_required in _shape(cast(Any, kind)):
        if name in value:
            known[name] = _decode(hint, value[name], f"{path}.{name}")
        elif is_required:
            raise RecordUnreadable(f"{path}.{name} is missing")
    return kind(**known)


def _decode(hint: Any, value: object, path: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _decode_union(get_args(hint), value, path)
    if origin is tuple:
        return _decode_tuple(get_args(hint), value, path)
    if is_dataclass(hint):
        return decode(cast(type[Any], hint), value, path)
    if hint is datetime:
        return _decode_datetime(value, path)
    if issubclass(hint, StrEnum):
        return _decode_enum(hint, value, path)
    if hint is float and isinstance(value, int):  # 30.0 may come back as 30
        return float(value)
    if not isinstance(value, hint):
        raise _unreadable(path, value, hint.__name__)
    return value


def _decode_union(members: tuple[Any, ...], value: object, path: str) -> Any:
    """Decode with the first member that takes the value: in `int | float | str` an int stays one."""
    if value is None and NoneType in members:
        return None
    members = tuple(member for member in members if member is not NoneType)
    if len(members) == 1:  # an optional record: its own message names the inner field
        return _decode(members[0], value, path)
    for member in members:
        if isinstance(value, member):
            return value
    raise _unreadable(path, value, " or ".join(member.__name__ for member in members))


def _decode_tuple(members: tuple[Any, ...], value: object, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _unreadable(path, value, "a list")
    if members[-1] is Ellipsis:
        members = members[:1] * len(value)
    if len(members) != len(value):
        raise _unreadable(path, value, f"a list of {len(members)}")
    return tuple(_decode(members[i], item, f"{path}[{i}]") for i, item in enumerate(value))


def _encode_datetime(value: datetime, path: str) -> str:
    if value.tzinfo is None:
        raise RecordNotStorable(f"{path} is {value}, without a time zone; give an aware datetime")
    return value.astimezone(UTC).isoformat()


def _decode_datetime(value: object, path: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise _unreadable(path, value, "an ISO 8601 time") from None
    if moment.tzinfo is None:
        raise _unreadable(path, value, "a time with its UTC offset")
    return moment.astimezone(UTC)


def _decode_enum(kind: type[StrEnum], value: object, path: str) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError:
        raise _unreadable(path, value, f"one of {', '.join(kind)}") from None


@cache
def _shape(kind: Any) -> list[tuple[str, Any, bool]]:
    """List a dataclass's fields: name, type, whether it must be there. Cached: a trace has hundreds of samples."""
    hints = get_type_hints(kind)
    return [
        (field.name, hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
    ]


def _unreadable(path: str, value: object, expected: str) -> RecordUnreadable:
    return RecordUnreadable(f"{path} is {str(value)[:80]!r}; expected {expected}")
