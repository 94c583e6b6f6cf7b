"""One request and its answer, on the server side: reading a body within bounds, sending, and noticing that the client
has gone.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Literal

from siafu.service.refusals import Refused

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]
Why = Literal["", "gone", "body", "queue", "room", "stop"]

MAX_BODY = 32 * 2**20
MAX_HEADERS = 16 * 1024  # bytes of a request line and its headers
GONE = "siafu.gone"  # in the scope: what the server calls when the connection is lost
_JSON = (b"content-type", b"application/json")
_process, _numbers = uuid.uuid4().hex[:20], itertools.count(1)


class Exchange:
    """`why`: what ended the work on it early: the client has gone, its body or its turn did not come in time, it
    made room for another, or the server stops. `arrived`: monotonic seconds. `events`: an answer that has begun is a
    stream of events, so that its last one can be an error. The work is that of the task that makes it.
    """

    __slots__ = (
        "_headers",
        "_receive",
        "_send",
        "_task",
        "arrived",
        "events",
        "id",
        "scope",
        "started",
        "status",
        "why",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, arrived: float) -> None:
        self.scope = scope
        self.arrived = arrived
        self.id = f"req_{_process}{next(_numbers):012x}"
        self.started = False
        self.status = 0  # once the answer has begun
        self.events = True
        self.why: Why = ""
        self._receive = receive
        self._send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._task = asyncio.current_task()
        scope[GONE] = lambda: self.cancel("gone")

    @property
    def address(self) -> str:
        """Who asks."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    def headers(self, name: bytes) -> list[bytes]:
        """The values of a header; `name` in lower case."""
        return [value for known, value in self.scope["headers"] if known == name]

    def header(self, name: bytes) -> str:
        """The value of a header that stands at most once; empty without it. Raises: Refused when it stands twice."""
        found = self._headers.get(name)
        if found is None:
            return ""
        if len(self._headers) != len(self.scope["headers"]) and len(self.headers(name)) > 1:
            raise Refused(400, f"the header {name.decode()} stands more than once", code="bad_header", again=False)
        return found.decode("latin-1").strip()

    def check_headers(self) -> None:
        """Raises: Refused when they are too large. (The server's own limit is for those that have not ended.)"""
        if sum([len(name) + len(value) for name, value in self.scope["headers"]]) > MAX_HEADERS:
            raise Refused(431, f"headers may have at most {MAX_HEADERS:,} bytes", code="too_large", again=False)

    def cancel(self, why: Why) -> None:
        """End the work on it. Does nothing the second time, nor once it has ended."""
        if not self.why and self._task is not None:
            self.why = why
            self._task.cancel()

    def end(self) -> None:
        """The work has ended, what follows is no part of it."""
        if self._task is not None and self.why:
            self._task.uncancel()
        self._task = None
        self.scope.pop(GONE, None)

    def size(self, most: int | None = None) -> int:
        """Bytes that the body may have: what its length says, `most` when it does not. most: None = MAX_BODY.

        Raises: Refused when that is too much.
        """
        most = most or MAX_BODY
        told = self.header(b"content-length")
        size = int(told) if told.isdigit() else most if self.header(b"transfer-encoding") else 0
        if size > most:
            raise _too_large(most)
        return size

    async def body(self, most: int | None = None) -> bytes:
        """The whole body. most: as in `size`. Raises: Refused when it is too large."""
        most = most or MAX_BODY
        pieces: list[bytes] = []
        size, more = 0, True
        while more:
            piece, more = await self.piece()
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise _too_large(most)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def piece(self) -> tuple[bytes, bool]:
        """The next bytes of the body, and whether more follow."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.cancel("gone")
            await asyncio.sleep(0)
        return message.get("body", b""), message.get("more_body", False)

    def begin(self, status: int, headers: Sequence[Header]) -> Awaitable[None]:
        self.started, self.status = True, status
        id = self.id.encode()
        own = ((b"x-request-id", id), (b"x-siafu-request-id", id))  # the first is what OpenAI's clients look for
        return self._send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})

    def write(self, data: bytes, *, more: bool = True) -> Awaitable[None]:
        """Send a piece of the answer; waits while the client takes nothing in, as long as the server lets it."""
        return self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def answer(self, body: bytes, headers: Sequence[Header] = (), *, status: int = 200) -> None:
        """The whole answer, in JSON."""
        await self.begin(status, [_JSON, (b"content-length", str(len(body)).encode()), *headers])
        await self.write(body, more=False)

    async def refuse(self, refused: Refused, headers: Sequence[Header] = ()) -> None:
        await self.answer(refused.body(), [*refused.headers(), *headers], status=refused.status)


def _too_large(most: int) -> Refused:
    return Refused(413, f"a body may have at most {most:,} bytes", code="too_large", again=False)
