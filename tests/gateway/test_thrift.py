"""The soft limit: a cheaper model once most of a budget is used, told once, and marked in the answers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Delta, Endpoint, PlainReply, Reply
from siafu.gateway.scripted import Scripted
from siafu.gateway.thrift import Thrift, Thrifty
from siafu.observe.calls import CallContext
from siafu.observe.events import CheaperModel, Event

ASK = ChatRequest(model="big", messages=[{"role": "user", "content": "안녕"}])
CONTEXT = CallContext(run="r", task="t")


class Line:
    def __init__(self, spent: int, inner: Endpoint | None = None) -> None:
        self.events: list[Event] = []
        self.script = Scripted(lambda request, context: f"by {request.model}")
        accounts = Accounts()
        accounts.set("r", limit=100, spent=spent)
        thrift = Thrift(soft=Decimal("0.8"), cheaper={"big": "small"})
        self.thrifty = Thrifty(inner or self.script, thrift, accounts, self.events.append)

    async def ask(self, request: ChatRequest = ASK) -> Any:
        return await (await self.thrifty.open(request, CONTEXT)).message()


async def test_below_the_soft_limit_nothing_changes() -> None:
    line = Line(79)
    assert [request.model async for request in _asked(line, 2)] == ["big", "big"] and line.events == []


async def test_from_it_on_the_cheaper_model_is_asked_and_it_is_said_once() -> None:
    line = Line(80)
    answers = [await line.ask(), await line.ask()]
    assert [(answer.text, answer.instead_of) for answer in answers] == [("by small", "big")] * 2
    assert line.events == [CheaperModel(run="r", task="t", model="big", instead="small")]
    other = await line.ask(ChatRequest(model="other", messages=ASK.messages))
    assert (other.text, other.instead_of) == ("by other", "")


class Stream:
    """An Endpoint whose replies arrive in pieces."""

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        return _Streamed(await Scripted(["그래"]).open(request, context))


class _Streamed:
    def __init__(self, plain: Reply) -> None:
        self.head = plain.head
        self.deltas, self.message, self.on_end, self.aclose = plain.deltas, plain.message, plain.on_end, plain.aclose


async def test_streamed_answers_are_marked_too() -> None:
    reply = await Line(90, Stream()).thrifty.open(ASK, CONTEXT)
    ends: list[Any] = []
    reply.on_end(ends.append)
    assert not isinstance(reply, PlainReply)
    assert [delta async for delta in reply.deltas()] == [Delta(content="그래")]
    assert (await reply.message()).instead_of == ends[0].answer.instead_of == "big"
    await reply.aclose()


async def _asked(line: Line, times: int) -> Any:
    for _ in range(times):
        await line.ask()
        yield line.script.requests[-1]
