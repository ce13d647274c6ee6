"""Step times from aiconfigurator-core: the adapter with a stand-in, and with the package where it is installed."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.settings import EngineSettings
from engine.simulated import catalogue
from engine.simulated.measured import TimeSource
from probes.simulated.accelerators import ACCELERATORS
from tuner import aic
from tuner.aic import Library, StepTimes, Surface, choose_step_times, load_library

MODELS = frozenset(aic.MODELS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Kernels whose times are linear in every count, so that interpolation has nothing to lose."""

    provenance: str | None = None
    splits_attention: bool = True

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
        return 5.0 + 0.02 * gen_tokens + 1e-5 * gen_tokens * (isl + osl // 2 + 1)

    def mixed_step_breakdown(
        self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int, prefix: int
    ) -> tuple[float, float, float, float]:
        rest = 4.0 + 0.02 * (ctx_tokens + gen_tokens)
        of_prompts = 1e-3 * ctx_tokens + 1e-6 * ctx_tokens * prefix
        of_decodes = 1e-5 * gen_tokens * (isl + osl // 2 + 1)
        if not self.splits_attention:
            return rest + of_prompts + of_decodes, rest + of_prompts + of_decodes, 0.0, 0.0
        return rest + of_prompts + of_decodes, rest, of_prompts, of_decodes

    def last_provenance(self) -> str | None:
        return self.provenance


@dataclass(slots=True)
class Compiler:
    """Notes what it is asked for."""

    kernels: StandIn = field(default_factory=StandIn)
    error: Exception | None = None
    calls: list[tuple[str, str, str, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, model: str, system: str, backend: str, **options: Any) -> StandIn:
        self.calls.append((model, system, backend, options))
        if self.error is not None:
            raise self.error
        return self.kernels

    def as_package(self) -> Library:
        return Library(version="1.2.3", models=MODELS, resolve_version=lambda *_: "9.9", compile=self)


def make_settings(**changes: Any) -> EngineSettings:
    return EngineSettings(**{"model": "llama-3.1-8b", "precision": "bf16", "max_batch": 64, **changes})


def choose(compiler: Compiler, accelerator: str = "h100-sxm", **changes: Any) -> TimeSource:
    return choose_step_times(
        make_settings(**changes), accelerator=accelerator, max_context=4096, library=compiler.as_package()
    )


def times(**changes: Any) -> StepTimes:
    chosen = choose(Compiler(), **changes).times
    assert isinstance(chosen, StepTimes)
    return chosen


def test_a_decode_step_takes_what_the_package_says() -> None:
    """Milliseconds of the package become seconds, at the batch and the context that the step has."""
    assert pytest.approx((5.0 + 0.02 * 24 + 1e-5 * 24 * 777) / 1e3) == times()(24, 777.0, 0)


def test_a_mixed_step_is_put_together_from_its_parts() -> None:
    """Attention of prompts and of decodes come on top of what all tokens go through together."""
    rest, of_prompts, of_decodes = 4.0 + 0.02 * (300 + 24), 1e-3 * 300 + 1e-6 * 300 * 512, 1e-5 * 24 * 777
    assert pytest.approx((rest + of_prompts + of_decodes) / 1e3) == times()(24, 777.0, 300, 512.0)


def test_a_step_of_prompts_alone_has_no_decodes() -> None:
    """Without decodes there is neither their token nor their attention."""
    assert pytest.approx((4.0 + 0.02 * 300 + 1e-3 * 300) / 1e3) == times()(0, 0.0, 300)


def test_a_step_of_nothing_takes_no_time() -> None:
    """Nothing to do, nothing asked."""
    assert times()(0, 0.0, 0) == 0.0


def test_replicas_share_a_step() -> None:
    """The counts are the whole engine's; two replicas take as long as one with half of them."""
    assert times()(20, 500.0, 200) == pytest.approx(times(data_parallel=2)(40, 500.0, 400))


def test_a_replica_cannot_do_less_than_one_token() -> None:
    """One decode among four replicas takes as long as one decode in each."""
    assert times(data_parallel=4)(4, 500.0, 0) == times(data_parallel=4)(1, 500.0, 0)


@given(
    coefficients=st.tuples(*[st.floats(0, 10)] * 4), x=st.floats(1, 200), y=st.floats(1, 5000), step=st.integers(1, 50)
)
def test_a_surface_has_what_is_linear_in_each_variable(
    coefficients: tuple[float, ...], x: float, y: float, step: int
) -> None:
    """Between the lines and beyond them, a function linear in each variable comes back as it was."""
    constant, of_x, of_y, of_both = coefficients
    surface = Surface((1, 1 + step, 120), (1, 64, 2048), lambda x, y: constant + of_x * x + of_y * y + of_both * x * y)
    assert pytest.approx(constant + of_x * x + of_y * y + of_both * x * y, rel=1e-6, abs=1e-6) == surface.at(x, y)


def test_the_source_names_package_and_tables() -> None:
    """A record can tell which version, whose kernels and which system its times came from."""
    assert choose(Compiler()).source == "aiconfigurator-core 1.2.3 (vllm 9.9 on h100_sxm)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"tp_size": 1, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1}),
        (
            {"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2},
            {"tp_size": 4, "pp_size": 2, "attention_dp_size": 1, "moe_tp_size": 4, "moe_ep_size": 1},
        ),
        (
            {"tensor_parallel": 2, "data_parallel": 4, "expert_parallel": True},
            {"tp_size": 2, "pp_size": 1, "attention_dp_size": 4, "moe_tp_size": 1, "moe_ep_size": 8},
        ),
    ],
)
def test_the_layout_is_that_of_what_steps_together(changes: dict[str, Any], expected: dict[str, int]) -> None:
    """Replicas are asked for one by one, unless they share experts: then all GPUs do the experts together."""
    compiler = Compiler()
    choose(compiler, model="qwen3-30b-a3b", **changes)
    options = compiler.calls[0][3]
    assert expected == {key: options[key] for key in expected}


@pytest.mark.parametrize(
    ("model", "precision", "kv_precision", "expected"),
    [
        ("llama-3.1-8b", "fp16", "auto", ("bfloat16", "bfloat16", "bfloat16")),
        ("llama-3.1-8b", "fp8", "fp8", ("fp8", "fp8", "fp8")),
        ("qwen3-30b-a3b", "nvfp4", "bf16", ("nvfp4", "nvfp4", "bfloat16")),
        ("gpt-oss-120b", "bf16", "auto", ("bfloat16", "w4a16_mxfp4", "bfloat16")),
        ("gpt-oss-120b", "mxfp4", "auto", ("bfloat16", "w4a16_mxfp4", "bfloat16")),
    ],
)
def test_precisions_have_the_packages_names(
    model: str, precision: str, kv_precision: str, expected: tuple[str, str, str]
) -> None:
    """Products, experts, and keys and values are asked for as the engine has them; gpt-oss as it was published."""
    compiler = Compiler()
    choose(compiler, model=model, precision=precision, kv_precision=kv_precision)
    options = compiler.calls[0][3]
    assert expected == (options["gemm_quant_mode"], options["moe_quant_mode"], options["kvcache_quant_mode"])


def test_ids_and_names_are_one_model() -> None:
    """A Hugging Face id leads to the same tables as the catalogue's name."""
    compiler = Compiler()
    choose(compiler, model="meta-llama/Llama-3.3-70B-Instruct")
    assert compiler.calls[0][:3] == ("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", "vllm")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accelerator": "rtx-4090"}, "no kernels were measured on rtx-4090"),
        ({"model": "gemma-3-27b"}, "it does not have gemma-3-27b"),
        ({"model": "/models/mine"}, "it knows models by name only, and '/models/mine' is none"),
        ({"precision": "int8"}, "it has no int8 for llama-3.1-8b"),
        ({"precision": "mxfp4"}, "it has no mxfp4 for llama-3.1-8b"),
        ({"kv_precision": "nvfp4"}, "it has no keys and values in nvfp4"),
    ],
)
def test_what_the_package_does_not_know_is_left_to_the_own_model(changes: dict[str, Any], reason: str) -> None:
    """There are no times, the record says what was missing, and the package was not asked."""
    compiler = Compiler()
    expected = TimeSource(times=None, source=f"own model (aiconfigurator-core: {reason})")
    assert expected == choose(compiler, **changes)
    assert compiler.calls == []


