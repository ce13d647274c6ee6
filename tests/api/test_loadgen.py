"""MLPerf's own LoadGen drives our engine, and both tell the same of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.errors import UsageError
from api.loadgen import LATENCIES, PERCENTS, LoadGenRun, LoadGenSettings, drive
from api.loadgen_logs import SUMMARY, read_schedule, read_summary
from engine.embedded.loop import EmbeddedEngine
from engine.errors import EngineDied
from engine.load import Load, Observer
from engine.request import Request, RequestRecord
from engine.settings import EngineSettings
from tests.tiny_model import write_tiny_model
from tuner.mlperf import TailState, preset_of, tail_verdict

NUM_QUERIES = 30
NUM_TOKENS = 6
#: By how much the clocks of both may be matched wrongly: the fastest of all hand-overs to the engine.
CLOCKS_MS = 5.0


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedEngine:
    settings = EngineSettings(model="tiny", precision="fp32", max_batch=8, max_context=64, num_threads=1)
    return EmbeddedEngine(settings, write_tiny_model(tmp_path_factory.mktemp("model")))


def make_samples(num: int = 8, *, max_tokens: int = NUM_TOKENS) -> list[Request]:
    """Requests as a workload draws them."""
    return [
        Request(request_id=f"s{i}", prompt_token_ids=tuple(range(i, i + 12)), max_tokens=max_tokens, ignore_eos=True)
        for i in range(num)
    ]


def make_settings(scenario: str) -> LoadGenSettings:
    """Settings that are over within a second."""
    preset = preset_of(f"mlperf:{scenario}:llama3.1-8b")
    return LoadGenSettings(preset=preset, num_queries=NUM_QUERIES, min_duration_s=0.5, target_qps=50.0)


def compared(run: LoadGenRun) -> dict[str, float]:
    """Return by how many milliseconds LoadGen's percentiles are above ours, of those that it tells."""
    both = {
        f"{latency}_p{percent}": (run.summary.percentile_ms(latency, percent), run.percentile_ms(latency, percent))
        for latency in LATENCIES
        for percent in PERCENTS
    }
    return {name: theirs - ours for name, (theirs, ours) in both.items() if theirs is not None and ours is not None}


@pytest.mark.parametrize(
    ("scenario", "num_figures"), [("server", 12), ("interactive", 12), ("singlestream", 12), ("offline", 4)]
)
def test_both_tell_the_same_percentiles(
    opened: EmbeddedEngine, tmp_path: Path, scenario: str, num_figures: int
) -> None:
    """LoadGen's percentiles are ours, but for how late it heard of tokens; Offline has no TTFT and no TPOT."""
    run = drive(opened, make_samples(), make_settings(scenario), tmp_path)
    above_ms = compared(run)
    assert len(above_ms) == num_figures
    assert all(abs(one_ms) <= run.max_tell_ms + CLOCKS_MS for one_ms in above_ms.values()), above_ms
    assert len(run.records) >= NUM_QUERIES
    assert run.num_failed == 0
    assert {len(record.token_times_s) for record in run.records} == {NUM_TOKENS}


def test_early_stopping_is_loadgens(opened: EmbeddedEngine, tmp_path: Path) -> None:
    """LoadGen asks for as many more queries as our tail rule does."""
    run = drive(opened, make_samples(), make_settings("server"), tmp_path)
    limit = next(limit for limit in run.settings.preset.limits if limit.metric == "tpot_p99_ms")
    told = tail_verdict(limit, run.samples_ms("tpot"))
    assert told.state is TailState.TOO_FEW
    text = (tmp_path / SUMMARY).read_text()
    assert f"Would need to run at least {told.num_needed - told.num_queries} more queries" in text


def test_short_settings_are_not_valid_for_submission() -> None:
    """A run that is too short says by how much, and every run that its prompts are not the data set's."""
    assert make_settings("server").why_not_valid == (
        "min duration 0.5 s of 600 s",
        "30 queries of 459",
        "synthetic prompts, no accuracy run",
    )
    full = LoadGenSettings(
        preset=preset_of("mlperf:offline:llama3.1-8b"), num_queries=13_368, min_duration_s=600, target_qps=20.0
    )
    assert full.why_not_valid == ("synthetic prompts, no accuracy run",)


def test_an_output_of_one_token_is_refused(opened: EmbeddedEngine, tmp_path: Path) -> None:
    """A request without a second token has no time per output token; LoadGen would divide by nothing."""
    with pytest.raises(UsageError, match="needs 2"):
        drive(opened, make_samples(max_tokens=1), make_settings("server"), tmp_path)


class _DyingEngine:
    """Serves a few steps and dies."""

    def __init__(self, opened: EmbeddedEngine) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> object:
        return getattr(self._opened, name)

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        num_steps = 0

        def watched(progress: object) -> bool:
            nonlocal num_steps
            num_steps += 1
            if num_steps > 5:
                raise EngineDied("the engine ended")
            return observer(progress)  # type: ignore[arg-type] # passed on

        return self._opened.run(load, watched)


def test_loadgen_does_not_wait_for_a_dead_engine(opened: EmbeddedEngine, tmp_path: Path) -> None:
    """When the engine dies amid a run its error is raised, and LoadGen's thread has ended."""
    with pytest.raises(EngineDied):
        drive(_DyingEngine(opened), make_samples(), make_settings("offline"), tmp_path)  # type: ignore[arg-type] # by parts
    assert read_summary(tmp_path).verdict == "INVALID"


def test_the_schedule_is_read_in_the_order_of_issue(tmp_path: Path) -> None:
    """Due times come by the number of the sample, whatever order they ended in; other lines are left alone."""
    (tmp_path / "mlperf_log_trace.json").write_text(
        '{"traceEvents":[\n'
        '{"name":"LogDetail","ph":"X","pid":1,"tid":1,"ts":1.5,"dur":4.0,"args":{"key":""loadgen_version""}},\n'
        '{"name":"Sample","cat":"default","ph":"b","pid":1,"id":1,"ts":2000.5,"args":{"sample_seq":1}},\n'
        '{"name":"Sample","cat":"default","ph":"e", "pid":1,"id":1,"ts":3000.5},\n'
        '{"name":"Sample","cat":"default","ph":"b","pid":1,"id":0,"ts":1000.5,"args":{"sample_seq":0}},\n'
    )
    assert read_schedule(tmp_path) == [0.0010005, 0.0020005]


def test_a_run_that_did_not_end_is_told(tmp_path: Path) -> None:
    """An empty summary and one that is not there are refused with the file's name."""
    with pytest.raises(UsageError, match="no such file"):
        read_summary(tmp_path)
    (tmp_path / SUMMARY).write_text("")
    with pytest.raises(UsageError, match="did not end"):
        read_summary(tmp_path)
