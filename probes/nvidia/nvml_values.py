"""What NVML's numbers mean: error codes, value types, sentinels, and what cannot be true.

Every milliwatt becomes a watt here, once. Pure: neither calls the driver nor imports its bindings, so the tables
stand whatever package is installed. All numbers are from nvml.h, https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

from enum import IntEnum

from probes.errors import (
    DeviceLost,
    ImplausibleReading,
    NotPermitted,
    NotSupported,
    ProbeError,
    UnknownDevice,
)

MILLIJOULES_PER_JOULE = 1000
MILLIWATTS_PER_WATT = 1000

NOT_AVAILABLE_U16 = 2**16 - 1
NOT_AVAILABLE_U32 = 2**32 - 1
NOT_AVAILABLE_U64 = 2**64 - 1

#: No board drew more than this at the time of writing; a superchip's module may be allowed 2.9 kW.
BOARD_CEILING_W = 2_000.0
MODULE_CEILING_W = 6_000.0
#: Boards overshoot their limit for moments; nothing overshoots it by half.
LIMIT_HEADROOM = 1.5


class PowerField(IntEnum):
    """Fields that hold power in milliwatts."""

    AVERAGE = 185  # mean of the last second; Ampere without GA100, and later
    INSTANT = 186


class PowerScope(IntEnum):
    """What a field speaks of."""

    GPU = 0
    MODULE = 1
    MEMORY = 2


class Architecture(IntEnum):
    """The one generation that matters here."""

    AMPERE = 7


def named_error(code: int, subject: str) -> ProbeError:
    """Return our error for one of NVML's codes."""
    kind, meaning = _ERRORS.get(code, (ProbeError, "an error without a meaning here"))
    return kind(f"NVML: {subject}: {meaning} (code {code})")


def decoded(value_type: int, value: object) -> int | float:
    """Return a field's value as its type says; the union's other members hold rubbish.

    Raises NotSupported for a sentinel, ProbeError for a type this version does not know.
    """
    member = _MEMBER_BY_TYPE.get(value_type)
    if member is None:
        raise ProbeError(f"NVML: a field has the unknown value type {value_type}")
    number: int | float = getattr(value, member)
    if number == _SENTINEL_BY_TYPE.get(value_type):
        raise NotSupported(f"NVML: a field says {number}, which stands for no value")
    return number


def plausible_w(milliwatts: object, subject: str, ceiling_w: float) -> float:
    """Return watts.

    Zero is no figure: a GPU that answers draws power. Raises NotSupported where there is no figure, and
    ImplausibleReading above `ceiling_w` or below zero.
    """
    if isinstance(milliwatts, bool) or not isinstance(milliwatts, int | float):
        raise NotSupported(f"NVML: {subject}: power reads {milliwatts!r}")
    if milliwatts in (0, NOT_AVAILABLE_U32):
        raise NotSupported(f"NVML: {subject}: power reads {milliwatts} mW, which stands for no value")
    watts = milliwatts / MILLIWATTS_PER_WATT
    if not 0 < watts <= ceiling_w:
        raise ImplausibleReading(f"NVML: {subject}: power reads {watts} W, outside 0 to {ceiling_w} W")
    return watts


def limit_w(milliwatts: object) -> float | None:
    """Return a power limit in watts; None for a sentinel or nonsense."""
    try:
        return plausible_w(milliwatts, "limit", MODULE_CEILING_W)
    except ProbeError:
        return None


def board_ceiling_w(max_limit_w: float | None) -> float:
    """Return the highest power worth believing of a board with this limit, or with none."""
    return BOARD_CEILING_W if max_limit_w is None else LIMIT_HEADROOM * max_limit_w


def normalised_pci_id(pci_id: str | bytes) -> str:
    """Return the kernel's form of a PCI id: NVML writes the domain with eight digits, the kernel with four.

    Bindings hand out bytes or text, depending on their age.
    """
    text = pci_id.decode() if isinstance(pci_id, bytes) else pci_id
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


_ERRORS: dict[int, tuple[type[ProbeError], str]] = {
    1: (ProbeError, "not initialised"),
    2: (ProbeError, "invalid argument"),
    3: (NotSupported, "not supported by this GPU"),
    4: (NotPermitted, "not permitted; run as root, or in a container with CAP_SYS_ADMIN"),
    6: (UnknownDevice, "no such device"),
    9: (NotSupported, "the kernel driver is not loaded"),
    10: (ProbeError, "the driver did not answer in time"),
    12: (NotSupported, "library libnvidia-ml.so.1 not found; there is no NVIDIA driver here"),
    13: (NotSupported, "the driver is too old to have this call"),
    15: (DeviceLost, "the GPU has fallen off the bus"),
    16: (DeviceLost, "the GPU must be reset"),
    18: (NotSupported, "driver and library differ in version; restart the machine"),
    25: (NotSupported, "the driver has another version of this call"),
    26: (NotSupported, "the driver no longer has this call"),
    28: (DeviceLost, "the GPU is no longer there"),
    999: (ProbeError, "the driver does not know what went wrong"),
}
#: Members of nvmlValue_t by nvmlValueType_t: double, unsigned int, unsigned long, unsigned long long, signed long
#: long, signed int, unsigned short.
_MEMBER_BY_TYPE = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
#: All bits set means "no value", in the width of the field's own type: 65535 mW is real power in a wider one.
_SENTINEL_BY_TYPE = {1: NOT_AVAILABLE_U32, 2: NOT_AVAILABLE_U64, 3: NOT_AVAILABLE_U64, 6: NOT_AVAILABLE_U16}