def test_a_model_without_a_config_is_not_fetched() -> None:
    """A version of the package that does not carry a model's config is not asked for it."""
    compiler = Compiler()
    library = Library(version="1", models=frozenset(), resolve_version=lambda *_: "9.9", compile=compiler)
    choice = choose_step_times(make_settings(), accelerator="h100-sxm", max_context=4096, library=library)
    assert choice.source == "own model (aiconfigurator-core: it does not have llama-3.1-8b)"
    assert compiler.calls == []


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyError])
def test_missing_tables_are_left_to_the_own_model(error: type[Exception]) -> None:
    """The record says what the package said, without the folders of this machine."""
    choice = choose(Compiler(error=error("no rows at /somewhere/tables for fp8")))
    assert choice.times is None
    assert f"{error.__name__} for meta-llama/Meta-Llama-3.1-8B on h100_sxm" in choice.source
    assert "/somewhere" not in choice.source


def test_a_model_whose_attention_is_not_told_apart_is_left_to_the_own_model() -> None:
    """Mixed steps cannot be put together without the parts of attention."""
    choice = choose(Compiler(kernels=StandIn(splits_attention=False)))
    assert choice.times is None
    assert "attention" in choice.source


def test_kernels_of_another_system_are_left_to_the_own_model() -> None:
    """An estimate that the package carried over from elsewhere is no measurement."""
    choice = choose(Compiler(kernels=StandIn(provenance="xprofile")))
    assert choice == TimeSource(
        times=None, source="own model (aiconfigurator-core: it carried these kernels over from elsewhere (xprofile))"
    )


