"""The coefficients of an accelerator's response in time and power, and the sets of them that ship.

Knows the model's form only as far as naming its parts: `response` computes with them, `fit` finds them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """What turns the work of a step into seconds and watts. Times and watts hold at the highest clock.

    A factor says how much longer a part takes than its figure on the data sheet allows: 1 would be perfect.
    """

    #: The host's share of a step, and of every sequence that gets a token in it.
    step_s: float
    sequence_s: float
    #: What the host takes to launch a layer kernel by kernel, as it does where captured graphs end: the GPU waits for
    #: it if it is done sooner.
    eager_layer_s: float
    #: Gaps and small kernels of a layer; more where the layer has experts (routing, sorting); more where prompts are in
    #: the step (other attention kernels, no captured graph of the whole), and again more with experts.
    layer_s: float
    expert_layer_s: float
    prompt_layer_s: float
    expert_prompt_layer_s: float
    #: Reading weights, and reading and writing keys and values, against the memory's bandwidth.
    weight_factor: float
    kv_factor: float
    #: Matrix products against the peak of their arithmetic (16, 8, 4 bit); times more where experts share the tokens;
    #: attention against the 16-bit peak.
    gemm_16_factor: float
    gemm_8_factor: float
    gemm_4_factor: float
    expert_gemm_factor: float
    attention_factor: float
    #: Every expert matrix in use, beyond its bytes and FLOPs: padding to tiles; in 16-bit and in narrower arithmetic.
    expert_16_s: float
    expert_8_s: float
    #: Messages: per collective, and against the link's bandwidth; inside and between scale-up domains.
    scale_up_s: float
    scale_up_factor: float
    scale_out_s: float
    scale_out_factor: float
    #: Drawn whatever runs; beyond it while kernels run, while weights are read, while keys and values are read, and
    #: while experts are padded.
    static_w: float
    active_w: float
    weight_w: float
    kv_w: float
    expert_w: float
    #: Drawn by matrix products at full rate, and the power of the rate's share that they grow with.
    compute_w: float
    compute_exponent: float
    #: Voltage is flat up to this share of the highest clock and rises by so much per GHz above it.
    ridge_share: float
    voltage_per_ghz: float
    #: Memory is fed at full rate down to this share of the highest clock.
    memory_knee_share: float
    #: Share of memory's watts, and of a layer's, expert's and collective's seconds, that goes with the clock.
    memory_clock_share: float
    launch_clock_share: float
    #: A power limit holds mean power at this share of it: the regulator swings and keeps away from the edge.
    regulated_share: float


#: Names of all coefficients, in their order.
COEFFICIENT_NAMES = tuple(field.name for field in fields(Coefficients))

#: Where every fit of a GPU begins: an ordinary one, in round figures set by hand, with first fits to the same published
#: rows in view. So leave-one-model-out errors are a little too good: no row is fitted, but none was unseen. Assumption.
PRIOR = Coefficients(
    step_s=300e-6,
    sequence_s=30e-6,
    eager_layer_s=150e-6,
    layer_s=60e-6,
    expert_layer_s=40e-6,
    prompt_layer_s=30e-6,
    expert_prompt_layer_s=150e-6,
    weight_factor=1.07,
    kv_factor=1.4,
    gemm_16_factor=1.3,
    gemm_8_factor=1.7,
    gemm_4_factor=2.5,
    expert_gemm_factor=1.5,
    attention_factor=1.5,
    expert_16_s=0.5e-6,
    expert_8_s=4e-6,
    scale_up_s=12e-6,
    scale_up_factor=1.4,
    scale_out_s=25e-6,
    scale_out_factor=1.5,
    static_w=125.0,
    active_w=100.0,
    weight_w=180.0,
    kv_w=250.0,
    expert_w=300.0,
    compute_w=600.0,
    compute_exponent=0.4,
    ridge_share=0.62,
    voltage_per_ghz=0.25,
    memory_knee_share=0.45,
    memory_clock_share=0.2,
    launch_clock_share=0.7,
    regulated_share=0.985,
)

#: NVIDIA H100 SXM, fitted.
HOPPER = replace(
    PRIOR,
    step_s=381e-6,
    sequence_s=47.3e-6,
    layer_s=79.3e-6,
    expert_layer_s=20.6e-6,
    prompt_layer_s=24.7e-6,
    expert_prompt_layer_s=357e-6,
    weight_factor=1.0,
    kv_factor=1.53,
    gemm_16_factor=1.26,
    gemm_8_factor=1.77,
    expert_gemm_factor=1.69,
    attention_factor=1.43,
    expert_16_s=0.222e-6,
    expert_8_s=5.42e-6,
    scale_up_s=13.4e-6,
    scale_up_factor=2.39,
    static_w=125.0,
    active_w=44.1,
    weight_w=133.0,
    kv_w=237.0,
    expert_w=685.0,
    compute_w=617.0,
    compute_exponent=0.275,
)
#: NVIDIA B200, fitted; hosts that others keep busy taken out.
BLACKWELL = replace(
    PRIOR,
    step_s=457e-6,
    sequence_s=32.8e-6,
    layer_s=77.8e-6,
    expert_layer_s=18.5e-6,
    prompt_layer_s=72.3e-6,
    expert_prompt_layer_s=505e-6,
    weight_factor=1.03,
    kv_factor=2.0,
    gemm_16_factor=1.16,
    gemm_8_factor=2.19,
    expert_gemm_factor=1.45,
    attention_factor=1.52,
    expert_16_s=0.096e-6,
    expert_8_s=3.64e-6,
    scale_up_s=21.5e-6,
    scale_up_factor=1.56,
    static_w=204.0,
    active_w=100.0,
    weight_w=443.0,
    kv_w=106.0,
    expert_w=833.0,
    compute_w=976.0,
    compute_exponent=0.325,
    regulated_share=0.97,
)


def _carried(base: Coefficients, *, static_w: float, memory: float, compute: float, **changes: float) -> Coefficients:
    """Carry coefficients over to another GPU: its own floor, watts of memory and of arithmetic times a factor."""
    return replace(
        base,
        static_w=static_w,
        weight_w=base.weight_w * memory,
        kv_w=base.kv_w * memory,
        active_w=base.active_w * compute,
        expert_w=base.expert_w * compute,
        compute_w=base.compute_w * compute,
        **changes,
    )


#: H200: the same die, memory's watts by bandwidth (4.8 to 3.35 TB/s), and a floor read out at 126-131 W.
HOPPER_H200 = _carried(HOPPER, static_w=128.0, memory=1.43, compute=1.0)
#: H100 PCIe and NVL: watts by bandwidth and by 16-bit peak.
HOPPER_PCIE = _carried(HOPPER, static_w=75.0, memory=0.6, compute=0.6)
HOPPER_NVL = _carried(HOPPER, static_w=85.0, memory=1.16, compute=0.6)
#: A100: watts by TDP (400 to 700 W), memory's by bandwidth at the higher energy per bit of HBM2e; a clock axis of its
#: own, set so that decoding saves what is published, where it is published.
AMPERE = _carried(
    HOPPER,
    static_w=75.0,
    memory=0.65,
    compute=0.55,
    voltage_per_ghz=0.5,
    memory_knee_share=0.62,
    memory_clock_share=0.3,
)
#: By TDP, at B200's energy per bit.
BLACKWELL_ULTRA = _carried(BLACKWELL, static_w=210.0, memory=1.04, compute=1.1)
GRACE_BLACKWELL = _carried(BLACKWELL, static_w=216.0, memory=1.04, compute=1.2)
GRACE_BLACKWELL_ULTRA = _carried(BLACKWELL, static_w=228.0, memory=1.04, compute=1.4)
#: Rubin: by TDP; HBM4 is taken to need two thirds of the energy per bit.
RUBIN = _carried(BLACKWELL, static_w=290.0, memory=1.9, compute=1.8)
#: Cards with GDDR memory and without NVLink.
ADA = _carried(HOPPER, static_w=65.0, memory=0.5, compute=0.5, scale_up_s=25e-6)
BLACKWELL_GDDR = _carried(HOPPER, static_w=85.0, memory=0.8, compute=0.8, scale_up_s=25e-6)
