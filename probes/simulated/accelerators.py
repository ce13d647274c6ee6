"""Figures of the accelerators that can be simulated, each with its source.

Knows nothing of how they respond to work: the coefficients beside the figures are for `response` to use.

Vendor's figures are of its data sheets, dense, without sparsity. "Read out" figures are from public transcripts of
nvidia-smi. What is marked assumption nobody published. That mxfp4 is as fast as nvfp4 is an assumption wherever both
stand: data sheets say FP4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from probes.simulated.coefficients import (
    ADA,
    AMPERE,
    BLACKWELL,
    BLACKWELL_GDDR,
    BLACKWELL_ULTRA,
    GRACE_BLACKWELL,
    GRACE_BLACKWELL_ULTRA,
    HOPPER,
    HOPPER_H200,
    HOPPER_NVL,
    HOPPER_PCIE,
    RUBIN,
    Coefficients,
)

_GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One accelerator as it is sold."""

    key: str
    name: str
    #: Default power limit, and the lowest and highest that may be set.
    tdp_w: float
    power_limit_w: tuple[float, float]
    #: What programs may use of it.
    memory_bytes: float
    bandwidth_bytes_s: float
    #: Dense peak of matrix products in operations a second, by arithmetic that the hardware has at speed.
    flops: Mapping[str, float]
    #: Clocks that may be set, ascending.
    clocks_mhz: tuple[int, ...]
    memory_clock_mhz: float
    #: Drawn without a context, and with a model loaded but no request.
    idle_w: float
    idle_loaded_w: float
    #: One direction, per GPU, inside a scale-up domain (NVLink, or PCIe where there is none), and GPUs in one.
    scale_up_bytes_s: float
    domain_size: int
    #: One direction, per GPU, between domains.
    scale_out_bytes_s: float
    #: The energy counter moves once in so long.
    counter_tick_s: float = 0.1
    coefficients: Coefficients
    #: Where the coefficients come from, in words.
    coefficients_from: str
    #: What the figures rest on, in words.
    sources: str
    #: Announced; nobody outside its maker has measured one.
    is_preliminary: bool = False


def _clocks(lowest_mhz: int, highest_mhz: int) -> tuple[int, ...]:
    """Return clocks as NVIDIA's drivers offer them: in steps of 15 MHz."""
    return tuple(range(lowest_mhz, highest_mhz + 1, 15))


def _tera(**tflops: float) -> Mapping[str, float]:
    return MappingProxyType({name: value * 1e12 for name, value in tflops.items()})


_FITTED = "fitted here to the ML.ENERGY leaderboard v3 (vLLM, closed load); clock axis: assumption, see coefficients"

