"""The events of one answer, each with the time at which it came, to what a request's record says of its tokens.

Tokens are the server's own count (`usage`), never the number of events: an event may carry several tokens or none.
Knows nothing of connections; what went wrong there is handed in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engine.request import FinishReason, Request, RequestRecord
from engine.servers.sse import SseEvent
from engine.servers.tokens import Pieces, Usage

#: Pieces beyond this many times what was asked for, and some more, show a server that does not stop.
_RUNAWAY_FACTOR = 4
_RUNAWAY_SLACK = 64
#: Of what a server says in an error.
MAX_WORDS = 300

#: Finish reasons that say that the server gave up.
_GIVEN_UP = ("abort", "error", "cancelled")


class AnswerReader:
    """Takes the events of one request's stream.

    `goes_on` says that the server was told to go on after the end-of-sequence token: then an answer that ends of itself
    before it has all its tokens is a failure.
    """

    def __init__(self, request: Request, *, goes_on: bool = False) -> None:
        self._request = request
        self._goes_on = goes_on
        self._pieces = Pieces()
        self._usage = Usage()
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._finish: str | None = None
        self._error: str | None = None
        self._max_pieces = _RUNAWAY_FACTOR * request.max_tokens + _RUNAWAY_SLACK
        #: Whether the marker of the stream's end has come.
        self.is_done = False

    @property
    def num_seen(self) -> int:
        """Tokens that are known to have come so far: at least one for each piece."""
        return self._pieces.num_seen

    @property
    def has_failed(self) -> bool:
        """Whether nothing that may still come can make this a success."""
        return self._error is not None

    @property
    def is_complete(self) -> bool:
        """Whether the server has said that the answer is whole."""
        return self._error is None and (self._finish is not None or self.is_done)

    @property
    def usage(self) -> Usage:
        """What the server counted."""
        return self._usage

    def take(self, event: SseEvent, time_s: float) -> None:
        """Take an event that came then."""
        data = event.data
        if data == "[DONE]":
            self.is_done = True
            return
        if event.event == "error":
            self.fail("server_error", error_words_of(data))
            return
        if not data or data.isspace():
            return
        try:
            frame = json.loads(data)
        except ValueError:
            frame = None
        if isinstance(frame, dict):
            self._take_frame(frame, time_s)
        else:
            self.fail("bad_event", f"not a JSON object: {data[:MAX_WORDS]!r}")

    def finish(self, tail: Sequence[SseEvent], time_s: float) -> None:
        """Take what was cut off by the stream's end, as far as it is whole."""
        for event in tail:
            if event.data.strip() == "[DONE]":
                self.is_done = True
            elif _is_whole(event.data):
                self.take(event, time_s)

    def fail(self, kind: str, message: str) -> None:
        """Note that the request has failed; the first failure counts."""
        if self._error is None:
            self._error = f"{kind}: {message}"

    def record(self, *, arrival_s: float, sent_s: float | None, is_cancelled: bool = False) -> RequestRecord:
        """Return the request's record, as the stream has ended or was ended (`is_cancelled`)."""
        counted = self._pieces.tokens(self._usage, is_complete=self._finish is not None or self.is_done)
        reason, error = self._outcome(counted.num_tokens, is_told=counted.is_told, is_cancelled=is_cancelled)
        notes = list(counted.notes)
        if reason is not FinishReason.CANCELLED and self._finish is None and self._error is None and self.is_done:
            notes.append("no_finish_reason")
        if self._finish == "content_filter":
            notes.append("content_filter")
        has_all_ids = len(self._token_ids) == len(counted.times_s)
        chunk_times_s = tuple(self._pieces.times_s)
        return RequestRecord(
            request_id=self._request.request_id,
            num_prompt_tokens=self._usage.num_prompt or len(self._request.prompt_token_ids),
            token_ids=tuple(self._token_ids) if has_all_ids else (),
            text="".join(self._texts),
            arrival_s=arrival_s,
            token_times_s=counted.times_s,
            finish_reason=reason,
            error=error,
            chunk_times_s=None if chunk_times_s == counted.times_s else chunk_times_s,
            sent_s=sent_s,
            first_answer_s=counted.first_answer_s,
            num_reasoning_tokens=counted.num_reasoning,
            num_hidden_tokens=counted.num_hidden,
            notes=tuple(notes),
        )

    def _take_frame(self, frame: dict[str, Any], time_s: float) -> None:
        error = frame.get("error") or (frame if frame.get("object") == "error" else None)
        if error is not None:
            self.fail("server_error", error_words(error))
            return
        has_grown = self._usage.take(frame.get("usage"))
        choices = frame.get("choices")
        if not choices:
            return
        choice = choices[0] if isinstance(choices, list) else None
        if not isinstance(choice, dict):
            self.fail("bad_event", f"choices is {_words(str(choices))!r}, not a list of objects")
            return
        finish = choice.get("finish_reason")
        if finish is not None:
            self._take_finish(str(finish))
        token_ids = choice.get("token_ids")
        num_ids = 0
        if isinstance(token_ids, list):
            self._token_ids.extend(token_ids)
            num_ids = len(token_ids)
        self._take_piece(choice, num_ids, has_grown=has_grown, time_s=time_s)

    def _take_finish(self, finish: str) -> None:
        self._finish = finish
        if finish in _GIVEN_UP:
            self.fail("server_error", f"the server ended the request with finish_reason {finish!r}")

    def _take_piece(self, choice: dict[str, Any], num_ids: int, *, has_grown: bool, time_s: float) -> None:
        """Note a piece if it carries a token: text, thinking, a token id, or a count that went up."""
        text = choice.get("text")
        thinking = None
        if text is None and isinstance(delta := choice.get("delta"), dict):
            text = delta.get("content") or delta.get("refusal")
            thinking = delta.get("reasoning_content") or delta.get("reasoning")
        if text:
            self._texts.append(text if isinstance(text, str) else _joined(text))
        # A count that comes only with the last piece is the whole answer's, not this piece's.
        is_counted = num_ids > 0 or (has_grown and (self._finish is None or self._usage.is_continuous))
        if not (text or thinking or is_counted):
            return
        pieces = self._pieces
        is_thought = not text if thinking else (pieces.is_thinking if not text else False)
        pieces.add(time_s, num_ids or (self._usage.num_new if is_counted else 0), is_thinking=is_thought)
        if len(pieces.times_s) > self._max_pieces:
            self.fail(
                "runaway", f"{len(pieces.times_s)} pieces came where {self._request.max_tokens} tokens were asked"
            )

    def _outcome(self, num_tokens: int, *, is_told: bool, is_cancelled: bool) -> tuple[FinishReason, str | None]:
        asked = self._request.max_tokens
        if self._error is not None:
            return FinishReason.ERROR, self._error
        if self._finish is None and not self.is_done:
            if is_cancelled:
                return FinishReason.CANCELLED, None
            return FinishReason.ERROR, (
                f"ended_early: the stream ended after {num_tokens} tokens, with neither a finish_reason nor [DONE]"
            )
        is_short = is_told and num_tokens < asked
        if self._finish is not None and self._finish != "length":
            is_short = not (is_told and num_tokens >= asked)  # told to go on it can end for no other reason
        if self._goes_on and is_short and not self._request.stop:
            said = f"finish_reason {self._finish!r} after {num_tokens} of {asked} tokens"
            return FinishReason.ERROR, f"stopped_early: {said}, though told to go on"
        is_full = self._finish == "length" or (self._finish is None and num_tokens >= asked)
        return (FinishReason.LENGTH if is_full else FinishReason.STOP), None


def error_words_of(body: str) -> str:
    """Return what the body of an error answer says, in one line: its message where it is JSON, else itself."""
    try:
        answer = json.loads(body)
    except ValueError:
        return _words(body)
    return error_words((answer.get("error") or answer) if isinstance(answer, dict) else answer)


def error_words(error: object) -> str:
    """Return what a server's error object says, in one line."""
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail") or json.dumps(error)
        kind = error.get("type") or error.get("code")
        return _words(f"{message} ({kind})" if kind else str(message))
    return _words(str(error))


def _words(text: str) -> str:
    return " ".join(text.split())[:MAX_WORDS]


def _is_whole(data: str) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def _joined(parts: object) -> str:
    """Return the text of a message that comes in typed parts."""
    if not isinstance(parts, list):
        return str(parts)
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
