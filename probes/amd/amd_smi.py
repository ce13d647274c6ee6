"""AMD GPUs through AMD SMI: the only `import amdsmi` in the project, and it is tried only when somebody asks for GPUs.

The library ships with ROCm and is no dependency of ours. A GPU is known by its UUID; amd-smi's order need not be HIP's.
What the library answers becomes watts, whole microjoules, MHz, or a named error. Written after AMD's documentation and
the library's source of ROCm 6 and 7, and tested against a fake of it: none of it has run on an AMD GPU yet.

Meaning of the calls: https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from threading import RLock
from typing import Any, TypeVar

from probes.errors import DeviceLost, ImplausibleReading, NotPermitted, NotSupported, ProbeError

#: Begins our UUIDs of AMD GPUs; ROCm itself writes GPU- before something else.
UUID_PREFIX = "AMD-"
MICROWATTS_PER_WATT = 1_000_000
#: A limit from here on is in microwatts, as some versions have it: no board is limited to 100 kW, or to 0.1 W.
LEAST_LIMIT_IN_MICROWATTS = 100_000
#: Above any board: the largest so far is rated at 1.4 kW.
CEILING_W = 2_500.0
NANOJOULES_PER_MICROJOULE = 1_000
#: All bits set means "no value", in the widths that the library's fields have.
SENTINELS = (2**16 - 1, 2**32 - 1, 2**64 - 1)

#: amdsmi_status_t, as far as it tells anything apart.
_ERRORS: dict[int, tuple[type[ProbeError], str]] = {
    2: (NotSupported, "not supported by this GPU"),
    3: (NotSupported, "not supported by this version of AMD SMI"),
    10: (NotPermitted, "not permitted; join the groups render and video, or run as root"),
    31: (DeviceLost, "the GPU is no longer there"),
    34: (NotSupported, "the kernel driver amdgpu is not loaded"),
    40: (NotSupported, "there is no such figure"),
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdCard:
    """What identifies a GPU."""

    uuid: str
    name: str
    #: As the kernel writes it: 0000:0c:00.0.
    pci_id: str
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdPower:
    """What a card says of its power, in watts; None where it says nothing."""

    #: Of now: MI300 and later.
    current_w: float | None
    #: Averaged over a time that is not documented: MI200 and earlier, Radeon.
    average_w: float | None
    #: One of the two, whichever there is; since ROCm 7.
    either_w: float | None
    limit_w: float | None


class AmdSmi:
    """One process's connection to the library; opened on first use, and anew in a forked child."""

    def __init__(self) -> None:
        # One call at a time: from several threads the energy counter was seen going backwards (amdsmi issue 115).
        self._lock = RLock()
        self._pid: int | None = None
        self._handles: dict[str, Any] = {}

    def close(self) -> None:
        """Let go of the driver. Idempotent."""
        with self._lock:
            # A child must not shut down what its parent opened.
            if self._pid == os.getpid():
                with suppress(ProbeError), self._asking("closing") as amdsmi:
                    amdsmi.amdsmi_shut_down()
            self._pid = None
            self._handles.clear()

    def cards(self) -> tuple[tuple[AmdCard, ...], tuple[str, ...]]:
        """Return the GPUs that answer, in order of PCI id, and why others are left out.

        GPUs that share a UUID, as partitions of one may, cannot be told apart and are left out. Raises NotSupported
        where there is no library or no driver.
        """
        with self._asking("listing GPUs") as amdsmi:
            handles = amdsmi.amdsmi_get_processor_handles()
        found: list[tuple[AmdCard, Any]] = []
        left_out: list[str] = []
        for index, handle in enumerate(handles):
            try:
                found.append((self._card(handle, index), handle))
            except ProbeError as error:
                left_out.append(str(error))
        times = Counter(card.uuid for card, _handle in found)
        left_out += [f"{number} GPUs share the UUID {uuid}" for uuid, number in times.items() if number > 1]
        known = {card.uuid: (card, handle) for card, handle in found if times[card.uuid] == 1}
        with self._lock:
            self._handles = {uuid: handle for uuid, (_card, handle) in known.items()}
        cards = sorted((card for card, _handle in known.values()), key=lambda card: card.pci_id)
        return tuple(cards), tuple(left_out)

    def energy_uj(self, uuid: str) -> int:
        """Return microjoules since the counter began: a whole number, however large.

        The counter's unit is a float of microjoules (15.3 on MI200 and MI300), taken to the nanojoule here. Whether it
        is the right one must be checked against power: it was wrong before ROCm 6.3 (amdsmi issue 38).
        """
        answer = self._ask(uuid, lambda amdsmi, handle: amdsmi.amdsmi_get_energy_count(handle))
        counts = number_in(answer, "energy_accumulator", "power")  # called power until ROCm 6.2
        unit_uj = number_in(answer, "counter_resolution")
        if not counts or not unit_uj:
            raise NotSupported(f"AMD SMI: {uuid}: the energy counter reads {answer}, which stands for no value")
        return int(counts) * round(unit_uj * NANOJOULES_PER_MICROJOULE) // NANOJOULES_PER_MICROJOULE

    def power(self, uuid: str) -> AmdPower:
        """Return all that the card says of its power. Raises ImplausibleReading for what no board draws."""
        answer = self._ask(uuid, lambda amdsmi, handle: amdsmi.amdsmi_get_power_info(handle))
        limit_w = number_in(answer, "power_limit")
        if limit_w is not None and limit_w >= LEAST_LIMIT_IN_MICROWATTS:
            limit_w /= MICROWATTS_PER_WATT
        return AmdPower(
            current_w=_power_w(answer, "current_socket_power", uuid),
            average_w=_power_w(answer, "average_socket_power", uuid),
            either_w=_power_w(answer, "socket_power", uuid),
            limit_w=limit_w or None,
        )

    def clock_mhz(self, uuid: str) -> float:
        """Return the present clock of the shader cores."""
        return self._clock_mhz(uuid, "GFX")

    def memory_clock_mhz(self, uuid: str) -> float:
        """Return the present clock of the memory."""
        return self._clock_mhz(uuid, "MEM")

    def temperature_c(self, uuid: str) -> float:
        """Return the temperature of the die's hottest spot; of its edge on cards that lack the former."""
        try:
            return self._temperature_c(uuid, "HOTSPOT")
        except NotSupported:
            return self._temperature_c(uuid, "EDGE")

    def compute_pids(self, uuid: str) -> tuple[int, ...]:
        """Return the processes that hold memory on the card."""
        return self._ask(uuid, _compute_pids)

    def _clock_mhz(self, uuid: str, kind: str) -> float:
        answer = self._ask(
            uuid, lambda amdsmi, handle: amdsmi.amdsmi_get_clock_info(handle, getattr(amdsmi.AmdSmiClkType, kind))
        )
        clock_mhz = number_in(answer, "clk", "cur_clk")  # called cur_clk until ROCm 6.1
        if not clock_mhz:
            raise NotSupported(f"AMD SMI: {uuid}: the {kind} clock reads {answer}, which stands for no value")
        return clock_mhz

    def _temperature_c(self, uuid: str, sensor: str) -> float:
        answer = self._ask(
            uuid,
            lambda amdsmi, handle: amdsmi.amdsmi_get_temp_metric(
                handle, getattr(amdsmi.AmdSmiTemperatureType, sensor), amdsmi.AmdSmiTemperatureMetric.CURRENT
            ),
        )
        temperature_c = number_in({sensor: answer}, sensor)
        if temperature_c is None:
            raise NotSupported(f"AMD SMI: {uuid}: the {sensor} temperature reads {answer!r}")
        return temperature_c

    def _card(self, handle: Any, index: int) -> AmdCard:
        with self._asking(f"GPU {index} of amd-smi") as amdsmi:
            return AmdCard(
                uuid=UUID_PREFIX + str(amdsmi.amdsmi_get_gpu_device_uuid(handle)).strip().lower(),
                name=str(amdsmi.amdsmi_get_gpu_asic_info(handle)["market_name"]).strip(),
                pci_id=str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower(),
                driver=str(amdsmi.amdsmi_get_gpu_driver_info(handle)["driver_version"]),
            )

    def _ask(self, uuid: str, call: Callable[[Any, Any], T]) -> T:
        with self._asking(uuid) as amdsmi:
            if uuid not in self._handles:
                self.cards()
            if uuid not in self._handles:
                raise DeviceLost(f"AMD SMI: {uuid} is no longer there")
            return call(amdsmi, self._handles[uuid])

    @contextmanager
    def _asking(self, subject: str) -> Iterator[Any]:
        """Give the library, opened; whatever it raises meanwhile becomes an error of ours."""
        amdsmi = load_library()
        with self._lock:
            try:
                if self._pid != os.getpid():
                    self._handles = {}
                    amdsmi.amdsmi_init()
                    self._pid = os.getpid()
                yield amdsmi
            except amdsmi.AmdSmiLibraryException as error:
                raise named_error(error.get_error_code(), f"AMD SMI: {subject}") from error
            except amdsmi.AmdSmiException as error:
                raise ProbeError(f"AMD SMI: {subject}: {error}") from error
            except (AttributeError, KeyError, TypeError) as error:
                raise NotSupported(f"AMD SMI: {subject}: this version answers otherwise: {error!r}") from error


