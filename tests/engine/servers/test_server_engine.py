"""A server as an engine: started, checked, loaded, explained when it fails, and gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.errors import (
    EngineDied,
    EngineError,
    InvalidSettings,
    NotEnoughMemory,
    NotScored,
    PackageMissing,
    PortInUse,
    RequestRefused,
    ServerNotHealthy,
    WrongModel,
)
from engine.load import Progress
from engine.request import FinishReason
from engine.servers.process import free_port, is_free
from engine.servers.profile import ServerProfile
from engine.servers.server_engine import ServerEngine
from engine.serving import ServingEngine
from tests.engine.servers.stubs import MODEL, make_load, make_profile, make_settings


def keep_on(_: Progress) -> bool:
    return True


def opened(mode: str = "ok", **changes: object) -> ServerEngine:
    return ServerEngine(make_settings(), make_profile(mode, **changes), model=MODEL)


@pytest.fixture(scope="module")
def serving() -> Iterator[ServerEngine]:
    """One healthy server for what leaves it as it is."""
    engine = opened()
    yield engine
    engine.close()


def test_what_was_opened_is_what_the_server_says(serving: ServerEngine) -> None:
    """Version, context and cache are the server's own words, and the processes are those of its group."""
    seam: ServingEngine = serving
    info = seam.info
    assert (info.engine, info.version, info.model, info.max_context, info.num_kv_blocks) == (
        "vllm", "0.0.1", MODEL, 512, 1024,
    )  # fmt: skip
    assert len(info.pids) == 1
    assert "stub_server.py" in " ".join(psutil.Process(info.pids[0]).cmdline())
    assert info.start_s > 0.0


def test_a_load_is_served_and_reported(serving: ServerEngine) -> None:
    """All requests of a load end with as many tokens as asked for, and the report has the server's own counts."""
    records = serving.run(make_load(6, num_tokens=3), keep_on)
    assert [(len(one.token_times_s), one.finish_reason) for one in records] == [(3, FinishReason.LENGTH)] * 6
    told = serving.report()
    assert told is not None
    assert (told.prefix_hit_share, told.num_preemptions, told.has_restarted) == (0.0, 0, False)


def test_the_same_load_twice_is_computed_twice(serving: ServerEngine) -> None:
    """BUG-11: caches are emptied before every load, so the same prompts are no faster the second time."""
    shares = []
    for _ in range(2):
        serving.run(make_load(4), keep_on)
        told = serving.report()
        assert told is not None
        shares.append(told.prefix_hit_share)
    assert shares == [0.0, 0.0]


def test_what_the_counters_say_of_a_load_is_told() -> None:
    """BUG-11: hits of a cache that cannot be emptied are told; a counter that went down means a new server."""
    engine = opened("keeps_cache")
    try:
        told = []
        for count in (4, 4, 2):  # the tenth request begins the stub's counters anew
            engine.run(make_load(count), keep_on)
            told.append(engine.report())
    finally:
        engine.close()
    assert [(one.prefix_hit_share, one.has_restarted) for one in told if one] == [
        (0.0, False),
        (1.0, False),
        (None, True),
    ]


def test_texts_become_the_servers_tokens_and_are_scored(serving: ServerEngine) -> None:
    """The server's tokenizer encodes, and its echo of a prompt gives one score for each place that was asked for."""
    assert serving.encode("ab") == (97, 98)
    assert serving.score((1, 2, 3, 4)).logprobs == (-1.0, -1.0, -1.0)
    assert serving.score((1, 2, 3, 4), num_last=2).top_token_ids == (7, 7)
    with pytest.raises(RequestRefused, match="1 tokens to score"):
        serving.score((1,))


def test_a_chunk_takes_another_launch(serving: ServerEngine) -> None:
    """The chunk it was started with is accepted, any other refused: it would not be what runs."""
    serving.set_prefill_chunk(60)
    with pytest.raises(InvalidSettings, match="prefill_chunk is 61: vllm was started with 60"):
        serving.set_prefill_chunk(61)


