"""Tools under the effect contract: called again under the key of their step, whatever the process went through."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from siafu.agents.conversation import opening
from siafu.agents.replay import Replay
from siafu.agents.steps import step
from siafu.agents.task import Surroundings, TaskContext
from siafu.errors import OutcomeUnknown, ToolDenied, ToolFault, ToolTimeout, ToolUnavailable
from siafu.gateway.chat import ChatAnswer, ToolCall
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.tools.filtered import Filtered
from siafu.tools.toolset import Tool, ToolResult

from .agent_fakes import tool_messages
from .ant_farm import DictJournal

PENDING = ToolResult(text="later", is_error=True, code="pending_approval", later=True)

AWAY = ToolResult(text="the bank is closed", is_error=True, code="closed", later=True)


class Guarded:
    """`pay` is guarded unless told otherwise. `answer`: what it gives or raises; `keys`: under which it was called."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.answer: ToolResult | BaseException = ToolResult(text="paid")
        self.guarded = True

    async def list(self) -> Sequence[Tool]:
        return [Tool(name="pay", guarded=self.guarded), Tool(name="look", read_only=True)]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        self.keys.append(context.effect_key)
        await asyncio.sleep(0)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Life:
    """One task, run again and again on one journal."""

    def __init__(self) -> None:
        self.journal, self.tools = DictJournal(), Guarded()
        self.refused: list[tuple[str, str]] = []

    async def begun(self, allowed: Sequence[str] = ("*",)) -> TaskContext:
        async def denied(call: CallContext, name: str) -> None:
            self.refused.append((call.role, name))

        around = Surroundings(
            endpoint=Scripted([]), clock=SystemClock(), tools=Filtered(self.tools, allowed), denied=denied
        )
        call = CallContext(run="r", task="t", role="order_status")
        return TaskContext(around, call, Replay("t", self.journal, await self.journal.entries("t")))

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.journal.rows.values()]


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (KeyboardInterrupt(), "intent"),
        (ToolTimeout("3 s"), "unclear"),
        (OutcomeUnknown("?"), "unclear"),
        (ToolUnavailable("away"), "unclear"),
        (PENDING, "effect"),
        (AWAY, "effect"),
    ],
)
async def test_an_open_outcome_is_asked_for_again_under_its_key(first: Any, kind: str) -> None:
    life = Life()
    life.tools.answer = first
    for _ in range(2):  # also more than once
        try:
            result = await (await life.begun()).tool("pay", {"order": 1})
        except type(first):
            continue
        assert result == first
    assert life.kinds() == [kind]
    life.tools.answer = ToolResult(text="paid")
    for _ in range(2):
        assert (await (await life.begun()).tool("pay", {"order": 1})).text == "paid"
    assert len(life.tools.keys) == 3  # the last one is in the journal
    assert len(set(life.tools.keys)) == 1 and life.tools.keys[0]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (AWAY, ToolResult(text="opens in 3 s", is_error=True, code="closed", later=True)),
        (AWAY, ToolUnavailable("gone")),
        (PENDING, ToolUnavailable("gone")),
        (ToolUnavailable("tried again in 1.2 s"), ToolUnavailable("tried again in 0.4 s")),
        (OutcomeUnknown("no answer"), OutcomeUnknown("still none")),
        (ToolTimeout("3 s"), ToolUnavailable("gone")),
    ],
)
async def test_an_answer_that_differs_in_words_alone_is_told_as_before(first: Any, then: Any) -> None:
    """Otherwise a model would be asked, and paid, about every look."""
    life = Life()
    told = []
    for answer in (first, then, then):
        life.tools.answer = answer
        ctx = await life.begun()
        try:
            told.append((await ctx.tool("pay", {})).text)
        except ToolFault as fault:
            told.append(fault.message)
        assert list(ctx.waiting.values()) == ["pay"]
    assert len(set(told)) == 1
    assert len(life.tools.keys) == 3 and len(set(life.tools.keys)) == 1


@pytest.mark.parametrize("first", [AWAY, OutcomeUnknown("?")])
async def test_a_tool_that_is_gone_leaves_what_is_open_open(first: Any) -> None:
    life = Life()
    told = []
    for answer, allowed in ((first, ["pay"]), (first, ["look"]), (ToolResult(text="paid"), ["pay"])):
        life.tools.answer = answer
        ctx = await life.begun(allowed)
        try:
            told.append((await ctx.tool("pay", {})).text)
        except OutcomeUnknown as fault:
            told.append(fault.message)
        assert bool(ctx.waiting) == (answer is first)
    assert told[0] == told[1] != told[2] == "paid"
    assert len(life.tools.keys) == 2 and len(set(life.tools.keys)) == 1


async def test_another_open_answer_is_told() -> None:
    life = Life()
    for answer in (AWAY, PENDING):
        life.tools.answer = answer
        ctx = await life.begun()
        assert await ctx.tool("pay", {}) == answer
        assert ctx.waiting == {answer.code: "pay"}