def load_library() -> Any:
    """Return the bindings. Raises NotSupported where ROCm has not installed them, or they do not fit it."""
    try:
        with redirect_stdout(io.StringIO()):  # it prints when it does not find its C library
            import amdsmi
    except ModuleNotFoundError as error:
        raise NotSupported(
            "AMD SMI: the Python package amdsmi is not installed; it comes with ROCm, in /opt/rocm/share/amd_smi"
        ) from error
    except (ImportError, OSError, AttributeError, KeyError) as error:  # seen where bindings and ROCm differ in version
        raise NotSupported(f"AMD SMI: amdsmi cannot be loaded, does it fit the installed ROCm? {error!r}") from error
    return amdsmi


def named_error(code: int, subject: str) -> ProbeError:
    """Return the error that an amdsmi_status_t means; a ProbeError with the number where it tells nothing."""
    kind, words = _ERRORS.get(code, (ProbeError, f"AMD SMI's status {code}"))
    return kind(f"{subject}: {words}")


def number_in(answer: Mapping[str, Any], *names: str) -> float | int | None:
    """Return the first of the fields that holds a number; "N/A", all bits set and anything else are None."""
    for name in names:
        value = answer.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value not in SENTINELS:
            return value
    return None


def _power_w(answer: Mapping[str, Any], name: str, uuid: str) -> float | None:
    """Return watts; 0 is no figure: a GPU that answers draws power, and the second die of an MI250 reads 0."""
    watts = number_in(answer, name)
    if watts is not None and not 0 <= watts <= CEILING_W:
        raise ImplausibleReading(f"AMD SMI: {uuid}: {name} reads {watts} W, outside 0 to {CEILING_W:g} W")
    return watts or None


def _compute_pids(amdsmi: Any, handle: Any) -> tuple[int, ...]:
    """Return those that use the card: ROCm lists processes that merely opened the driver too, with 0 bytes."""
    rows = amdsmi.amdsmi_get_gpu_process_list(handle)
    return tuple(int(row["pid"]) for row in rows if row["memory_usage"]["vram_mem"])
