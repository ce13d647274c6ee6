"""Files of prompts as text: JSON lines or a JSON array, and one prompt a line.

What is read: vLLM's custom data sets (`prompt`, `output_tokens`), guidellm's columns, AIPerf's single-turn, multi-turn
and trace rows with text (`text`, `texts`, `turns`, `text_input`, `messages`, with `timestamp`, `delay`, `session_id`)
and its `inputs.json` (`data` with `payloads`), and ShareGPT's talks. Knows nothing of files, nor of tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tuner.sessions import Sessions
from tuner.talks import ShareGptTalks
from tuner.trace_json import count, milliseconds_of, object_in, read, session_of
from tuner.traces import RowFault, Text, Trace, TraceBuilder, estimated_tokens, require_tokens

PROMPTS = "prompts"
SHARE_GPT = "sharegpt"
#: Where the prompt stands, the first that is there: AIPerf's names and guidellm's.
TEXT_FIELDS = ("text_input", "prompt", "text", "instruction", "question", "input", "context", "content")
#: What stands before every prompt; guidellm's names.
PREFIX_FIELDS = ("system_prompt", "system", "prefix")
OUTPUT_FIELDS = ("output_length", "output_tokens", "output_tokens_count", "completion_tokens_count",
                 "max_completion_tokens", "max_tokens")  # fmt: skip
_EXPECTED = f"an object with messages, turns, texts or one of {', '.join(TEXT_FIELDS)}"
#: An element of an array is looked for again when there is so much more of it.
_GROWTH = 1.25
#: Elements of an array that show neither prompt nor talk before it is taken for one of prompts, which refuses them.
_MAX_UNTOLD = 1_000

Row = Mapping[str, Any]


class PromptReader:
    """Reads the rows of one file of prompts, each an object."""

    form = PROMPTS

    def __init__(self) -> None:
        self._builder = TraceBuilder(PROMPTS)
        self._sessions = Sessions(self._builder)
        self._num_objects = 0

    @property
    def num_rows(self) -> int:
        """See RowReader."""
        return self._builder.num_rows

    def take(self, line: str) -> None:
        """See RowReader."""
        self.take_row(object_in(line))

    def take_row(self, row: Row) -> None:
        """Read one object. Raises RowFault, FileFault."""
        self._num_objects += 1
        for turn in _turns(row, nameless=f"\0{self._num_objects}"):
            self._take_turn(turn)

    def finish(self, sha256: str) -> Trace:
        """See RowReader."""
        return self._builder.finish(sha256)

    def _take_turn(self, row: Row) -> None:
        session = session_of(row)
        due_s = self._sessions.due_s(milliseconds_of(row, "timestamp"), milliseconds_of(row, "delay"), session)
        is_whole = row.get("messages") is not None  # its messages are all that was said before
        prompt = _messages(row) if is_whole else _prompt(row)
        if session is not None and not is_whole:
            prompt = self._sessions.turn_text(session, prompt)
        output = _output(row)
        self._sessions.said(session, due_s, estimated_tokens(prompt), output)
        self._builder.add_text(due_s, Text(prompt=prompt), output)


class ShareGptReader:
    """Reads talks, each an object: every answer is a request, with all that was said before it as its prompt."""

    form = SHARE_GPT

    def __init__(self) -> None:
        self._builder = TraceBuilder(SHARE_GPT)
        self._talks = ShareGptTalks(self._builder)

    @property
    def num_rows(self) -> int:
        """See RowReader."""
        return self._builder.num_rows

    def take(self, line: str) -> None:
        """See RowReader."""
        self.take_row(object_in(line))

    def take_row(self, row: Row) -> None:
        """Read one talk; what is no use is counted by its reason."""
        self._talks.take(row)

    def finish(self, sha256: str) -> Trace:
        """See RowReader."""
        return self._builder.finish(sha256)


class PlainReader:
    """Reads one prompt a line."""

    form = PROMPTS

    def __init__(self) -> None:
        self._builder = TraceBuilder(PROMPTS)

    @property
    def num_rows(self) -> int:
        """See RowReader."""
        return self._builder.num_rows

    def take(self, line: str) -> None:
        """See RowReader."""
        self._builder.add_text(None, Text(prompt=line.strip()), 0)

    def finish(self, sha256: str) -> Trace:
        """See RowReader."""
        return self._builder.finish(sha256)


class _Unfinished(Exception):
    """The rest of an element comes with a later line."""


class ArrayReader:
    """Reads an array of objects, or an object whose `data` is one, element by element as lines come."""

    def __init__(self) -> None:
        self._rows: PromptReader | ShareGptReader | None = None
        self._untold: list[Row] = []
        self._rest = ""
        self._place = 0
        self._next_try = 0
        self._num_elements = 0
        self._is_object = False
        self._is_open = False
        self._is_closed = False
        self._decode: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().raw_decode

    @property
    def form(self) -> str:
        """See RowReader."""
        return PROMPTS if self._rows is None else self._rows.form

    @property
    def num_rows(self) -> int:
        """See RowReader."""
        return 0 if self._rows is None else self._rows.num_rows

    def take(self, line: str) -> None:
        """See RowReader."""
        self._rest += line if line.endswith("\n") else f"{line}\n"
        is_end = line.rstrip().endswith(("}", "},", "]"))
        if is_end and len(self._rest) >= self._next_try:
            self._take_elements(is_last=False)

    def finish(self, sha256: str) -> Trace:
        """See RowReader; a file that was cut in the midst is refused, not taken as a shorter one."""
        self._take_elements(is_last=True)
        if not self._is_open:
            words = "it is no array, and no object that begins with `data`; give one of both"
            raise self._fault("an array, or an object that begins with `data`", words)
        if not self._is_closed:
            raise self._fault("the array's end", "the file ends before the array does: it was cut; get it anew")
        if not self._is_object and self._rest.strip():
            raise self._fault("the file's end", "something stands behind the array's end; give one array a file")
        return self._decided(PromptReader()).finish(sha256)

    def _take_elements(self, *, is_last: bool) -> None:
        self._place = self._begin()
        try:
            while self._is_open and not self._is_closed:
                self._take_next(is_last=is_last)
        except _Unfinished:
            pass
        finally:  # also behind an element that was refused: whoever reads on meets it once
            self._rest = self._rest[self._place :]
            self._next_try = int(len(self._rest) * _GROWTH)

    def _take_next(self, *, is_last: bool) -> None:
        self._place = _behind(self._rest, self._place, " \t\r\n,")
        if self._rest[self._place : self._place + 1] == "]":
            self._is_closed = True
            self._place += 1
            return
        try:
            element, self._place = self._decode(self._rest, self._place)
        except ValueError as error:
            if not is_last:
                raise _Unfinished from error
            raise self._fault("a JSON object", f"it is no JSON, or the file was cut ({error}); get it anew") from error
        except RecursionError as error:
            raise self._fault("a JSON object", "it is nested too deeply; remove it") from error
        self._num_elements += 1
        self._take_element(element if isinstance(element, dict) else {})

    def _begin(self) -> int:
        """Go behind the array's opening bracket; of an object, behind that of its `data`, which stands first."""
        if self._is_open:
            return 0
        place = _behind(self._rest, 0, " \t\r\n{")
        self._is_object = "{" in self._rest[:place]
        if self._rest.startswith('"data"', place):
            place = _behind(self._rest, place + len('"data"'), " \t\r\n:")
        if self._rest[place : place + 1] == "[":
            self._is_open = True
            return place + 1
        return 0

    def _take_element(self, row: Row) -> None:
        if self._rows is None and not has_prompt(row) and len(self._untold) < _MAX_UNTOLD:
            self._untold.append(row)  # one bad entry at the beginning does not decide what the others are
            return
        self._take_row(self._decided(reader_of(row)), row, self._num_elements)

    def _decided(self, rows: PromptReader | ShareGptReader) -> PromptReader | ShareGptReader:
        """Return what reads the elements, which is `rows` unless that was decided before. Raises RowFault."""
        if self._rows is None:
            self._rows = rows
            for number, row in enumerate(self._untold, start=1):
                self._take_row(rows, row, number)
            self._untold.clear()
        return self._rows

    @staticmethod
    def _take_row(rows: PromptReader | ShareGptReader, row: Row, number: int) -> None:
        try:
            rows.take_row(row)
        except RowFault as fault:
            raise RowFault(fault.column, fault.value, fault.expected, str(fault), entry=number) from fault

    def _fault(self, expected: str, words: str) -> RowFault:
        return RowFault("", None, expected, words, entry=self._num_elements + 1)


