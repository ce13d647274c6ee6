"""Server-sent events: bytes as a connection gives them, in pieces cut anywhere, to events.

Follows the WHATWG HTML standard, section "Server-sent events": lines end with CR, LF or both, a line that begins with a
colon is a comment, one space after a field's colon does not count, an empty line ends an event. Two departures, for
what servers really send: a stream may end without the last empty line (`finish`), and a field `error` (llama.cpp) is an
event of that name. Knows nothing of what the events mean.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of one event at most; a server that goes beyond is not speaking this format.
MAX_EVENT_BYTES = 16 << 20

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """An event without an end: whatever the server sends is no event stream."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event; positional, as a busy client makes ten thousand a second."""

    #: Its data lines, joined by line feeds.
    data: str
    #: What the server called it; empty where it did not.
    event: str = ""


class SseParser:
    """Takes one stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._name = b""
        self._num_bytes = 0
        self._is_first = True
        #: The last byte was a carriage return: a line feed that follows belongs to it.
        self._skips_line_feed = False

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Take the next bytes and return the events that they end; raise EventTooLong."""
        self._num_bytes += len(piece)
        if self._skips_line_feed or self._is_first or b"\r" in piece:
            piece = self._normalised(piece)
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        events: list[SseEvent] = []
        for line in lines:
            if line.startswith(b"data: "):
                self._data.append(line[6:])
            elif line:
                self._take_field(line)
            else:
                self._num_bytes = 0
                if self._data:
                    events.append(self._event())
                self._name = b""
        if self._num_bytes > MAX_EVENT_BYTES:
            raise EventTooLong(f"{self._num_bytes} bytes without the end of an event")
        return events

    def finish(self) -> list[SseEvent]:
        """Return the event that the stream's end cut off, if any of its data came."""
        return self.feed(b"\n\n")

    def _normalised(self, piece: bytes) -> bytes:
        """Make every line end a line feed, without waiting for what may follow a carriage return."""
        if self._is_first:
            if len(self._rest + piece) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(self._rest + piece):
                return piece  # too short to tell
            self._is_first = False
            piece = (self._rest + piece).removeprefix(_BYTE_ORDER_MARK)
            self._rest = b""
        if self._skips_line_feed and piece:
            piece = piece.removeprefix(b"\n")
            self._skips_line_feed = False
        if piece.endswith(b"\r"):
            self._skips_line_feed = True
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        elif name == b"error":
            self._name = name
            self._data.append(value)

    def _event(self) -> SseEvent:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data = []
        return SseEvent(data.decode("utf-8", "replace"), self._name.decode("utf-8", "replace"))
