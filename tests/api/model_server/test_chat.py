"""POST /v1/chat/completions, and the templates that make a chat a prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from api.errors import UsageError
from api.model_server.api_errors import ApiError
from api.model_server.asked import Message
from api.model_server.chat_template import ChatTemplate, load_template
from api.model_server.vocabulary import Vocabulary
from engine.errors import CheckpointError
from tests.api.model_server.stage import Stage

MESSAGES: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
PROMPT = "system: be brief\nuser: hi\nme:"


def test_a_chat_is_its_template_continued(served: Stage) -> None:
    """A chat is answered as the prompt that the template makes of it, its content as text or in parts."""
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 10, "ignore_eos": True}
    parts = [MESSAGES[0], {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]

    plain = served.post("/v1/completions", prompt=PROMPT, **asked).json()
    chat = served.post("/v1/chat/completions", messages=MESSAGES, **asked).json()
    in_parts = served.post("/v1/chat/completions", messages=parts, **asked).json()

    assert chat["choices"][0]["message"]["content"] == plain["choices"][0]["text"]
    assert in_parts["choices"][0]["message"] == chat["choices"][0]["message"]
    assert chat["usage"] == plain["usage"]


def test_a_stream_begins_with_the_role_alone(served: Stage) -> None:
    """BUG-02, from the server's side: the role comes in a chunk without text, then one chunk for each token."""
    chunks = served.chunks(
        "/v1/chat/completions", messages=MESSAGES, temperature=0, max_completion_tokens=5, ignore_eos=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]

    assert deltas[0] == {"role": "assistant", "content": ""}
    assert len(deltas) == 1 + 5
    assert chunks[-1]["usage"]["completion_tokens"] == 5


def test_the_openai_client_reads_everything(served: Stage) -> None:
    """OpenAI's own client parses models, whole answers, streams and errors of this endpoint."""
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    extra = {"ignore_eos": True}
    whole = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=6, temperature=0, extra_body=extra
    )
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=6, temperature=0, extra_body=extra, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert [model.id for model in client.models.list()] == ["tiny"]
    assert text == whole.choices[0].message.content
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="more than the context") as refused:
        client.completions.create(model="tiny", prompt="x", max_tokens=1000)
    assert refused.value.code == "context_length_exceeded"
    client.close()


def test_pictures_are_refused(served: Stage) -> None:
    """A part that is not text is refused by its type."""
    content = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    answer = served.post("/v1/chat/completions", messages=[{"role": "user", "content": content}])

    assert answer.status_code == 400
    assert "has a part of type 'image_url'" in answer.json()["error"]["message"]


def test_a_template_can_refuse_and_cannot_reach_out() -> None:
    """What a template raises is the caller's error; one that looks into Python is stopped by the sandbox."""
    user = [Message(role="user", content="hi")]
    strict = ChatTemplate("{{ raise_exception('roles must alternate') }}", origin="test", special={})
    nosy = ChatTemplate("{{ messages.__class__.__mro__ }}", origin="test", special={})

    with pytest.raises(ApiError, match="roles must alternate"):
        strict.prompt(user, is_open=True, values={})
    with pytest.raises(ApiError, match="unsafe"):
        nosy.prompt(user, is_open=True, values={})


def test_templates_are_found_where_checkpoints_have_them(tiny_folder: Path, tmp_path: Path) -> None:
    """A chosen file wins over chat_template.jinja, that over tokenizer_config.json; without any there is none."""
    vocabulary, user = Vocabulary(tiny_folder), [Message(role="user", content="hi")]

    def text() -> str | None:
        found = load_template(tmp_path, vocabulary)
        return None if found is None else found.prompt(user, is_open=True, values={})

    assert text() is None
    config = {"chat_template": "{{ bos_token }}config", "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert text() == "<s>config"
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert text() == "own file"
    (tmp_path / "mine").write_text("{% if %}")
    with pytest.raises(CheckpointError, match="not a usable chat template"):
        load_template(tmp_path, vocabulary, chosen=tmp_path / "mine")
    with pytest.raises(UsageError, match="--chat-template"):
        load_template(tmp_path, vocabulary, chosen=tmp_path / "not there")
