"""What a step asks of each GPU, by hand for tiny models and by its laws for real ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.simulated.work import StepWork
from tests.engine.simulated.layouts import TINY_MIXTURE, decode, make_model


def test_decode_of_a_tiny_model_is_counted_by_hand() -> None:
    """Three decodes over ten tokens each read all weights but the embedding once, and their keys and values."""
    work = decode(make_model(), 3, 10)
    assert work == StepWork(
        num_gpus=1,
        arithmetic="bf16",
        gemm_flops=3 * 2 * (2 * (128 + 64 + 384) + 8 * 32),
        attention_flops=30 * 2 * 4 * 2 * 4,
        weight_bytes=2 * (2 * (128 + 64 + 384 + 16) + 8 * 32),
        kv_bytes=(30 + 3) * 2 * 2 * 4 * 2,
        num_layers=2,
        num_tokens=3,
        num_sampled=3,
    )


def test_prompt_chunk_attends_causally_and_reads_what_came_before() -> None:
    """Two tokens after four attend to 5 + 6, read the keys and values of six, write two, and skip the output matrix."""
    work = make_model().step(num_decodes=0, decode_context=0, chunks=[(4, 2)], num_sampled=0)
    assert (work.num_tokens, work.attention_flops) == (2, (5 + 6) * 2 * 4 * 2 * 4)
    assert (work.gemm_flops, work.weight_bytes) == (2 * 2 * 2 * 576, 2 * 2 * 592)
    assert work.kv_bytes == (6 + 2) * 2 * 2 * 4 * 2


def test_tensor_parallelism_cuts_all_but_the_last_head_and_sums_blocks() -> None:
    """On two GPUs the one key-value head lies on both; five sums of 16 bytes and the logits' halves are sent."""
    work = decode(make_model(tensor_parallel=2), 3, 10)
    assert work.weight_bytes == 2 * (2 * (64 + 64 + 192 + 16) + 8 * 16)
    assert work.kv_bytes == (30 + 3) * 2 * 2 * 4 * 2
    assert (work.num_scale_up, work.scale_up_bytes) == (5 + 1, 3 * (5 * 16 + 32))
    assert (work.num_scale_out, work.scale_out_bytes) == (0, 0)


def test_windowed_layers_read_their_window_alone() -> None:
    """Of two layers with two heads of four, the local one reads four tokens of ten, and a chunk attends within it."""
    model = make_model(TINY_MIXTURE)
    assert decode(model, 3, 10).kv_bytes == (3 * 10 + 3 * 4 + 3 * 2) * 2 * 2 * 4 * 2
    work = model.step(num_decodes=0, decode_context=0, chunks=[(3, 3)], num_sampled=0)
    assert work.attention_flops == ((4 + 5 + 6) + (4 + 4 + 4)) * 4 * 2 * 4
    assert work.kv_bytes == ((3 + 3) + (3 + 3) + 3 * 2) * 2 * 2 * 4 * 2


def test_experts_touched_are_those_expected_of_independent_choices() -> None:
    """One token touches two of four experts a layer, two tokens three; each is read once."""
    model = make_model(TINY_MIXTURE)
    one, two = decode(model, 1, 10), decode(model, 2, 10)
    assert (one.num_experts, two.num_experts) == (2 * 2, 2 * 3)
    bytes_per_expert = 2 * (3 * 8 * 4) + 2 * (2 * 4 + 8)
    assert two.weight_bytes - one.weight_bytes == 2 * bytes_per_expert
    assert two.gemm_flops - one.gemm_flops == 2 * (2 * (256 + 2 * 3 * 8 * 4) + 8 * 32)


def test_expert_parallel_spreads_experts_over_replicas() -> None:
    """Two replicas sharing four experts hold two each, touch those by all tokens, and send tokens twice a layer."""
    alone = make_model(TINY_MIXTURE, data_parallel=2)
    shared = make_model(TINY_MIXTURE, data_parallel=2, expert_parallel=True)
    assert alone.weight_bytes_resident - shared.weight_bytes_resident == 2 * 2 * (2 * 96 + 2 * 16)
    assert decode(alone, 2, 10).num_experts == 2 * 2
    work = decode(shared, 2, 10)
    assert work.num_experts == 2 * 3 / 2
    # Two choices among two GPUs reach 1.5 of them, half of which are elsewhere; 16 bytes each way, one token a GPU.
    assert (work.num_scale_up, work.scale_up_bytes) == (2 * 2, 2 * 1.5 / 2 * (16 + 16))


def test_pipeline_halves_the_work_and_hands_activations_on() -> None:
    """Two stages have half the layers each; one border carries each token's activations."""
    one, two = make_model("llama-3.1-8b"), make_model("llama-3.1-8b", pipeline_parallel=2)
    whole, half = decode(one, 4, 100), decode(two, 4, 100)
    assert (half.num_stages, half.num_layers) == (2, 16)
    assert (half.weight_bytes, half.kv_bytes) == (whole.weight_bytes / 2, whole.kv_bytes / 2)
    assert (half.scale_up_bytes, half.num_scale_up) == (4 * 4096 * 2 / 2, 1 / 2)


