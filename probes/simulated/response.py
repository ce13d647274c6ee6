"""How long an accelerator takes for a step of given work and what it draws meanwhile, at a clock or under a power cap.

Time is a roofline: matrix products behind the reading of their weights, attention behind the reading of keys and
values, then gaps between kernels, experts, messages, and what the host adds. Power is a constant plus what each of
these parts draws while it lasts, plus matrix products by their share of the peak. The clock enters as in Kernel
Tuner's power model ("Going green", PMBS 2022): dynamic power goes with f V(f)^2, the voltage flat below a ridge.

Where somebody measured how long a step's kernels take, that is believed and the roofline only says how it goes with
the clock. Pure: equal work at an equal clock gives an equal answer. Knows nothing of noise, temperature, sensors or
the time.
The arithmetic is written so that `fit` can run it on arrays of many steps at once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple

from probes.simulated.accelerators import Accelerator
from probes.simulated.coefficients import Coefficients
from probes.simulated.work import Work

#: Tokens of a step up to which an engine replays captured graphs (vLLM's default); beyond, kernels are launched singly.
GRAPH_TOKENS = 512
#: Which of the factors an arithmetic goes by.
_BITS = {"bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "nvfp4": 4, "mxfp4": 4}


class _Level(NamedTuple):
    """A clock, and what it does to the parts of a step."""

    clock_mhz: float
    #: Factors on the time of arithmetic, of memory, and of gaps, experts and messages.
    compute_slow: float
    memory_slow: float
    launch_slow: float
    #: Factors on dynamic power, and on memory's.
    dynamic: float
    memory_power: float


#: A step taken apart, seconds at the highest clock: reading weights, matrix products, keys and values, attention,
#: layers, experts, collectives, bytes on links, host, launching singly, all arithmetic at the peak rate; stages; and
#: how much longer kernels take than all that says. A plain tuple: it is made once a simulated step.
_Parts = tuple[float, float, float, float, float, float, float, float, float, float, float, int, float]


class Response:
    """The response of one accelerator by one set of coefficients."""

    def __init__(self, accelerator: Accelerator, coefficients: Coefficients | None = None) -> None:
        """Take the accelerator's own coefficients unless others are given."""
        self.accelerator = accelerator
        self.coefficients = given = coefficients or accelerator.coefficients
        self._clocks_mhz = accelerator.clocks_mhz
        self._levels = [self._level(clock) for clock in self._clocks_mhz]
        self._index_of: dict[float, int] = {clock: index for index, clock in enumerate(self._clocks_mhz)}
        factor = {16: given.gemm_16_factor, 8: given.gemm_8_factor, 4: given.gemm_4_factor}
        self._gemm_s = {name: (1 / peak, factor[_BITS[name]] / peak) for name, peak in accelerator.flops.items()}
        self._expert_s = {name: given.expert_16_s if _BITS[name] == 16 else given.expert_8_s for name in self._gemm_s}
        self._weight_s = given.weight_factor / accelerator.bandwidth_bytes_s
        self._kv_s = given.kv_factor / accelerator.bandwidth_bytes_s
        self._attention_peak_s = 1 / accelerator.flops["bf16"]
        self._scale_up_s = given.scale_up_factor / accelerator.scale_up_bytes_s
        self._scale_out_s = given.scale_out_factor / accelerator.scale_out_bytes_s

    def cost(self, work: Work, clock_mhz: float) -> tuple[float, float]:
        """Return seconds of one step and mean watts of each GPU in it at a clock, no power cap in the way.

        Raises KeyError for an arithmetic that the accelerator lacks.
        """
        index = self._index_of.get(clock_mhz)
        level = self._level(clock_mhz) if index is None else self._levels[index]
        return self._at(self._parts(work), level)

    def settle(
        self, work: Work, *, clock_cap_mhz: float, power_cap_w: float, from_clock_mhz: float
    ) -> tuple[float, float, float]:
        """Return seconds, watts and clock of a step at the highest clock that both caps allow.

        Looks around `from_clock_mhz` first: the clock of the step before, or any other. Never goes below the lowest
        clock, even if that draws more than the cap.
        """
        parts = self._parts(work)
        clocks = self._clocks_mhz
        limit_w = power_cap_w * self.coefficients.regulated_share
        top, at = self._index(clock_cap_mhz), self._index(from_clock_mhz)
        if at > top:
            at = top
        seconds, watts = self._at(parts, self._levels[at])
        if watts <= limit_w:
            if at == top:
                return seconds, watts, clocks[at]
            return self._search(parts, limit_w, at, top, (seconds, watts))
        return self._search(parts, limit_w, -1, at - 1, None) if at else (seconds, watts, clocks[0])

    def _index(self, clock_mhz: float) -> int:
        """Return the index of the highest clock not above this one, or of the lowest."""
        index = self._index_of.get(clock_mhz)
        return max(0, bisect_right(self._clocks_mhz, clock_mhz) - 1) if index is None else index

    def _search(
        self, parts: _Parts, limit_w: float, below: int, top: int, found: tuple[float, float] | None
    ) -> tuple[float, float, float]:
        """Find the highest level in (below, top] within the limit; `found` is the answer at `below`, if it is one.

        Power rises with the clock. The nearest level is tried first, then the interval is halved.
        """
        probe = below + 1 if found else top
        while below < top:
            answer = self._at(parts, self._levels[probe])
            if answer[1] <= limit_w:
                below, found = probe, answer
            else:
                top = probe - 1
            probe = (below + top + 1) // 2
        if found is None:
            below, found = 0, self._at(parts, self._levels[0])
        return found[0], found[1], self._clocks_mhz[below]

    def _level(self, clock_mhz: float) -> _Level:
        given, highest_mhz = self.coefficients, self._clocks_mhz[-1]
        slow = highest_mhz / clock_mhz
        dynamic = self._dynamic(clock_mhz) / self._dynamic(highest_mhz)
        return _Level(
            clock_mhz=clock_mhz,
            compute_slow=slow,
            memory_slow=max(1.0, given.memory_knee_share * slow),
            launch_slow=1 + given.launch_clock_share * (slow - 1),
            dynamic=dynamic,
            memory_power=1 + given.memory_clock_share * (dynamic - 1),
        )

    def _dynamic(self, clock_mhz: float) -> float:
        """Return f V(f)^2 in GHz, the voltage being 1 below the ridge."""
        ridge_mhz = self.coefficients.ridge_share * self._clocks_mhz[-1]
        voltage = 1 + self.coefficients.voltage_per_ghz * max(0.0, clock_mhz - ridge_mhz) / 1000
        return clock_mhz / 1000 * voltage * voltage

    def _parts(self, work: Work) -> _Parts:
        given = self.coefficients
        peak_s, gemm_s = self._gemm_s[work.arithmetic]
        num_layers, num_experts, num_tokens, gemm = work.num_layers, work.num_experts, work.num_tokens, work.gemm_flops
        attention = work.attention_flops * self._attention_peak_s
        has_experts = num_experts > 0
        has_prompts = num_tokens > work.num_sampled
        per_layer = (
            given.layer_s
            + has_experts * given.expert_layer_s
            + has_prompts * (given.prompt_layer_s + has_experts * given.expert_prompt_layer_s)
        )
        parts = (
            work.weight_bytes * self._weight_s,
            gemm * gemm_s * (1 + has_experts * (given.expert_gemm_factor - 1)),
            work.kv_bytes * self._kv_s,
            attention * given.attention_factor,
            num_layers * per_layer,
            num_experts * self._expert_s[work.arithmetic],
            work.num_scale_up * given.scale_up_s + work.num_scale_out * given.scale_out_s,
            work.scale_up_bytes * self._scale_up_s + work.scale_out_bytes * self._scale_out_s,
            given.step_s + work.num_sampled * given.sequence_s,
            (num_tokens > GRAPH_TOKENS) * num_layers * given.eager_layer_s,
            gemm * peak_s + attention,
            work.num_stages,
            1.0,
        )
        if not work.kernel_s:
            return parts
        own_s = _kernel_s(*parts[:8]) * work.num_stages
        return (*parts[:-1], work.kernel_s / own_s)

    def _at(self, parts: _Parts, level: _Level) -> tuple[float, float]:
        """Return seconds and watts of a step taken apart, at a clock.

        Where kernels are launched singly, the longer of GPU and host decides: a norm of order six, a maximum without
        its corner.
        """
        weights, gemm, kv, attention, layers, experts, messages, wire, host, eager, peak, num_stages, stretch = parts
        _, compute_slow, memory_slow, launch_slow, dynamic, memory_power = level
        given = self.coefficients
        read, multiply = weights * memory_slow, gemm * compute_slow
        scan, score = kv * memory_slow, attention * compute_slow
        experts *= launch_slow
        # As in _kernel_s; a call here would cost a tenth of the step.
        busy = stretch * (
            (read * read + multiply * multiply) ** 0.5
            + (scan * scan + score * score) ** 0.5
            + (layers + messages) * launch_slow
            + experts
            + wire
        )
        busy_cubed, eager_cubed = busy * busy * busy, eager * eager * eager
        launched = (busy_cubed * busy_cubed + eager_cubed * eager_cubed) ** (1 / 6)
        seconds = launched * num_stages + host
        dynamic_j = (given.active_w * busy + given.expert_w * experts) * dynamic
        memory_j = (given.weight_w * weights + given.kv_w * kv) * memory_power
        compute_w = given.compute_w * dynamic * (peak * compute_slow / seconds) ** given.compute_exponent
        return seconds, given.static_w + (dynamic_j + memory_j) / seconds + compute_w


def _kernel_s(
    weights: float,
    gemm: float,
    kv: float,
    attention: float,
    layers: float,
    experts: float,
    messages: float,
    wire: float,
) -> float:
    """Return what kernels take at the highest clock: work half hidden behind reading, everything else in a row."""
    return math.hypot(weights, gemm) + math.hypot(kv, attention) + layers + experts + messages + wire