def reader_of(row: Row) -> PromptReader | ShareGptReader:
    """Return what reads objects such as this one."""
    return ShareGptReader() if "conversations" in row or "conversation" in row else PromptReader()


def has_prompt(row: Row) -> bool:
    """Tell whether an object is a row of prompts, and not one of a trace without text."""
    named = [name for name in ("turns", "messages", "texts", "payloads", "conversations", *TEXT_FIELDS) if name in row]
    # Tools that write every field of a row leave a trace's text null.
    return any(row[name] is not None for name in named) or (bool(named) and "input_length" not in row)


def _behind(text: str, place: int, skipped: str) -> int:
    while place < len(text) and text[place] in skipped:
        place += 1
    return place


def _turns(row: Row, *, nameless: str) -> Iterator[Row]:
    """Yield the turns of a conversation that is one row, each with its session; another row as it is.

    `nameless` stands for a conversation that has no name.
    """
    name = next((name for name in ("turns", "payloads") if row.get(name) is not None), None)
    if name is None:
        yield row
        return
    turns = row[name]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        words = f"its {name} are no list of objects; correct or remove the row"
        raise RowFault(name, turns, "a list of objects that is not empty", words)
    session = session_of(row) or nameless
    begun = {"timestamp": row["timestamp"]} if row.get("timestamp") is not None else {}
    for number, turn in enumerate(turns):
        yield {**(begun if number == 0 else {}), **turn, "session_id": session}