def test_without_the_package_the_own_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the extra is not installed there is no library, and the record says how to get it."""
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.delitem(sys.modules, "aiconfigurator_core.sdk", raising=False)
    choice = choose_step_times(make_settings(), accelerator="h100-sxm", max_context=4096, library=load_library())
    expected = "own model (aiconfigurator-core: not installed; the extra `aic` brings it)"
    assert choice == TimeSource(times=None, source=expected)


def test_every_accelerator_and_model_is_one_of_ours() -> None:
    """The tables of names do not name what cannot be asked for."""
    assert set(aic.SYSTEMS) <= set(ACCELERATORS)
    assert set(aic.MODELS) <= set(catalogue.names())


@pytest.fixture(scope="module")
def library() -> Library:
    """The package, its tables read once."""
    pytest.importorskip("aiconfigurator_core", reason="the extra is not installed: pip install wattfront[aic]")
    library = load_library()
    assert library is not None
    return library


class TestThePackage:
    """The package itself, 0.12 of which this was written with."""

    def test_it_carries_every_model_named(self, library: Library) -> None:
        """No model of the table would be fetched from the network."""
        assert library.models >= MODELS

    def test_it_has_kernels_of_every_system_named(self, library: Library) -> None:
        """Every system of the table has a current version of vLLM's kernels."""
        versions = {system: library.resolve_version(system, "vllm", "current") for system in aic.SYSTEMS.values()}
        assert all(versions.values())

    @pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
    def test_the_grid_answers_as_the_package_does(self, library: Library, model: str) -> None:
        """Between its lines the grid is within 6 % of the package's own answer, kernels' sizes being what they are."""
        settings = make_settings(model=model, max_batch=256)
        chosen = choose_step_times(settings, accelerator="h100-sxm", max_context=32768, library=library).times
        assert chosen is not None
        options = {**aic._parallelism(settings), **aic._quantisation(model, settings)}
        kernels = library.compile(aic.MODELS[model], "h100_sxm", "vllm", **options)
        for batch, context in ((1, 100), (7, 333), (50, 1500), (100, 777), (250, 3000)):
            expected = kernels.decode_step_latency(batch, context - 2, 2) / 1e3
            assert pytest.approx(expected, rel=0.06) == chosen(batch, context, 0, 0.0)

    def test_steps_are_those_of_the_hardware(self, library: Library) -> None:
        """Llama-3.1-8B in bf16 reads 16 GB a step: no faster than the memory allows, and H200 faster than H100."""
        taken = {}
        for key in ("h100-sxm", "h200-sxm"):
            choice = choose_step_times(make_settings(), accelerator=key, max_context=4096, library=library)
            assert choice.times is not None, choice.source
            taken[key] = choice.times(8, 400.0, 0, 0.0)
            least_s = 15e9 / ACCELERATORS[key].bandwidth_bytes_s
            assert least_s < taken[key] < 2 * least_s
        assert taken["h200-sxm"] < taken["h100-sxm"]

    def test_a_precision_without_tables_is_left_to_the_own_model(self, library: Library) -> None:
        """NVFP4 on H100 is refused by the package, and its words are in the record."""
        choice = choose_step_times(
            make_settings(precision="nvfp4"), accelerator="h100-sxm", max_context=4096, library=library
        )
        assert choice.times is None
        assert "nvfp4" in choice.source

    def test_latent_attention_is_left_to_the_own_model(self, library: Library) -> None:
        """DeepSeek-R1's mixed steps cannot be put together from what the package tells."""
        choice = choose_step_times(
            make_settings(model="deepseek-r1", precision="fp8", tensor_parallel=8),
            accelerator="h200-sxm",
            max_context=4096,
            library=library,
        )
        assert choice.times is None
        assert "attention" in choice.source
