"""SGLang: a launch's words are ones that its parser takes, and say the settings; its answers are read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidSettings
from engine.servers.flags import DTYPES
from engine.servers.metrics import samples_of
from engine.servers.sglang import KV_DTYPES, Sglang
from engine.settings import EngineSettings
from tests.api.export.known_flags import SGLANG, Known, parsed
from tests.engine.servers.making import MODEL, commands_of, plain_settings, settings_of

#: What only a launch says, as `ServerArgs.add_cli_args` of sglang 0.5.23 takes it.
PLACE_FLAGS = (
    Known(names=("--host",), kind=str),
    Known(names=("--port",), kind=int),
    Known(names=("--device",), kind=str),
    Known(names=("--enable-metrics",), kind=bool),
    Known(names=("--served-model-name",), kind=str),
    Known(names=("--context-length",), kind=int),
)


@given(chosen=settings_of(kv_precision=st.sampled_from(("auto", *KV_DTYPES))))
@settings(max_examples=60, deadline=None)
def test_the_words_of_a_launch_say_its_settings(chosen: EngineSettings) -> None:
    """Parsed as SGLang does, the words give batch, chunk, policy, precisions, context and place; metrics are on."""
    (command,) = commands_of(chosen, kind="sglang")
    assert command.words[:3] == ("python3", "-m", "sglang.launch_server")
    flags = parsed((*SGLANG, *PLACE_FLAGS), command.words[3:])
    shared = chosen.data_parallel if chosen.expert_parallel else 1
    assert flags["--model-path"] == MODEL
    assert flags["--max-running-requests"] == chosen.max_batch * shared
    assert flags["--chunked-prefill-size"] == chosen.prefill_chunk * shared
    assert ("--enable-mixed-chunk" in flags) == (chosen.policy == "decode_first")
    assert flags.get("--dtype") == DTYPES.get(chosen.precision)
    assert flags.get("--kv-cache-dtype") == KV_DTYPES.get(chosen.kv_precision)
    assert flags.get("--context-length") == chosen.max_context
    assert flags.get("--device") == ("cpu" if chosen.device == "cpu" else None)
    assert (flags["--port"], "--enable-metrics" in flags) == (8100, True)


def test_a_cache_that_sglang_has_not_is_refused() -> None:
    """A KV format that would be left at auto is refused, so that no window is measured under its name."""
    with pytest.raises(InvalidSettings, match="sglang cannot be started so: kv_precision int8"):
        commands_of(plain_settings(kv_precision="int8"), kind="sglang")


def test_its_own_scores_are_read() -> None:
    """Of `/generate` each token but the first has its logprob, and the most likely token its id."""
    told = {
        "input_token_logprobs": [[None, 4, None], [-2.0, 5, None], [-0.1, 6, None]],
        "input_top_logprobs": [None, [[-0.5, 9, None]], [[-0.1, 6, None]]],
    }
    scores = Sglang().scores_of({"meta_info": told}, 3)
    assert (scores.top_token_ids, scores.logprobs) == ((9, 6), (-2.0, -0.1))
    asked = Sglang().score_request((4, 5, 6), "m")
    assert asked is not None
    assert (asked[0], asked[1]["input_ids"], asked[1]["logprob_start_len"]) == ("/generate", [4, 5, 6], 0)


def test_the_size_of_the_cache_is_read() -> None:
    """The pages of the cache are a gauge."""
    assert Sglang().num_kv_blocks(samples_of('sglang:num_pages{tp_rank="0"} 812.0')) == 812
    assert Sglang().num_kv_blocks([]) is None
