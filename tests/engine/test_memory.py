"""What a launch takes is told before anything is allocated, and what does not fit is refused with the numbers."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.embedded import free_memory, runner
from engine.embedded.config import ModelConfig, model_config
from engine.embedded.free_memory import group_free_bytes
from engine.embedded.memory import Budget, MemoryNeed, gpu_budget, host_budget, predict, require_room
from engine.errors import NotEnoughMemory
from engine.host import EngineHost
from engine.settings import EngineSettings
from tests.engine.conftest import OpenTiny
from tests.tiny_model import tiny_config

GIB = 2**30
#: 1.2 billion parameters in the shape of Llama-3.2-1B.
CONFIG: ModelConfig = model_config(
    tiny_config(
        vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True,
    ),
    source="test",
)  # fmt: skip


def budget(num_gib: float, kv_share: float = 1.0) -> Budget:
    return Budget(num_bytes=int(num_gib * GIB), limit="are free", kv_share=kv_share)


def settings_of(**changes: Any) -> EngineSettings:
    chosen: dict[str, Any] = {"precision": "bf16", "max_context": 4096} | changes
    return EngineSettings(model="llama", **chosen)


def need_of(
    num_gib: float = 80.0,
    *,
    kept_bytes: int = 2,
    hidden_bytes: int = 4,
    kv_share: float = 1.0,
    has_graphs: bool = False,
    **changes: Any,
) -> MemoryNeed:
    settings = settings_of(**changes)
    return predict(
        CONFIG, settings, max_context=settings.max_context or 8192, hidden_bytes=hidden_bytes,
        kept_bytes=kept_bytes, budget=budget(num_gib, kv_share), has_graphs=has_graphs,
    )  # fmt: skip


class TestPrediction:
    """Bytes by what takes them."""

    def test_weights_are_layers_and_two_tables(self) -> None:
        """A tied head is a second copy of the embedding, and a layer's weights are as wide as the precision says."""
        table = 128_256 * 2048
        layers = CONFIG.num_parameters - table

        assert need_of(precision="bf16").weight_bytes == 2 * (2 * table + layers)
        assert need_of(precision="fp32", kept_bytes=4).weight_bytes == 4 * (2 * table + layers)
        assert need_of(precision="int8", kept_bytes=4).weight_bytes == 4 * 2 * table + layers
        assert need_of(precision="int4", kept_bytes=4).weight_bytes == 4 * 2 * table + layers * 9 // 16

    def test_what_may_be_emulated_counts_in_fp32(self) -> None:
        """A narrow format that the device may lack is then held as rounded fp32 values."""
        native, emulated = (need_of(precision="fp8", can_emulate=may) for may in (False, True))

        assert emulated.weight_bytes > 2 * native.weight_bytes

    def test_graphs_have_a_step_and_a_block_of_their_own(self) -> None:
        """Graphs keep what lives within a step apart from what steps with prompts use, and pad with a block."""
        plain, recorded = need_of(), need_of(has_graphs=True)

        assert recorded.step_bytes == 2 * plain.step_bytes + plain.kv_bytes // plain.num_blocks
        assert recorded.num_blocks == plain.num_blocks

    def test_the_cache_has_room_for_every_sequence_where_that_fits(self) -> None:
        """Without a number given there are blocks for max_batch sequences of max_context, and their bytes."""
        need = need_of(max_batch=8, block_size=16)

        assert need.num_blocks == 8 * 4096 // 16
        assert need.kv_bytes == 8 * 4096 * (2 * 16 * 8 * 64 * 2)
        assert need_of(max_batch=8, kv_precision="fp8").kv_bytes == need.kv_bytes // 2

    def test_a_number_of_blocks_that_is_given_counts_as_it_is(self) -> None:
        """num_kv_blocks is neither raised to what one sequence needs nor cut to what fits."""
        assert [need_of(num_gib, num_kv_blocks=n).num_blocks for num_gib, n in ((80, 3), (1, 10**6))] == [3, 10**6]

    def test_half_of_what_is_left_on_a_shared_machine(self) -> None:
        """A share of the budget leaves room for others: fewer blocks than the whole of it would give."""
        whole, half = (need_of(16, max_batch=256, kv_share=share) for share in (1.0, 0.5))

        assert half.kv_bytes < whole.kv_bytes
        assert whole.kv_bytes == pytest.approx(2 * half.kv_bytes, rel=0.001)

    def test_logits_of_a_large_vocabulary_are_the_largest_step(self) -> None:
        """Scoring a chunk holds its fp32 logits twice: at a vocabulary of 128k they are the most that a step holds."""
        assert need_of(prefill_chunk=2048, max_context=2048).step_bytes == 2 * 4 * 2048 * 128_256

    def test_the_head_of_a_large_vocabulary_is_the_widest_moment_of_loading(self) -> None:
        """Before any layer is there the head is packed: three fp32 tables in all, four where it is not tied."""
        shape = {"vocab_size": 131_072, "hidden_size": 768, "intermediate_size": 512, "num_attention_heads": 12}
        table = 4 * 131_072 * 768
        for is_tied, copies in ((True, 3), (False, 4)):
            config = model_config(tiny_config(**shape, tie_word_embeddings=is_tied), source="test")
            need = predict(config, settings_of(), max_context=64, hidden_bytes=4, kept_bytes=2, budget=budget(80))

            assert need.weight_bytes + need.loading_bytes == copies * table + 128 * 2**20

    def test_capped_scores_count(self) -> None:
        """Capped scores are all there at once: of every head, query of a chunk and key, four copies in fp32."""
        capped = dataclasses.replace(CONFIG, attention_softcap=50.0)
        chosen = settings_of(prefill_chunk=256)
        plain_bytes, capped_bytes = (
            predict(config, chosen, max_context=4096, hidden_bytes=4, kept_bytes=2, budget=budget(80)).step_bytes
            for config in (CONFIG, capped)
        )

        assert 0 < capped_bytes - 4 * 4 * 32 * 256 * 4096 <= plain_bytes

    @given(
        num_gib=st.floats(0.1, 100),
        max_batch=st.integers(1, 512),
        chunk=st.integers(1, 8192),
        context=st.integers(1, 8192),
    )
    def test_a_cache_of_unstated_size_holds_one_sequence_and_keeps_the_budget(
        self, num_gib: float, max_batch: int, chunk: int, context: int
    ) -> None:
        """The cache always has room for one sequence, never for more than max_batch, and fits the budget if it can."""
        need = need_of(num_gib, max_batch=max_batch, prefill_chunk=chunk, max_context=context)

        per_sequence = -(-context // 16)
        assert per_sequence <= need.num_blocks <= max_batch * per_sequence
        if need.num_blocks > per_sequence:
            assert need.weight_bytes + need.kv_bytes + need.step_bytes <= num_gib * GIB

    @given(
        field=st.sampled_from(["max_batch", "prefill_chunk", "max_context", "num_kv_blocks"]),
        value=st.integers(1, 4096),
    )
    def test_more_of_anything_never_takes_less(self, field: str, value: int) -> None:
        """Need grows with batch, chunk, context and blocks."""
        chosen: list[dict[str, Any]] = [{field: value}, {field: value + 64}]
        smaller, larger = (need_of(**changes) for changes in chosen)

        assert smaller.total_bytes <= larger.total_bytes


class TestRefusal:
    """What does not fit raises NotEnoughMemory with numbers and a remedy."""

    def test_it_names_the_parts_the_limit_and_what_to_change(self) -> None:
        """Each part, the blocks, what is free and the settings that would need less are in the message."""
        settings = settings_of(max_context=8192)
        words = (
            r"llama in bf16 needs .* GiB: 2\.79 GiB for weights \(.* more while they are loaded\), 0\.25 GiB for 512 "
            r"KV-cache blocks of 16 tokens and .* for its largest step; 2\.90 GiB are free\. Choose a smaller "
            r"max_context, max_batch, num_kv_blocks or prefill_chunk, or a narrower precision"
        )
        need = dataclasses.replace(need_of(2.9, max_context=8192), loading_bytes=0)

        with pytest.raises(NotEnoughMemory, match=words):
            require_room(need, budget(2.9), settings)

    def test_weights_that_do_not_fit_have_another_remedy(self) -> None:
        """No batch is small enough where weights alone are too much."""
        with pytest.raises(NotEnoughMemory, match=r"Choose a narrower precision or a smaller model$"):
            require_room(need_of(1.0), budget(1.0), settings_of())

    def test_what_fits_exactly_is_let_through(self) -> None:
        """A need of all that is free is no need of more."""
        need = need_of(max_batch=1)

        require_room(need, Budget(num_bytes=need.total_bytes, limit="are free", kv_share=1.0), settings_of())
        with pytest.raises(NotEnoughMemory):
            require_room(need, Budget(num_bytes=need.total_bytes - 1, limit="are free", kv_share=1.0), settings_of())

    def test_an_engine_refuses_before_it_allocates(self, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
        """With less free than the tiny model needs, the engine is refused and no weight is read."""
        monkeypatch.setattr(runner, "budget_of", lambda device, fraction: budget(0.001))
        monkeypatch.setattr(runner, "Weights", None)

        with pytest.raises(NotEnoughMemory, match="tiny in fp32 needs"):
            open_tiny()

    def test_loading_leaves_no_holes(self, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
        """An engine trims the heap once, when its weights are in place; where the C library cannot, nothing happens."""
        trims: list[None] = []
        monkeypatch.setattr(runner, "trim_heap", lambda: trims.append(None))
        opened = open_tiny()
        free_memory.trim_heap()
        monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
        free_memory.trim_heap()

        assert len(trims) == 1
        assert opened.num_in_flight == 0

    def test_it_keeps_its_kind_through_a_host(self, tiny_folder: Path) -> None:
        """A cache of a petabyte is out_of_memory from a child process as well, and nothing was allocated for it."""
        settings = EngineSettings(model="tiny", max_context=256, num_kv_blocks=10**11, num_threads=1)

        with pytest.raises(NotEnoughMemory, match="for 100000000000 KV-cache blocks of 16 tokens") as raised:
            EngineHost(settings, tiny_folder, model_hash="abc")

        assert raised.value.kind == "out_of_memory"


class TestBudget:
    """What may be filled."""

    def test_a_control_group_counts_where_it_is_tighter(self) -> None:
        """The smaller of machine and control group is the limit, and the words say which."""
        tight, loose = host_budget(8 * GIB, 2 * GIB), host_budget(2 * GIB, 8 * GIB)

        assert (tight.num_bytes, tight.limit) == (2 * GIB, "are left by the control group's limit")
        assert (loose.num_bytes, loose.limit) == (2 * GIB, "are free on this machine")
        assert host_budget(8 * GIB, None).num_bytes == 8 * GIB

    def test_a_gpu_is_filled_to_its_fraction(self) -> None:
        """What others hold counts towards the fraction, and nothing is left where they hold more."""
        found = gpu_budget(70 * GIB, 80 * GIB, 0.9)

        assert (found.num_bytes, found.kv_share) == (62 * GIB, 1.0)
        assert "0.9 (gpu_memory_fraction) of the GPU's 80.00 GiB" in found.limit
        assert gpu_budget(5 * GIB, 80 * GIB, 0.9).num_bytes == 0


class TestControlGroups:
    """Limits that the kernel puts on this process beside the machine's size."""

    @pytest.mark.parametrize(
        ("line", "root", "files"),
        [
            ("0::/pod/engine", "", ("memory.max", "memory.current", "inactive_file")),
            (
                "4:cpu,memory:/pod/engine",
                "memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            ),
        ],
        ids=["version 2", "version 1"],
    )
    def test_the_tightest_group_above_counts(
        self, line: str, root: str, files: tuple[str, str, str], tmp_path: Path
    ) -> None:
        """Of a group and those above it the one with least left counts, with droppable page cache as free."""
        membership = tmp_path / "membership"
        membership.write_text(f"9:name=systemd:/\n{line}\n")
        mount = tmp_path / "mount"
        for name, limit, used, droppable in (("pod", 1000, 900, 50), ("pod/engine", 800, 500, 100)):
            folder = mount / root / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / files[0]).write_text(f"{limit}\n")
            (folder / files[1]).write_text(f"{used}\n")
            (folder / "memory.stat").write_text(f"anon 3\n{files[2]} {droppable}\n")

        assert group_free_bytes(mount, membership) == 150

    def test_no_limit_is_none(self, tmp_path: Path) -> None:
        """A group without a limit, a group that is not shown and a kernel without groups limit nothing."""
        membership = tmp_path / "membership"
        membership.write_text("0::/pod\n")
        folder = tmp_path / "mount" / "pod"
        folder.mkdir(parents=True)
        for name, content in (("memory.max", "max"), ("memory.current", "7"), ("memory.stat", "")):
            (folder / name).write_text(content)

        assert group_free_bytes(tmp_path / "mount", membership) is None
        assert group_free_bytes(tmp_path / "elsewhere", membership) is None
        assert group_free_bytes(tmp_path / "mount", tmp_path / "no such file") is None