def _prompt(row: Row) -> str:
    texts = row.get("texts")
    if texts is not None:
        if not isinstance(texts, list) or len(texts) != 1:
            raise RowFault("texts", texts, "a list of one text", "its texts are not one; give one prompt a row")
        return _text("texts", texts[0])
    name = next((name for name in TEXT_FIELDS if row.get(name) is not None), None)
    if name is None:
        named = next((name for name in TEXT_FIELDS if name in row), "")
        expected = "a text that is not empty" if named else _EXPECTED
        raise RowFault(named, None, expected, f"it has no prompt; give {expected}")
    before = next((name for name in PREFIX_FIELDS if row.get(name)), None)
    prompt = _text(name, row[name])
    return prompt if before is None else f"{_text(before, row[before])}\n{prompt}"


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        expected = "a text that is not empty"
        raise RowFault(name, value, expected, f"{name} is {str(value)[:80]!r}; give {expected}")
    return value


def _messages(row: Row) -> str:
    """Return messages as one text, `role: content` each: a model's chat template is not known here."""
    messages = row["messages"]
    said = [_message(one) for one in messages] if isinstance(messages, list) else []
    if not said or None in said:
        expected = "a list of messages with role and content"
        raise RowFault("messages", messages, expected, f"its messages cannot be read; give {expected}")
    return "\n".join(text for text in said if text is not None)


def _message(message: Any) -> str | None:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return None
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(part for part in parts if isinstance(part, str))
    calls = message.get("tool_calls")
    said = [content] if isinstance(content, str) else []
    said += [json.dumps(calls)] if calls else []
    return f"{message['role']}: {' '.join(said)}"


def _output(row: Row) -> int:
    """Return how long a row says its output is; 0 where it does not."""
    name = next((name for name in OUTPUT_FIELDS if row.get(name) is not None), None)
    if name is None:
        return 0
    output = read(row, name, count, "a whole number")
    require_tokens(name, "output", output)
    return output
