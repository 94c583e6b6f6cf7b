"""Streams: server-sent events out of bytes, and an answer out of events. Pure; whoever has bytes feeds them.

Events after the WHATWG HTML standard, section 9.2.6; comments (keep-alives) carry nothing.
"""

from __future__ import annotations

from typing import Any

from siafu.border.canonical import dumps
from siafu.gateway.chat import MAX_ANSWER_BYTES, ChatAnswer
from siafu.gateway.classify import malformed
from siafu.gateway.endpoint import Delta
from siafu.gateway.wire import MAX_TOOL_CALLS, answer, body_error, decode

_WRAPPED = 16
SseEvent = tuple[bytes, bytes]


class SseDecoder:
    """Bytes, cut anywhere, to events as (name, data). Lines may end in LF, CRLF or CR. max_bytes: of one event; all of
    a stream may have 16 times as many, as each few letters of an answer come in an event of hundreds of bytes.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_held", "_name", "_open", "_seen", "max_bytes")

    def __init__(self, *, max_bytes: int = MAX_ANSWER_BYTES) -> None:
        self.max_bytes = max_bytes
        self._open = bytearray()  # a line that has not ended
        self._held = 0  # bytes of the lines before it of its event
        self._after_cr = False
        self._name, self._data = b"", list[bytes]()
        self._seen = 0
        self._first = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes.

        Raises: MalformedReply when the event or the stream is too large.
        """
        self._seen += len(chunk)
        if self._seen > _WRAPPED * self.max_bytes:
            raise malformed(f"it is larger than {_WRAPPED * self.max_bytes:,} bytes")
        if _is_one_event(chunk) and not (self._data or self._name or self._after_cr or self._open):
            self._first = False
            return [(b"", chunk[6:-2])]
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *lines = chunk.split(b"\n")
        self._open += first
        events = []
        if lines:
            lines.insert(0, bytes(self._open))
            self._open = bytearray(lines.pop())
            events = self._events(lines)
        if self._held + len(self._open) > self.max_bytes:
            raise malformed(f"an event of it is larger than {self.max_bytes:,} bytes")
        return events

    def finish(self) -> list[SseEvent]:
        """What the end of the stream completes: some servers leave out the last empty line."""
        return self._events([bytes(self._open), b""])

    def _events(self, lines: list[bytes]) -> list[SseEvent]:
        events = []
        if self._first:
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
            self._first = False
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._held += len(line)
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif not line:
                if self._data:
                    events.append((self._name, b"\n".join(self._data)))
                self._name, self._data, self._held = b"", [], 0
        return events


def _is_one_event(chunk: bytes) -> bool:
    """Whether it is exactly one event of one line of data, as most pieces of most streams are."""
    return (
        chunk.startswith(b"data: ")
        and chunk.find(b"\n") == len(chunk) - 2
        and chunk.endswith(b"\n\n")
        and (b"\r" not in chunk)
    )


class Assembler:
    """Events to deltas and, at the end, the answer.

    `begun`: the model has said something (text, reasoning or a piece of a tool call). `done`: `[DONE]` was read.
    max_chars: of the whole answer.
    """

    def __init__(self, *, max_chars: int = MAX_ANSWER_BYTES) -> None:
        self.begun = False
        self.done = False
        self._room = self._max_chars = max_chars
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._pieces: dict[str, list[str]] = {}
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []
        self._by_index: dict[int, int] = {}
        self._finish: Any = None
        self._usage: Any = None
        self._model: Any = None
        self._id: Any = None

    @property
    def finished(self) -> bool:
        """Whether the finish reason was read: from here on, only the usage is missing."""
        return self._finish is not None

    def feed(self, event: SseEvent) -> Delta | None:
        """The delta in an event, None when it adds no text.

        Raises: MalformedReply when it is no JSON; for an error event, the error it stands for.
        """
        name, data = event
        if self.done:
            return None
        if data.strip() == b"[DONE]":
            self.done = True
            return None
        chunk = decode(data, content_type="text/event-stream")
        error = chunk.failure()
        if error is not None or name == b"error":
            raise body_error(error or {})
        self._model = self._model or chunk.model
        self._id = self._id or chunk.id
        self._usage = chunk.usage or self._usage
        choices = chunk.choices
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return None
        choice = choices[0]
        if choice.get("index"):  # a second alternative; answers have one
            return None
        self._usage = choice.get("usage") or self._usage
        self._finish = choice.get("finish_reason") or self._finish
        delta = choice.get("delta")
        return self._add(delta) if isinstance(delta, dict) else None

    def answer(self) -> ChatAnswer:
        """The whole answer; call it when the stream has ended.

        Raises: MalformedReply when it ended before the finish reason.
        """
        self._message.update((name, "".join(pieces)) for name, pieces in self._pieces.items())
        for call, pieces in zip(self._calls, self._arguments, strict=True):
            call["function"]["arguments"] = "".join(pieces)
        if self._calls:
            self._message["tool_calls"] = self._calls
        return answer(self._message, self._finish, self._usage, model=self._model, id=self._id)

    def _add(self, delta: dict[str, Any]) -> Delta | None:
        for name, value in delta.items():
            if name == "tool_calls":
                for piece in value if isinstance(value, list) else ():
                    self._add_call(piece)
            elif isinstance(value, str) and name != "role":
                self._grow(len(value))
                self._pieces.setdefault(name, []).append(value)
            elif isinstance(value, list) and isinstance(held := self._message.get(name), list):
                self._grow(len(dumps(value)))
                held.extend(value)
            elif value is not None:
                self._message[name] = value
        content, reasoning = delta.get("content"), delta.get("reasoning_content") or delta.get("reasoning")
        content = content if isinstance(content, str) else ""
        reasoning = reasoning if isinstance(reasoning, str) else ""
        if not content and not reasoning:
            return None
        self.begun = True
        return Delta(content=content, reasoning=reasoning)

    def _add_call(self, piece: Any) -> None:
        if not isinstance(piece, dict):
            raise malformed("a piece of a tool call is no object")
        self.begun = True
        function = piece.get("function")
        function = function if isinstance(function, dict) else {}
        place = self._place(piece, function)
        call = self._calls[place]
        call.update((name, value) for name, value in piece.items() if name not in ("index", "function") and value)
        for name, value in function.items():
            if name == "arguments" and value is not None:
                text = value if isinstance(value, str) else dumps(value).decode()
                self._grow(len(text))
                self._arguments[place].append(text)
            elif name != "arguments" and value:
                call["function"][name] = value

    def _grow(self, chars: int) -> None:
        self._room -= chars
        if self._room < 0:
            raise malformed(f"it is longer than {self._max_chars:,} characters")

    def _place(self, piece: dict[str, Any], function: dict[str, Any]) -> int:
        """Which call a piece belongs to: by index; a named piece with another id under a known index is a new call."""
        index = piece.get("index")
        key = index if isinstance(index, int) else -1
        place = self._by_index.get(key)
        id = piece.get("id")
        other = place is not None and id and function.get("name") and self._calls[place].get("id") not in (None, id)
        if place is None or other:
            if len(self._calls) == MAX_TOOL_CALLS:
                raise malformed(f"it has more than {MAX_TOOL_CALLS} tool calls")
            place = len(self._calls)
            self._by_index[key] = place
            self._calls.append({"type": "function", "function": {}})
            self._arguments.append([])
        return place
