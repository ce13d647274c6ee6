"""Why a GPU's clocks are below what they could be: NVML's clock event bits in words, and what each means for a window.

The bits are nvml.h's nvmlClocksEventReason*, https://docs.nvidia.com/deploy/nvml-api/. Pure.
"""

from __future__ import annotations

IDLE = "idle"
SW_POWER_CAP = "sw_power_cap"
HW_SLOWDOWN = "hw_slowdown"
SYNC_BOOST = "sync_boost"
SW_THERMAL = "sw_thermal"
HW_THERMAL = "hw_thermal"
POWER_BRAKE = "power_brake"
DISPLAY_CLOCK = "display_clock"

#: Bit 0x2, a set clock, is documented as no longer used and says nothing.
_NAME_BY_BIT = {
    0x01: IDLE,
    0x04: SW_POWER_CAP,
    0x08: HW_SLOWDOWN,
    0x10: SYNC_BOOST,
    0x20: SW_THERMAL,
    0x40: HW_THERMAL,
    0x80: POWER_BRAKE,
    0x100: DISPLAY_CLOCK,
}


def events_of(bits: int) -> tuple[str, ...]:
    """Return the names of the bits that are set, in order of the bits; a bit unknown here becomes `bit_0x...`."""
    names = [name for bit, name in _NAME_BY_BIT.items() if bits & bit]
    rest = bits & ~(sum(_NAME_BY_BIT) | 0x02)
    return (*names, f"bit_{rest:#x}") if rest else tuple(names)