def test_a_running_server_is_used_and_left_alone(serving: ServerEngine) -> None:
    """A profile with a URL starts nothing, has no processes of its own, serves text, and leaves the server running."""
    profile = ServerProfile(kind="openai", url=f"{serving.address}/v1")
    guest = ServerEngine(make_settings(), profile, model=MODEL)
    words = guest.encode("one two one")
    assert (guest.info.pids, words) == ((), (0, 1, 0))
    records = guest.run(make_load(2), keep_on)
    assert [one.finish_reason for one in records] == [FinishReason.LENGTH] * 2
    with pytest.raises(NotScored, match="openai gives no probabilities"):
        guest.score((1, 2))
    guest.close()
    assert serving.run(make_load(1), keep_on)[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(("mode", "expected"), [("oom:20", NotEnoughMemory), ("crash:20", EngineDied)])
def test_a_server_that_dies_under_load_is_explained(mode: str, expected: type[EngineError]) -> None:
    """BUG-19 (a): healthy, then gone with the 20th request: no result but an error that has the cause."""
    port = free_port()
    engine = opened(mode, port=port)
    words = {"oom:20": "CUDA out of memory", "crash:20": "a wire came loose"}[mode]
    with pytest.raises(expected, match=rf"ended under load with exit code 1.*{words}") as caught:
        engine.run(make_load(40), keep_on)
    assert type(caught.value) is expected
    engine.close()
    assert is_free(port)


def test_a_server_that_only_answers_errors_is_no_result() -> None:
    """BUG-19: a server that goes on without its engine, as vLLM does for a while, is not taken for one that works."""
    engine = opened("sick:3")
    try:
        with pytest.raises(EngineDied, match="failed under load: /health answers 503"):
            engine.run(make_load(8), keep_on)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("mode", "lacking"),
    [
        ("not_healthy", "/health answers 503"),
        ("silent", "/health does not answer"),
        ("no_models", "/v1/models answers 404 and no list of models"),
    ],
)
def test_a_server_that_is_never_ready_is_given_up(mode: str, lacking: str) -> None:
    """BUG-19 (b, c): each state is waited for no longer than allowed; the message says what is missing."""
    port = free_port()
    with pytest.raises(ServerNotHealthy, match=f"not ready after 0.8 s: {lacking}; its last log lines: serving tiny"):
        opened(mode, start_timeout_s=0.8, port=port)
    assert is_free(port)


def test_a_server_with_another_model_is_refused() -> None:
    """BUG-19 (e): what answers at the address must have the model by its name, or nothing is measured."""
    with pytest.raises(
        WrongModel, match=r"model is 'tiny', but the server at http://.* has another-model; set served_model"
    ):
        opened("other_model")


def test_an_old_process_on_the_port_is_refused(serving: ServerEngine) -> None:
    """BUG-19 (e): where an old server still listens, no second one is started, and the first is named."""
    port = int(serving.address.rpartition(":")[2])
    with pytest.raises(PortInUse, match=rf"port is {port}: process {serving.info.pids[0]} "):
        opened(port=port)


def test_nothing_is_left_of_a_stubborn_server() -> None:
    """BUG-19 (d): a server that ignores being asked is gone, and its port free, when the next one starts on it."""
    port = free_port()
    first = opened("stubborn", port=port, stop_timeout_s=0.2)
    pids = first.info.pids
    first.close()
    first.close()
    assert (len(pids), is_free(port)) == (3, True)
    second = opened(port=port)
    assert not set(second.info.pids) & set(pids)
    second.close()


def test_ends_at_the_start_have_their_own_names(tmp_path: Path) -> None:
    """What a server logs when it ends at once becomes the error of that kind, with the line in it."""
    log = tmp_path / "words"
    log.write_text("RuntimeError: CUDA out of memory\nEngine core initialization failed\n", encoding="utf-8")
    with pytest.raises(NotEnoughMemory, match="before it was ready with exit code 1: RuntimeError: CUDA out of memory"):
        opened(f"log:{log}:1")
    with pytest.raises(PackageMissing, match="'no-such-server' cannot be started"):
        opened(command=("no-such-server",))


def test_a_server_that_is_not_there_is_told() -> None:
    """A URL where nothing answers is refused at once, with the address."""
    with pytest.raises(ServerNotHealthy, match=r"http://127\.0\.0\.1:.*: /v1/models does not answer"):
        ServerEngine(make_settings(), ServerProfile(kind="vllm", url=f"http://127.0.0.1:{free_port()}"), model=MODEL)


def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile names the variable that has the key; one that is not set is named before anything is started."""
    monkeypatch.delenv("STUB_KEY", raising=False)
    with pytest.raises(InvalidSettings, match="api_key_env is 'STUB_KEY': that variable is not set"):
        opened(api_key_env="STUB_KEY")
