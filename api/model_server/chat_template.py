"""Messages to a prompt, by the template that comes with a checkpoint.

A template is a program of whoever published the checkpoint: it runs in jinja2's sandbox, without access to anything.
Where a checkpoint has none, but its vocabulary has ChatML's two marks, ChatML is taken, and said so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from api.errors import UsageError
from api.model_server.api_errors import ApiError
from api.model_server.asked import Message
from api.model_server.vocabulary import Vocabulary
from engine.errors import CheckpointError

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_CHATML_MARKS = ("<|im_start|>", "<|im_end|>")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """A compiled template and where it comes from."""

    def __init__(self, source: str, *, origin: str, special: Mapping[str, str]) -> None:
        """Raise CheckpointError where the template is no template."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(
                f"{origin}: not a usable chat template ({error}); give one with --chat-template"
            ) from error
        self._special = dict(special)
        #: In words for people.
        self.origin = origin

    def prompt(self, messages: Sequence[Message], *, is_open: bool, values: Mapping[str, Any]) -> str:
        """Return the prompt of a chat; `is_open` lets it end where the assistant begins to speak.

        Raises ApiError with the template's own words where it refuses the messages.
        """
        try:
            return self._template.render(
                {
                    **self._special,
                    "tools": None,
                    "documents": None,
                    **values,
                    "messages": [_plain(message, place) for place, message in enumerate(messages)],
                    "add_generation_prompt": is_open,
                }
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ApiError(f"the model's chat template refuses these messages: {error}", param="messages") from error


def load_template(folder: Path, vocabulary: Vocabulary, *, chosen: Path | None = None) -> ChatTemplate | None:
    """Return a checkpoint's chat template, or that of the file `chosen`; None where there is none.

    Raises UsageError for a file that cannot be read, CheckpointError for one that is no template.
    """
    config = _tokenizer_config(folder / "tokenizer_config.json")
    special = {name: _text_of(config[name]) for name in _SPECIAL if config.get(name) is not None}
    if chosen is not None:
        return ChatTemplate(_read_chosen(chosen), origin=str(chosen), special=special)
    own = folder / "chat_template.jinja"
    if own.is_file():
        return ChatTemplate(own.read_text(encoding="utf-8"), origin=own.name, special=special)
    source = _default_of(config.get("chat_template"))
    if source is not None:
        return ChatTemplate(source, origin="tokenizer_config.json", special=special)
    if all(vocabulary.has(mark) for mark in _CHATML_MARKS):
        origin = "ChatML, for the checkpoint has no template of its own and its vocabulary has ChatML's marks"
        return ChatTemplate(_CHATML, origin=origin, special=special)
    return None


def _read_chosen(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--chat-template is {str(path)!r}: {error}; name a readable file") from error


def _tokenizer_config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: not a JSON object; fetch it again")
    return found


def _default_of(entry: Any) -> str | None:
    """Return the template of a config, which may have several by name."""
    if isinstance(entry, list):
        named = {one.get("name"): one.get("template") for one in entry if isinstance(one, dict)}
        entry = named.get("default")
    return entry if isinstance(entry, str) else None


def _text_of(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _plain(message: Message, place: int) -> dict[str, Any]:
    """Return a message with its content as one text: templates differ in which parts they know."""
    content = message.content
    if isinstance(content, list):
        for part in content:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = part.get("type")
                raise ApiError(
                    f"messages.{place}.content has a part of type {kind!r}; the model takes text alone",
                    param="messages",
                )
        content = "".join(part["text"] for part in content)
    return {**(message.model_extra or {}), "role": message.role, "content": content or ""}


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """Write JSON as templates expect it: without HTML escapes."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(words: str) -> None:
    raise jinja2.TemplateError(words)
