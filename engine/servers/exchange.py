"""One request on its way: when it was due and sent, what came of it, and how it ended.

Knows nothing of sockets, nor of the load it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.request import Request, RequestRecord
from engine.servers.answer import MAX_WORDS, AnswerReader, error_words_of
from engine.servers.sse import EventTooLong, SseParser

#: Of an answer that is no stream.
_MAX_BODY_BYTES = 64 << 10
#: How long after the marker of the stream's end the server may take to end the answer.
_MAX_LINGER_S = 1.0


@dataclass(slots=True)
class Tally:
    """What came since the observer was last told."""

    num_tokens: int = 0
    num_prompt_tokens: int = 0
    first_tokens: list[str] = field(default_factory=list)


class Exchange:
    """Implements `connections.Exchange`."""

    def __init__(
        self,
        request: Request,
        payload: bytes,
        *,
        due_s: float,
        now_s: float,
        goes_on: bool,
        tally: Tally,
        ended: Callable[[Exchange, float], None],
    ) -> None:
        self.request = request
        self.payload = payload
        self.due_s = due_s
        self.sent_s: float | None = None
        self.reader = AnswerReader(request, goes_on=goes_on)
        #: When something last came that brings the answer on; comments that keep a connection open do not.
        self.progress_s = now_s
        self.is_over = False
        self._tally = tally
        self._ended = ended
        self._events = SseParser()
        self._status = 0
        self._is_stream = False
        self._content_type = ""
        self._body = b""
        self._done_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens known to have come."""
        return self.reader.num_seen

    def sent(self, time_s: float) -> None:
        """The request was written; of one that had to be written again, the last time counts."""
        self.sent_s = self.progress_s = time_s

    def head(self, status: int, content_type: str) -> None:
        """Tell a stream from an error."""
        self._status = status
        self._content_type = content_type
        self._is_stream = status == 200 and content_type not in ("application/json", "text/html")

    def body(self, data: bytes, time_s: float) -> None:
        """Take bytes of the answer."""
        if not self._is_stream:
            self._body += data[: _MAX_BODY_BYTES - len(self._body)]
            return
        reader = self.reader
        before = reader.num_seen
        try:
            events = self._events.feed(data)
        except EventTooLong as error:
            reader.fail("bad_event", str(error))
            events = []
        for event in events:
            reader.take(event, time_s)
        if reader.num_seen > before:
            self.progress_s = time_s
            self._note(before)
        if reader.has_failed:
            self.end(time_s)
        elif reader.is_done and self._done_s is None:
            self._done_s = time_s

    def ended(self, time_s: float) -> None:
        """The answer is over."""
        if self._is_stream:
            self.reader.finish(self._events.finish(), time_s)
        else:
            self._fail_without_stream()
        self.end(time_s)

    def lost(self, kind: str, message: str, time_s: float) -> None:
        """The connection is gone; an answer whose finish has been seen is complete all the same."""
        if not self.reader.is_complete:
            self.reader.fail(kind, message)
        self.end(time_s)

    def expire(self, now_s: float, timeout_s: float) -> None:
        """End it if it made no progress for too long, or if only the connection's end is missing."""
        if self._done_s is not None and now_s - self._done_s > _MAX_LINGER_S:
            self.end(now_s)
        elif now_s - self.progress_s > timeout_s:
            self.reader.fail("timeout", f"nothing came for {timeout_s:g} s, after {self.num_tokens} tokens")
            self.end(now_s)

    def end(self, time_s: float) -> None:
        """Tell the load, once."""
        if not self.is_over:
            self.is_over = True
            self._ended(self, time_s)

    def record(self, *, is_cancelled: bool = False) -> RequestRecord:
        """Return what is known of it."""
        return self.reader.record(arrival_s=self.due_s, sent_s=self.sent_s, is_cancelled=is_cancelled)

    def _note(self, before: int) -> None:
        tally = self._tally
        tally.num_tokens += self.reader.num_seen - before
        if before == 0:
            tally.first_tokens.append(self.request.request_id)
            tally.num_prompt_tokens += len(self.request.prompt_token_ids)

    def _fail_without_stream(self) -> None:
        words = error_words_of(self._body.decode("utf-8", "replace"))
        if self._status != 200:
            self.reader.fail(f"http_{self._status}", words or "without a word")
        else:
            said = f"the answer is {self._content_type or 'of no type'}, not an event stream: {words}"
            self.reader.fail("not_a_stream", said[:MAX_WORDS])