@pytest.mark.parametrize("first", [AWAY, ToolUnavailable("gone")])
async def test_a_call_made_again_in_the_same_words_takes_the_place_of_the_open_one(first: Any) -> None:
    """A step has one effect: the one that could not act must not act too, once it could."""

    async def twice(ctx: TaskContext) -> str:
        try:
            if not (before := await ctx.tool("pay", {})).is_error:
                return before.text
        except ToolUnavailable:
            pass
        life.tools.answer = ToolResult(text="paid")
        return (await ctx.tool("pay", {})).text

    life = Life()
    life.tools.answer = first
    ctx = await life.begun()
    assert await twice(ctx) == "paid"
    assert not ctx.waiting  # nothing is left to do
    ctx = await life.begun()
    assert await twice(ctx) == "paid"
    assert not ctx.waiting
    assert len(life.tools.keys) == 2 == len(set(life.tools.keys))  # all from the journal


async def test_two_that_wait_for_a_person_stay_two() -> None:
    life = Life()
    life.tools.answer = PENDING
    for _ in range(2):
        ctx = await life.begun()
        await asyncio.gather(*(ctx.tool("pay", {}) for _ in range(2)))
        await ctx.tool("pay", {})
    assert len(life.tools.keys) == 6 and len(set(life.tools.keys)) == 3


async def test_what_the_same_words_ask_at_once_waits_for_each() -> None:
    life = Life()
    life.tools.answer = AWAY
    for _ in range(2):
        ctx = await life.begun()
        await asyncio.gather(*(ctx.tool("pay", {}) for _ in range(3)))
    assert len(life.tools.keys) == 6 and len(set(life.tools.keys)) == 3


@pytest.mark.parametrize("answer", [ToolDenied("no"), ToolResult(text="no", is_error=True, code="over_limit")])
async def test_what_is_decided_is_not_asked_for_again(answer: Any) -> None:
    life = Life()
    life.tools.answer = answer
    for _ in range(3):
        ctx = await life.begun()
        if isinstance(answer, ToolResult):
            assert await ctx.tool("pay", {}) == answer
        else:
            with pytest.raises(ToolDenied):
                await ctx.tool("pay", {})
    assert len(life.tools.keys) == 1


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
async def test_without_a_contract_then_and_now_it_is_not_repeated(before: bool, after: bool) -> None:
    life = Life()
    life.tools.guarded, life.tools.answer = before, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        await (await life.begun()).tool("pay", {})
    life.tools.guarded, life.tools.answer = after, ToolResult(text="paid")
    with pytest.raises(OutcomeUnknown, match="not called again"):
        await (await life.begun()).tool("pay", {})
    assert len(life.tools.keys) == 1


async def test_every_step_has_a_key_of_its_own() -> None:
    life, other = Life(), Life()
    ctx = await life.begun()
    await asyncio.gather(*(ctx.tool("pay", {"order": 1}) for _ in range(3)), ctx.tool("look", {}))
    await (await other.begun()).tool("pay", {"order": 1})  # another journal, the same names
    keys = life.tools.keys + other.tools.keys
    assert keys.count("") == 1 and len(set(keys)) == 5


async def test_a_step_that_moved_keeps_its_key() -> None:
    life = Life()
    life.tools.answer = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        await (await life.begun()).tool("pay", {"order": 1})
    life.tools.answer = ToolResult(text="paid")
    ctx = await life.begun()
    await ctx.tool("look", {})  # new code before it
    await ctx.tool("pay", {"order": 1})
    assert life.tools.keys[0] == life.tools.keys[2] != ""


VARIANTS = ["pay", "Pay", "PAY", "pay ", "рay", "ｐａｙ", "pa\u200by", "shop.pay", "shop_pay", "pаy\0"]


@pytest.mark.parametrize("name", VARIANTS)
async def test_sec10_a_role_reaches_no_tool_but_its_own_by_any_spelling(name: str) -> None:
    life = Life()
    ctx = await life.begun(allowed=["look"])
    assert ctx.tools is not None
    offered = {tool.name: tool for tool in await ctx.tools.list()}
    assert list(offered) == ["look"]
    answer = ChatAnswer(
        message={"role": "assistant", "content": ""},
        tool_calls=(ToolCall(id="c1", name=name, arguments="{}"), ToolCall(id="c2", name="look", arguments="{}")),
    )
    conversation, steps = await step(ctx, opening("환불"), answer, offered)
    with pytest.raises(ToolDenied):
        await ctx.tool(name, {})
    with pytest.raises(ToolDenied):
        await ctx.tools.call(name, {}, CallContext())
    assert life.tools.keys == [""]  # the one look
    assert next(told for _, told in tool_messages(conversation.messages)).startswith("NOT RUN (tool_denied)")
    assert life.refused == [("order_status", name)] * 2
    assert len(steps) == 2
