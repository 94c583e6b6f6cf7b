"""The Endpoint seam: `open(request, context) -> Reply`. Everything that wraps a model call wraps this.

`open` returns when the whole answer (plain) or the first delta (streamed) is there; wrappers act only around it.
What must be given back at the end of a call (permits, reservations, spans) hangs on `Reply.on_end`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, Protocol

import msgspec

from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.observe.calls import CallContext

Outcome = Literal["completed", "failed", "abandoned"]


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a streamed answer: text of the answer, text of the reasoning. When the request asked to keep them,
    `events` instead: the data of those that came together, each as it came.
    """

    content: str = ""
    reasoning: str = ""
    events: tuple[bytes, ...] = ()


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a reply ended. `answer` when completed; `error` when failed; neither when abandoned.
    `seconds`: from the request's first byte to the end; `first_token`: seconds to the first delta, None when plain.
    """

    outcome: Outcome
    answer: ChatAnswer | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    first_token: float | None = None


EndCallback = Callable[[End], None]


class Reply(Protocol):
    """One answer, whole or arriving. Exactly one End is told to every callback, also to those added afterwards."""

    head: ReplyHead

    def deltas(self) -> AsyncIterator[Delta]:
        """The transport's own iterator; for a plain reply, one delta with the whole content."""
        ...

    def message(self) -> Awaitable[ChatAnswer]:
        """The whole validated answer; reads the rest of the stream. May be awaited again.

        Raises: ModelError of the kind that ended it.
        """
        ...

    def on_end(self, callback: EndCallback) -> None: ...

    async def aclose(self) -> None:
        """Give the reply up (outcome `abandoned`) unless it has ended; closes the socket. Idempotent."""
        ...


class ReplyHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before the body. `headers`: lower-case names. `upstream`: its configured name. `began`: when the
    request that is answered was sent (monotonic seconds). `attempts`: it, and those before it for the same step.
    """

    status: int = 200
    upstream: str = ""
    request_id: str | None = None
    headers: dict[str, str] = {}
    began: float = 0.0
    attempts: int = 1


class Endpoint(Protocol):
    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        """Send one request.

        Raises: ModelError (its subclass says what to do), BudgetReached, DeadlineReached.
        Cancelling closes the socket and settles what was reserved.
        """
        ...


class PlainReply(msgspec.Struct, eq=False):
    """A Reply whose answer is already whole. `seconds`: as in `End`."""

    answer: ChatAnswer
    head: ReplyHead = msgspec.field(default_factory=ReplyHead)
    seconds: float = 0.0

    async def deltas(self) -> AsyncIterator[Delta]:
        yield Delta(content=self.answer.text, reasoning=_reasoning(self.answer.message))

    async def message(self) -> ChatAnswer:
        return self.answer

    def on_end(self, callback: EndCallback) -> None:
        callback(End(outcome="completed", answer=self.answer, seconds=self.seconds))

    async def aclose(self) -> None:
        return None


class ToldReply:
    """A streamed reply whose answer `change` completes. Deltas are the transport's own."""

    __slots__ = ("_change", "_inner", "head")

    def __init__(self, inner: Reply, change: Callable[[ChatAnswer], ChatAnswer]) -> None:
        self._inner = inner
        self._change = change
        self.head = inner.head

    def deltas(self) -> AsyncIterator[Delta]:
        return self._inner.deltas()

    async def message(self) -> ChatAnswer:
        return self._change(await self._inner.message())

    def on_end(self, callback: EndCallback) -> None:
        def told(end: End) -> None:
            changed = None if end.answer is None else self._change(end.answer)
            callback(msgspec.structs.replace(end, answer=changed))

        self._inner.on_end(told)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _reasoning(message: Any) -> str:
    text = message.get("reasoning_content")
    return text if isinstance(text, str) else ""
