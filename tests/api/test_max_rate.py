"""Windows at any rate, and the command that searches the highest."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from api.cli import cli
from api.max_rate import slice_counts
from engine.request import FinishReason
from tests.tuner.factories import make_record
from tuner.request import Limit
from tuner.sequential import Count

TTFT = Limit(metric="ttft_p99_ms", bound_ms=1000.0)
TPOT = Limit(metric="tpot_p99_ms", bound_ms=100.0)
E2E = Limit(metric="e2e_p99_ms", bound_ms=1000.0)
OPTIONS = ("max-rate", "--model", "llama-3.1-8b", "--device", "simulated:h100-sxm")


def total(counts: tuple[Count, ...]) -> tuple[int, int]:
    return sum(one.num for one in counts), sum(one.num_over for one in counts)


class TestSlices:
    """Which requests of a window count, and how."""

    def test_one_that_still_waits_is_late(self) -> None:
        """A request cancelled without a token counts as over once it is older than the limit, and else not at all."""
        old = make_record(arrival_s=1.0, finish_reason=FinishReason.CANCELLED)
        young = make_record(arrival_s=9.5, finish_reason=FinishReason.CANCELLED)
        assert total(slice_counts([old, young], TTFT, 0.0, 10.0)) == (1, 1)

    def test_a_first_token_is_enough_for_a_ttft(self) -> None:
        """A request that was cancelled amid its output has a TTFT, no TPOT, and an end that is late."""
        cut = make_record(1.5, 1.6, arrival_s=1.0, finish_reason=FinishReason.CANCELLED)
        assert [total(slice_counts([cut], limit, 0.0, 10.0)) for limit in (TTFT, TPOT, E2E)] == [(1, 0), (0, 0), (1, 1)]

    def test_a_tpot_counts_where_its_request_ended(self) -> None:
        """Of requests that came before the window a TPOT counts, a TTFT does not."""
        record = make_record(-0.5, 1.5, arrival_s=-1.0)
        assert total(slice_counts([record], TPOT, 0.0, 10.0)) == (1, 1)
        assert total(slice_counts([record], TTFT, 0.0, 10.0)) == (0, 0)

    def test_one_that_failed_is_over_every_limit(self) -> None:
        """A request that ended in error counts as over."""
        failed = make_record(1.1, arrival_s=1.0, finish_reason=FinishReason.ERROR, error="numerics: nan")
        assert [total(slice_counts([failed], limit, 0.0, 10.0)) for limit in (TTFT, TPOT, E2E)] == [(1, 1)] * 3


class TestCommand:
    """`wattfront max-rate` on a simulated device."""

    def test_it_gives_an_interval(self) -> None:
        """The rate that holds is below the one that does not, every rate tried is told, and all is labelled."""
        options = ("--workload", "server:prompt=100-200,output=20-60", "--sla", "tpot_p90_ms<=9", "--first", "40")
        bounds = ("--tolerance", "0.5", "--window", "5", "--warmup", "2", "--point", "max_batch=64", "--json")
        ended = CliRunner().invoke(cli, [*OPTIONS, *options, *bounds])
        assert ended.exit_code == 0, ended.output
        found = json.loads(ended.stdout)
        assert 0 < found["holds_per_s"] < found["missed_per_s"]
        assert found["is_simulated"] is True
        assert found["at_holds"]["energy_method"] == "simulated"
        assert found["point"]["max_batch"] == 64
        assert len(ended.stderr.splitlines()) == sum(tried["num_windows"] for tried in found["rates"])

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ((), "sla is []"),
            (("--sla", "itl_p99_ms<=10"), "sla.itl_p99_ms is 10.0"),
            (("--sla", "ttft_p99_ms<=20000"), "window.window_s is 30.0"),
            (("--sla", "ttft_p99_ms<=100", "--workload", "server:rate=3"), "--first says where to begin"),
            (("--sla", "ttft_p99_ms<=100", "--workload", "closed:concurrency=3"), "only server and interactive"),
            (("--scenario", "mlperf:server:llama3.1-8b", "--sla", "ttft_p99_ms<=1"), "mlperf:server:llama3.1-8b sets"),
            (("--sla", "ttft_p99_ms<=100", "--first", "0"), "first_per_s is 0.0"),
        ],
    )
    def test_what_cannot_be_searched_is_refused(self, options: tuple[str, ...], words: str) -> None:
        """An option that makes no search is refused with its name before anything runs."""
        ended = CliRunner().invoke(cli, [*OPTIONS, *options])
        assert words in str(ended.exception)
