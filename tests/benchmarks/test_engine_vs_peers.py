"""What is made of contenders' runs: medians, the two that are compared, and where tokens part."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import engine_vs_peers
from benchmarks.contender import Run, RunningContender
from benchmarks.contenders import chosen
from benchmarks.engine_vs_peers import OUTPUT, Figures, agreement, figures_of, interleaved, ratios, table
from tests.benchmarks.test_contender import fake


def figures(tok_s: float, foreign_cores: float = 0.01) -> Figures:
    return Figures(tok_s=tok_s, ttft_ms=100.0, tpot_ms=10.0, foreign_cores=foreign_cores)


def run_of(*token_ids: tuple[int, ...], total_s: float = 1.0, ttft_s: float = 0.1) -> Run:
    return Run(total_s=total_s, ttft_s=(ttft_s,) * len(token_ids), tpot_s=(0.01,) * len(token_ids), token_ids=token_ids)


FOUND = {
    "ours-fp32": figures(30.0),
    "ours-bf16": figures(40.0),
    "ours-int8": figures(60.0),
    "hf": figures(10.0),
    "vllm-compiled": figures(20.0),
    "vllm-eager": figures(25.0),
}


def test_figures_are_medians() -> None:
    """One slow run of three moves nothing; tokens per second count every request's tokens over the whole time."""
    runs = [
        run_of((1, 2), (3, 4), total_s=total_s, ttft_s=ttft_s) for total_s, ttft_s in ((1, 0.1), (2, 0.2), (9, 0.9))
    ]

    assert figures_of(runs, [0.0, 0.5, 0.1]) == Figures(tok_s=2.0, ttft_ms=200.0, tpot_ms=10.0, foreign_cores=0.1)


def test_the_fastest_that_passes_the_gate_is_compared_with_the_best_form_of_a_peer() -> None:
    """A faster precision that fails the gate does not count; of vLLM's two forms the faster does; names are told."""
    found = ratios(FOUND, ["ours-fp32", "ours-bf16"])

    assert found == {"hf": (4.0, "ours-bf16", "hf"), "vllm": (1.6, "ours-bf16", "vllm-eager")}
    assert "1.60 x vllm (ours-bf16 over vllm-eager)" in table(4, FOUND, found)


def test_a_busy_machine_is_said() -> None:
    """Figures that were taken while others computed are marked, and only those."""
    assert "NOT QUIET" in table(1, {"hf": figures(10.0, foreign_cores=0.5)}, {})
    assert "NOT QUIET" not in table(1, {"hf": figures(10.0)}, {})


def test_without_peers_there_are_no_ratios() -> None:
    """Ours alone is compared with nobody."""
    assert ratios({"ours-fp32": figures(30.0)}, ["ours-fp32"]) == {}


def test_where_tokens_part_is_told() -> None:
    """The first request that differs, after how many tokens, and how many do."""
    reference = run_of((1, 2, 3), (4, 5, 6), (7, 8, 9))
    other = run_of((1, 2, 3), (4, 5, 0), (7, 0, 0))

    assert agreement({"ours-fp32": reference, "hf": reference}) == "  tokens of hf and ours-fp32: the same"
    assert agreement({"ours-fp32": reference, "hf": other}).endswith("2 of 3 part, first request 2 after 1 tokens")


def test_a_peer_that_dies_is_left_out_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every contender has as many runs as were asked for, but one that died: it is named with its last words."""
    monkeypatch.setattr(engine_vs_peers, "wait_until_quiet", lambda: None)
    with ExitStack() as stack:
        contenders = [fake("ours-fp32"), fake("vllm-eager", fault="death"), fake("hf")]
        running = [stack.enter_context(RunningContender(one)) for one in contenders]
        found = interleaved(running, [[1], [2]], 2)

    assert {name: len(runs) for name, runs in found.items()} == {"ours-fp32": 2, "hf": 2}
    assert all(len(ids) == OUTPUT for runs in found.values() for run, _ in runs for ids in run.token_ids)
    assert "left out: vllm-eager: its process ended" in capsys.readouterr().out


@pytest.mark.parametrize(("hf_python", "names"), [("", []), (sys.executable, ["hf"])])
def test_a_peer_without_an_interpreter_is_left_out(hf_python: str, names: list[str]) -> None:
    """Peers are optional; our fp32 is always there, once, for the gate and the tokens."""
    arguments = Namespace(
        ours=["bf16", "fp32"], hf_python=hf_python, vllm_python="", llamacpp_python="", vllm=["eager"], llamacpp=["f16"]
    )

    found = [one.name for one in chosen(arguments, Path("model"), max_batch=4, max_context=256)]

    assert found == ["ours-fp32", "ours-bf16", *names]