_ALL = (
    Accelerator(
        key="a100-sxm-80",
        name="NVIDIA A100 SXM 80 GB",
        tdp_w=400.0,
        power_limit_w=(100.0, 400.0),
        memory_bytes=79.2 * _GIB,
        bandwidth_bytes_s=2.039e12,
        flops=_tera(bf16=312, fp16=312, int8=624),
        clocks_mhz=_clocks(210, 1410),
        memory_clock_mhz=1593.0,
        idle_w=55.0,
        idle_loaded_w=70.0,
        scale_up_bytes_s=300e9,
        domain_size=8,
        scale_out_bytes_s=25e9,
        coefficients=AMPERE,
        coefficients_from="carried over from H100 SXM, watts by TDP; clock axis set to published savings: assumption",
        sources="NVIDIA A100 data sheet; limits: DCGM issue 152; clocks, idle 45-63 W: read out; idle with model, "
        "NIC of 200 Gbit/s: assumption",
    ),
    Accelerator(
        key="h100-pcie",
        name="NVIDIA H100 PCIe",
        tdp_w=350.0,
        power_limit_w=(200.0, 350.0),
        memory_bytes=79.2 * _GIB,
        bandwidth_bytes_s=2.0e12,
        flops=_tera(bf16=756.5, fp16=756.5, fp8=1513, int8=1513),
        clocks_mhz=_clocks(210, 1755),
        memory_clock_mhz=1593.0,
        idle_w=50.0,
        idle_loaded_w=85.0,
        scale_up_bytes_s=300e9,
        domain_size=2,
        scale_out_bytes_s=50e9,
        coefficients=HOPPER_PCIE,
        coefficients_from="carried over from H100 SXM, watts by bandwidth and peak: assumption",
        sources="NVIDIA H100 data sheet (NVLink bridge of two); limits, idle, NIC of 400 Gbit/s: assumption",
    ),
    Accelerator(
        key="h100-sxm",
        name="NVIDIA H100 SXM",
        tdp_w=700.0,
        power_limit_w=(200.0, 700.0),
        memory_bytes=79.2 * _GIB,
        bandwidth_bytes_s=3.35e12,
        flops=_tera(bf16=989, fp16=989, fp8=1978, int8=1978),
        clocks_mhz=_clocks(345, 1980),
        memory_clock_mhz=2619.0,
        idle_w=70.0,
        idle_loaded_w=110.0,
        scale_up_bytes_s=450e9,
        domain_size=8,
        scale_out_bytes_s=50e9,
        coefficients=HOPPER,
        coefficients_from=_FITTED,
        sources="NVIDIA H100 data sheet; clocks, limits, idle 64-74 W and about 110 W with a model: read out",
    ),
    Accelerator(
        key="h100-nvl",
        name="NVIDIA H100 NVL",
        tdp_w=400.0,
        power_limit_w=(200.0, 400.0),
        memory_bytes=93.1 * _GIB,
        bandwidth_bytes_s=3.9e12,
        flops=_tera(bf16=835, fp16=835, fp8=1671, int8=1671),
        clocks_mhz=_clocks(345, 1785),
        memory_clock_mhz=2619.0,
        idle_w=61.0,
        idle_loaded_w=90.0,
        scale_up_bytes_s=300e9,
        domain_size=2,
        scale_out_bytes_s=50e9,
        coefficients=HOPPER_NVL,
        coefficients_from="carried over from H100 SXM, watts by bandwidth and peak: assumption",
        sources="NVIDIA H100 NVL data sheet; clocks, idle 61 W: read out; limits, idle with model: assumption",
    ),
    Accelerator(
        key="h200-sxm",
        name="NVIDIA H200 SXM",
        tdp_w=700.0,
        power_limit_w=(200.0, 700.0),
        memory_bytes=140.4 * _GIB,
        bandwidth_bytes_s=4.8e12,
        flops=_tera(bf16=989, fp16=989, fp8=1978, int8=1978),
        clocks_mhz=_clocks(345, 1980),
        memory_clock_mhz=3201.0,
        idle_w=77.0,
        idle_loaded_w=123.0,
        scale_up_bytes_s=450e9,
        domain_size=8,
        scale_out_bytes_s=50e9,
        coefficients=HOPPER_H200,
        coefficients_from="H100 SXM's with H200's own floor of 126-131 W and memory: assumption",
        sources="NVIDIA H200 data sheet; limits, clocks, idle 76-78 W and 119-127 W with a model: read out",
    ),
    Accelerator(
        key="b200",
        name="NVIDIA B200",
        tdp_w=1000.0,
        power_limit_w=(400.0, 1000.0),
        memory_bytes=179.0 * _GIB,
        bandwidth_bytes_s=7.7e12,
        flops=_tera(bf16=2250, fp16=2250, fp8=4500, int8=4500, nvfp4=9000, mxfp4=9000),
        clocks_mhz=_clocks(120, 1965),
        memory_clock_mhz=3996.0,
        idle_w=140.0,
        idle_loaded_w=190.0,
        scale_up_bytes_s=900e9,
        domain_size=8,
        scale_out_bytes_s=50e9,
        coefficients=BLACKWELL,
        coefficients_from=_FITTED,
        sources="NVIDIA HGX B200 data sheet; power: MLPerf submissions; clocks, idle 136-147 W: read out; "
        "lowest limit, idle with model: assumption",
    ),
    Accelerator(
        key="b300",
        name="NVIDIA B300",
        tdp_w=1100.0,
        power_limit_w=(400.0, 1100.0),
        memory_bytes=268.0 * _GIB,
        bandwidth_bytes_s=8.0e12,
        flops=_tera(bf16=2250, fp16=2250, fp8=4500, nvfp4=14000, mxfp4=14000),
        clocks_mhz=_clocks(120, 1920),
        memory_clock_mhz=3996.0,
        idle_w=145.0,
        idle_loaded_w=195.0,
        scale_up_bytes_s=900e9,
        domain_size=8,
        scale_out_bytes_s=100e9,
        coefficients=BLACKWELL_ULTRA,
        coefficients_from="carried over from B200, watts by TDP: assumption",
        sources="NVIDIA HGX B300 data sheet (INT8 is all but gone); clocks, limits, idle: assumption",
    ),
    Accelerator(
        key="gb200-nvl72",
        name="NVIDIA GB200 NVL72",
        tdp_w=1200.0,
        power_limit_w=(400.0, 1200.0),
        memory_bytes=184.0 * _GIB,
        bandwidth_bytes_s=8.0e12,
        flops=_tera(bf16=2500, fp16=2500, fp8=5000, int8=5000, nvfp4=10000, mxfp4=10000),
        clocks_mhz=_clocks(120, 2055),
        memory_clock_mhz=3996.0,
        idle_w=200.0,
        idle_loaded_w=215.0,
        scale_up_bytes_s=900e9,
        domain_size=72,
        scale_out_bytes_s=50e9,
        coefficients=GRACE_BLACKWELL,
        coefficients_from="carried over from B200, watts by TDP; floor of 210-223 W read out: assumption",
        sources="NVIDIA GB200 NVL72 data sheet; clocks up to 2062 MHz, idle about 200 W: read out; limits: assumption",
    ),
    Accelerator(
        key="gb300-nvl72",
        name="NVIDIA GB300 NVL72",
        tdp_w=1400.0,
        power_limit_w=(500.0, 1400.0),
        memory_bytes=276.0 * _GIB,
        bandwidth_bytes_s=8.0e12,
        flops=_tera(bf16=2500, fp16=2500, fp8=5000, nvfp4=15000, mxfp4=15000),
        clocks_mhz=_clocks(120, 1920),
        memory_clock_mhz=3996.0,
        idle_w=210.0,
        idle_loaded_w=225.0,
        scale_up_bytes_s=900e9,
        domain_size=72,
        scale_out_bytes_s=100e9,
        coefficients=GRACE_BLACKWELL_ULTRA,
        coefficients_from="carried over from B200, watts by TDP: assumption",
        sources="NVIDIA GB300 NVL72 data sheet (INT8 is all but gone); clocks, limits, idle: assumption",
    ),
    Accelerator(
        key="vera-rubin-nvl72",
        name="NVIDIA Vera Rubin NVL72",
        tdp_w=1800.0,
        power_limit_w=(600.0, 1800.0),
        memory_bytes=284.0 * _GIB,
        bandwidth_bytes_s=22.0e12,
        flops=_tera(bf16=4000, fp16=4000, fp8=17500, nvfp4=35000, mxfp4=35000),
        clocks_mhz=_clocks(120, 2100),
        memory_clock_mhz=4000.0,
        idle_w=250.0,
        idle_loaded_w=280.0,
        scale_up_bytes_s=1800e9,
        domain_size=72,
        scale_out_bytes_s=200e9,
        coefficients=RUBIN,
        coefficients_from="carried over from B200, watts by TDP: assumption",
        sources="NVIDIA's announcements of Vera Rubin NVL72 (288 GB of 22 TB/s, NVLink 6, 35 PFLOPS dense NVFP4; the "
        "50 of inference need adaptive compression); 1800 W: press reports; 16- and 8-bit peaks, clocks, limits, idle: "
        "assumption",
        is_preliminary=True,
    ),
    Accelerator(
        key="l40s",
        name="NVIDIA L40S",
        tdp_w=350.0,
        power_limit_w=(100.0, 350.0),
        memory_bytes=44.6 * _GIB,
        bandwidth_bytes_s=864e9,
        flops=_tera(bf16=362, fp16=362, fp8=733, int8=733),
        clocks_mhz=_clocks(210, 2520),
        memory_clock_mhz=9001.0,
        idle_w=35.0,
        idle_loaded_w=80.0,
        scale_up_bytes_s=32e9,
        domain_size=8,
        scale_out_bytes_s=25e9,
        coefficients=ADA,
        coefficients_from="carried over from H100 SXM, watts by TDP and peak: assumption",
        sources="NVIDIA L40S data sheet (PCIe 4.0 x16, no NVLink); limits, clocks, idle: assumption",
    ),
    Accelerator(
        key="rtx-4090",
        name="NVIDIA GeForce RTX 4090",
        tdp_w=450.0,
        power_limit_w=(150.0, 600.0),
        memory_bytes=23.5 * _GIB,
        bandwidth_bytes_s=1008e9,
        flops=_tera(bf16=165.2, fp16=165.2, fp8=330.3, int8=660.6),
        clocks_mhz=_clocks(210, 3105),
        memory_clock_mhz=10501.0,
        idle_w=20.0,
        idle_loaded_w=55.0,
        scale_up_bytes_s=32e9,
        domain_size=8,
        scale_out_bytes_s=12.5e9,
        coefficients=ADA,
        coefficients_from="carried over from H100 SXM, watts by TDP and peak: assumption",
        sources="NVIDIA Ada architecture paper (products summed in FP32); clocks: read out; limits, idle, "
        "NIC: assumption",
    ),
    Accelerator(
        key="rtx-pro-6000",
        name="NVIDIA RTX PRO 6000 Blackwell",
        tdp_w=600.0,
        power_limit_w=(150.0, 600.0),
        memory_bytes=95.0 * _GIB,
        bandwidth_bytes_s=1792e9,
        flops=_tera(bf16=504, fp16=504, fp8=1008, int8=1008, nvfp4=2015, mxfp4=2015),
        clocks_mhz=_clocks(180, 2850),
        memory_clock_mhz=14001.0,
        idle_w=30.0,
        idle_loaded_w=85.0,
        scale_up_bytes_s=64e9,
        domain_size=8,
        scale_out_bytes_s=50e9,
        coefficients=BLACKWELL_GDDR,
        coefficients_from="carried over from H100 SXM, watts by TDP and peak: assumption",
        sources="NVIDIA RTX Blackwell PRO data sheet (4000 TOPS of sparse FP4; PCIe 5.0 x16, no NVLink); clocks up to "
        "2842 MHz: read out; limits, idle, NIC: assumption",
    ),
)

#: Every accelerator by its key.
ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType({one.key: one for one in _ALL})
