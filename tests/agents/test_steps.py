"""One step: the calls of one reply, and one tool message for each of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.agents.arguments import RefusedCall
from siafu.agents.conversation import Conversation, opening
from siafu.agents.steps import ToolStep, step
from siafu.errors import (
    BudgetReached,
    InputError,
    OutcomeUnknown,
    ToolArgumentsInvalid,
    ToolDenied,
    ToolFault,
    ToolTimeout,
    ToolUnavailable,
)
from siafu.gateway.chat import ChatAnswer
from siafu.gateway.scripted import Scripted, say
from siafu.tools.toolset import ToolResult

from .agent_fakes import SHOP, FakeTools, context, tool_messages

Told = list[tuple[str, str]]


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


async def told(answer: ChatAnswer, tools: FakeTools, **options: Any) -> tuple[Told, list[ToolStep | RefusedCall]]:
    ctx = await context(Scripted([]), tools)
    by_name = {tool.name: tool for tool in tools.tools}
    conversation, steps = await step(ctx, opening("hi"), answer, by_name, **options)
    replayed = conversation.messages[1]
    assert {**replayed, "tool_calls": None} == {**answer.message, "tool_calls": None}
    for asked, sent in zip(answer.tool_calls, replayed.get("tool_calls", ()), strict=True):
        assert (sent["id"], sent["function"]["name"]) == (asked.id, asked.name)
        assert sent["function"]["arguments"] == (asked.arguments if is_object(asked.arguments) else "{}")
    return tool_messages(conversation.messages), steps


async def test_all_calls_of_a_reply_run_at_once_and_answer_in_order() -> None:
    arrived = asyncio.Barrier(3)

    async def meet(arguments: dict[str, Any]) -> ToolResult:
        await arrived.wait()  # passes only when all three are inside
        return ToolResult(text=f"order {arguments['order_id']}")

    tools = FakeTools(get_order_status=meet)
    calls = [(f"id{n}", "get_order_status", f'{{"order_id":"{n}"}}') for n in range(3)]
    async with asyncio.timeout(5):
        messages, steps = await told(say(None, *calls), tools)
    assert messages == [("id0", "order 0"), ("id1", "order 1"), ("id2", "order 2")]
    assert [type(item) for item in steps] == [ToolStep] * 3


async def test_f10_a_broken_call_is_refused_and_its_sibling_runs() -> None:
    tools = FakeTools()
    good, cut = '{"order_id":"1001"}', '{"order_id":"1001","amount":'
    messages, _ = await told(say(None, ("a", "get_order_status", good), ("b", "process_refund", cut)), tools)
    assert tools.calls == [("get_order_status", {"order_id": "1001"})]
    assert [call_id for call_id, _ in messages] == ["a", "b"]
    assert "1001" in messages[0][1]
    assert messages[1][1].startswith("NOT RUN (tool_arguments_invalid)")
    assert "not valid JSON" in messages[1][1]


def test_a_message_whose_arguments_are_whole_is_replayed_as_it_came() -> None:
    answer = say(None, ("a", "ping", '{"order_id":"1001"}'), reasoning_content="r1")
    assert opening("hi").assistant(answer).messages[1] is answer.message


async def test_f12_two_calls_of_one_tool_keep_their_own_answers() -> None:
    tools = FakeTools()
    calls = [("f:0", "get_order_status", '{"order_id":"A"}'), ("f:0-1", "get_order_status", '{"order_id":"B"}')]
    messages, _ = await told(say(None, *calls), tools)
    assert [(i, "A" in text, "B" in text) for i, text in messages] == [("f:0", True, False), ("f:0-1", False, True)]
    assert len(tools.calls) == 2


async def test_f13_a_cut_reply_runs_nothing() -> None:
    tools = FakeTools()
    calls = [("a", "ping", "{}"), ("b", "process_refund", '{"order_id":"1"}')]
    messages, _ = await told(say(None, *calls, finish="length"), tools)
    assert tools.calls == []
    assert [call_id for call_id, _ in messages] == ["a", "b"]
    assert all("cut" in text and "Call again" in text for _, text in messages)


async def test_f25_an_error_result_is_told_as_an_error() -> None:
    failed = ToolResult(text="backend offline", structured={"total": 7}, is_error=True, code="offline")
    ((_, text),), (done,) = await told(say(None, ("a", "ping", "{}")), FakeTools(ping=failed))
    assert text == "ERROR (offline): backend offline"
    assert isinstance(done, ToolStep)
    assert done.result.is_error


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ToolResult(text=""), "(the tool returned nothing)"),
        (ToolResult(text="", is_error=True), "ERROR (failed): the tool gave no reason"),
        (ToolResult(text="배송 중"), "배송 중"),
        (ToolResult(text="a\x00b"), "a\ufffdb"),
    ],
)
async def test_every_result_has_a_text(result: ToolResult, text: str) -> None:
    messages, _ = await told(say(None, ("a", "ping", "{}")), FakeTools(ping=result))
    assert messages == [("a", text)]


UNCLEAR = "do not call it again"


@pytest.mark.parametrize(
    ("name", "fault", "code", "unclear"),
    [
        ("ping", ToolTimeout("no answer in 5 s"), "tool_timeout", False),
        ("process_refund", ToolTimeout("no answer in 5 s."), "outcome_unknown", True),
        ("process_refund", OutcomeUnknown("the server died"), "outcome_unknown", True),
        ("ping", OutcomeUnknown("the server died"), "outcome_unknown", True),
        ("process_refund", ToolUnavailable("cannot be reached"), "tool_unavailable", False),
        ("process_refund", ToolDenied("not on a Sunday"), "tool_denied", False),
        ("process_refund", ToolArgumentsInvalid("no such order"), "tool_arguments_invalid", False),
        ("ping", ToolFault("odd"), "tool_fault", False),
    ],
)
async def test_a_fault_is_told_to_the_model(name: str, fault: ToolFault, code: str, unclear: bool) -> None:
    arguments = '{"order_id":"1"}' if name == "process_refund" else "{}"
    ((_, text),), _ = await told(say(None, ("a", name, arguments)), FakeTools(SHOP, **{name: fault}))
    assert text.startswith(f"ERROR ({code}): {fault.message.rstrip('.')}")
    assert (UNCLEAR in text) is unclear
    assert ".." not in text


async def test_a_long_result_is_cut_with_a_note() -> None:
    long = FakeTools(ping=ToolResult(text="가" * 1_200))
    ((_, text),), (done,) = await told(say(None, ("a", "ping", "{}")), long, result_chars=1_000)
    assert text == "가" * 1_000 + "\n[cut here: 200 of 1,200 characters are not shown]"
    assert isinstance(done, ToolStep)
    assert len(done.result.text) == 1_200
    messages, _ = await told(say(None, ("a", "ping", "{}")), long, result_chars=1_200)
    assert messages == [("a", "가" * 1_200)]


async def test_f14_the_raw_message_goes_back_as_it_came() -> None:
    answer = say(None, ("a", "ping", "{}"), reasoning_content="r1", other={"x": [1]})
    await told(answer, FakeTools())  # asserts that the very message is replayed


async def test_what_is_no_tool_fault_is_raised_when_the_siblings_have_ended() -> None:
    ended: list[str] = []

    async def slow(arguments: dict[str, Any]) -> ToolResult:
        for _ in range(20):
            await asyncio.sleep(0)
        ended.append("slow")
        return ToolResult(text="")

    tools = FakeTools(ping=BudgetReached("spent"), get_order_status=slow)
    with pytest.raises(BudgetReached):
        await told(say(None, ("a", "ping", "{}"), ("b", "get_order_status", '{"order_id":"1"}')), tools)
    assert ended == ["slow"]
    assert tools.running == 0


async def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    """A cancelled task would count as stopped on purpose, and its item would be lost."""
    with pytest.raises(ToolFault, match="from inside"):
        await told(say(None, ("a", "ping", "{}")), FakeTools(ping=asyncio.CancelledError()))


async def test_cancelling_cancels_the_calls_and_waits_for_them() -> None:
    inside = asyncio.Event()
    cleaned: list[str] = []

    async def hang(arguments: dict[str, Any]) -> ToolResult:
        if tools.running == 2:
            inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(arguments["order_id"])
        raise AssertionError

    tools = FakeTools(get_order_status=hang)
    calls = [(str(n), "get_order_status", f'{{"order_id":"{n}"}}') for n in range(2)]
    task = asyncio.create_task(told(say(None, *calls), tools))
    async with asyncio.timeout(5):
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sorted(cleaned) == ["0", "1"]
    assert tools.running == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


# name, arguments, whether it may run
CALLS = st.sampled_from(
    [
        ("ping", "", True),
        ("ping", "{}", True),
        ("ping", '{"x":1}', False),
        ("get_order_status", '{"order_id":"1"}', True),
        ("get_order_status", '{"order_id":', False),
        ("get_order_status", "{}", False),
        ("process_refund", '{"order_id":"1","amount":5}', True),
        ("process_refund", '{"order_id":"1","amount":"5"}', False),
        ("process_refund", '{"order_id":"1","order_id":"2"}', False),
        ("drop_table", "{}", False),
        ("PING", "{}", False),
    ]
)
BODIES = st.sampled_from(
    [None, ToolResult(text="fine"), ToolResult(text="no", is_error=True), ToolTimeout("late"), OutcomeUnknown("gone")]
)


@settings(max_examples=150, deadline=None)
@given(
    calls=st.lists(CALLS, min_size=1, max_size=8),
    bodies=st.fixed_dictionaries({tool.name: BODIES for tool in SHOP}),
    finish=st.sampled_from(["tool_calls", "tool_calls", "stop", "length"]),
    allowed=st.integers(0, 9),
)
def test_each_id_gets_one_message_in_order_and_only_valid_calls_run(
    calls: list[tuple[str, str, bool]], bodies: dict[str, Any], finish: str, allowed: int
) -> None:
    answer = say(None, *[(f"id{n}", name, text) for n, (name, text, _) in enumerate(calls)], finish=finish)
    tools = FakeTools(SHOP, **{name: body for name, body in bodies.items() if body is not None})
    messages, steps = asyncio.run(told(answer, tools, allowed=allowed))
    assert [call_id for call_id, _ in messages] == [call.id for call in answer.tool_calls]
    assert all(text for _, text in messages)
    assert [item.call.id for item in steps] == [call.id for call in answer.tool_calls]
    good = [name for name, _, fits in calls if fits] if finish != "length" else []
    assert [name for name, _ in tools.calls] == good[:allowed]
    refused = [text.startswith("NOT RUN") for _, text in messages]
    assert refused == [isinstance(item, RefusedCall) for item in steps]


def test_a_conversation_is_a_value() -> None:
    first = opening("안녕\x00")
    second = first.assistant(say("hi")).tool("a", "x\ud800")
    assert first == Conversation(({"role": "user", "content": "안녕\ufffd"},))
    assert [message["role"] for message in second.messages] == ["user", "assistant", "tool"]
    assert second.messages[2]["content"] == "x\ufffd"


def test_an_earlier_conversation_may_go_on_but_brings_no_instructions() -> None:
    earlier = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert opening(earlier).messages == tuple(earlier)
    for role in ("system", "developer", None):
        with pytest.raises(InputError, match="user, assistant, tool"):
            opening([*earlier, {"role": role, "content": "obey"}])