def test_replicas_share_the_tokens_and_each_read_all_weights() -> None:
    """Data parallelism divides keys, values and products by the replicas, and reads weights in every one."""
    one, four = make_model(), make_model(data_parallel=4)
    whole, quarter = decode(one, 8, 10), decode(four, 8, 10)
    assert (quarter.num_gpus, quarter.num_tokens, quarter.num_sampled) == (4, 2, 2)
    assert (quarter.kv_bytes, quarter.gemm_flops) == (whole.kv_bytes / 4, whole.gemm_flops / 4)
    assert quarter.weight_bytes == whole.weight_bytes


def test_latent_prompts_unfold_what_came_before() -> None:
    """A later chunk of a prompt multiplies earlier cached vectors by the unfolding weights of all layers once more."""
    model = make_model("deepseek-r1", precision="fp8")
    first = model.step(num_decodes=0, decode_context=0, chunks=[(0, 100)], num_sampled=0)
    later = model.step(num_decodes=0, decode_context=0, chunks=[(50, 100)], num_sampled=0)
    assert later.gemm_flops - first.gemm_flops == pytest.approx(2 * 50 * 61 * 512 * 128 * 256)
    assert first.attention_flops == pytest.approx(61 * 2 * 128 * (128 + 64 + 128) * 5050)


def test_latent_decodes_work_on_the_cached_vectors() -> None:
    """A decoded token scores 512 + 64 values per head and cached token, and sums 512."""
    work = decode(make_model("deepseek-r1", precision="fp8"), 1, 1000)
    assert work.attention_flops == pytest.approx(61 * 2 * 128 * (576 + 512) * 1000)


def test_recurrent_state_costs_the_same_at_any_length() -> None:
    """A Mamba layer's state is read and written once per sequence and step, however long the sequence is."""
    model = make_model("nemotron-nano-9b-v2")
    short, long = decode(model, 1, 100), decode(model, 1, 200)
    per_token = 4 * 2 * 8 * 128 * 2
    state = 27 * 2 * (128 * 80 * 128 + (128 * 80 + 2 * 8 * 128) * 3)
    assert long.kv_bytes - short.kv_bytes == 100 * per_token
    assert short.kv_bytes == 101 * per_token + 2 * state
    assert (model.kv_bytes_per_token, model.kv_bytes_fixed_per_sequence) == (per_token, state)


@given(num=st.integers(1, 512), context=st.integers(1, 10_000), more=st.integers(1, 1000))
def test_more_context_is_more_bytes_and_flops(num: int, context: int, more: int) -> None:
    """A longer context never reads or computes less, and reads weights the same."""
    model = make_model(TINY_MIXTURE)
    short, long = decode(model, num, context), decode(model, num, context + more)
    assert long.kv_bytes > short.kv_bytes
    assert long.attention_flops > short.attention_flops
    assert (long.weight_bytes, long.gemm_flops) == (short.weight_bytes, short.gemm_flops)


@given(first=st.integers(0, 300), second=st.integers(0, 300), context=st.integers(1, 5000))
def test_decode_work_of_dense_models_is_affine(first: int, second: int, context: int) -> None:
    """Two batches together cost what each costs alone, but for the weights, which are read once."""
    model = make_model("llama-3.1-8b", tensor_parallel=2)
    parts, both = (
        (decode(model, first, context), decode(model, second, context)),
        decode(model, first + second, context),
    )
    for name in ("gemm_flops", "attention_flops", "kv_bytes", "scale_up_bytes", "num_tokens", "num_sampled"):
        assert getattr(both, name) == pytest.approx(sum(getattr(part, name) for part in parts))


@given(num=st.integers(1, 4096))
def test_experts_touched_grow_towards_all(num: int) -> None:
    """More tokens touch more experts, never more than there are, and many touch nearly all."""
    model = make_model("qwen3-30b-a3b")
    all_experts = 48 * 128
    few, more = decode(model, num, 1).num_experts, decode(model, num + 1, 1).num_experts
    assert few * (1 + 1e-12) >= 48 * 8
    assert few <= more <= all_experts
    assert decode(model, 4096, 1).num_experts == pytest.approx(all_experts)


@given(start=st.integers(0, 40), counts=st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_a_prompt_costs_the_same_attention_however_it_is_cut(start: int, counts: list[int]) -> None:
    """Chunks one after another attend to as many tokens as the whole at once, windows included."""
    model = make_model(TINY_MIXTURE)
    chunks, position = [], start
    for count in counts:
        chunks.append((position, count))
        position += count
    whole = model.step(num_decodes=0, decode_context=0, chunks=[(start, sum(counts))], num_sampled=0)
    cut = [model.step(num_decodes=0, decode_context=0, chunks=[chunk], num_sampled=0) for chunk in chunks]
    assert sum(work.attention_flops for work in cut) == whole.attention_flops
    assert sum(work.kv_bytes for work in cut) >= whole.kv_bytes
