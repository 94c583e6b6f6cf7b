"""The run of an agent: its steps, its limits, its repair turn, and how it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pytest

from siafu.agents.agent import LAST_TURN, MAX_REFUSED_TURNS, Agent, AgentLimits
from siafu.agents.arguments import RefusedCall
from siafu.agents.steps import FinalStep, ModelStep, RepairStep, Step, ToolStep
from siafu.errors import (
    ConfigError,
    DeadlineReached,
    OutcomeUnknown,
    OutputInvalid,
    ReplyTruncated,
    RequestRefused,
    SiafuError,
    StepLimit,
    TokenLimit,
)
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.scripted import Answer, Scripted, say
from siafu.observe.calls import CallContext
from siafu.pace.clock import VirtualClock
from siafu.tools.toolset import Tool, ToolResult

from .agent_fakes import FakeTools, context, tool_messages

STATUS = ("a", "get_order_status", '{"order_id":"1"}')
PING = ("p", "ping", "{}")


class Ticket(msgspec.Struct, frozen=True):
    category: Literal["refund", "other"]


SORTER = Agent(name="sorter", instructions="Sort.", tools=(), output=Ticket)


async def play(agent: Agent, *answers: Answer, tools: FakeTools | None = None) -> tuple[list[Step], Scripted]:
    """All steps of a run over a script."""
    endpoint = Scripted(answers)
    ctx = await context(endpoint, tools)
    return [done async for done in agent.run(ctx, "where is it?")], endpoint


async def fails(agent: Agent, error: type[SiafuError], *answers: Answer, tools: FakeTools | None = None) -> Scripted:
    endpoint = Scripted(answers)
    ctx = await context(endpoint, tools)
    run = agent.run(ctx, "where is it?")
    with pytest.raises(error):
        async for _ in run:
            pass
    with pytest.raises(StopAsyncIteration):  # it is over, nothing is asked again
        await anext(run)
    return endpoint


async def test_a_run_is_steps_and_ends_with_the_final_one() -> None:
    agent = Agent(name="desk", instructions="Be kind.", model="big", role="order_status", temperature=0.2, max_tokens=9)
    tools = FakeTools()
    steps, endpoint = await play(agent, say(None, STATUS, ("b", "nope", "{}")), "도착했습니다", tools=tools)
    assert [type(done) for done in steps] == [ModelStep, ToolStep, RefusedCall, ModelStep, FinalStep]
    assert steps[-1] == FinalStep(text="도착했습니다", output=None, steps=2, tool_calls=1)
    first, second = endpoint.requests
    assert first.messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "where is it?"},
    ]
    assert (first.model, first.temperature, first.max_tokens, first.tool_choice) == ("big", 0.2, 9, None)
    assert [tool["function"]["name"] for tool in first.tools or ()] == ["get_order_status", "process_refund", "ping"]
    assert second.messages[:2] == first.messages
    assert [call_id for call_id, _ in tool_messages(second.messages)] == ["a", "b"]
    assert tools.lists == 1
    assert {(c.agent, c.role) for c in endpoint.contexts + tools.contexts} == {("desk", "order_status")}


async def test_the_model_step_comes_before_its_tools_run() -> None:
    tools = FakeTools()
    run = Agent(name="desk").run(await context(Scripted([say(None, PING), "ok"]), tools), "hi")
    assert isinstance(await anext(run), ModelStep)
    assert tools.calls == []
    assert isinstance(await anext(run), ToolStep)


async def test_an_agent_sees_only_its_tools_in_its_order() -> None:
    tools = FakeTools()
    agent = Agent(name="desk", tools=("ping", "get_order_status"))
    refund = ("r", "process_refund", '{"order_id":"1"}')
    steps, endpoint = await play(agent, say(None, refund), "no", tools=tools)
    assert [tool["function"]["name"] for tool in endpoint.requests[0].tools or ()] == ["ping", "get_order_status"]
    assert isinstance(steps[1], RefusedCall)
    assert steps[1].reason == "tool_denied"
    assert tools.calls == []


async def test_an_agent_without_tools_asks_for_none() -> None:
    tools = FakeTools()
    steps, endpoint = await play(Agent(name="desk", tools=()), say(None, PING), "no", tools=tools)
    assert "tools" not in endpoint.requests[0].body()
    assert isinstance(steps[1], RefusedCall)
    assert (tools.lists, tools.calls) == (0, [])
    steps, _ = await play(Agent(name="desk"), say(None, PING), "no")
    assert isinstance(steps[1], RefusedCall)


@pytest.mark.parametrize("tools", [FakeTools(), None])
async def test_a_tool_that_is_not_there_is_a_clear_error(tools: FakeTools | None) -> None:
    await fails(Agent(name="desk", tools=("ping", "fly")), ConfigError, tools=tools)


async def test_f14_reasoning_goes_back_and_is_not_the_answer() -> None:
    def script(request: ChatRequest, context: CallContext) -> Answer:
        if len(request.messages) == 1:
            return say(None, PING, reasoning_content="r1")
        if request.messages[1].get("reasoning_content") != "r1":
            return RequestRefused("reasoning_content is missing", status=400)
        return say("done", reasoning_content="r2")

    final = await Agent(name="desk").ask(await context(Scripted(script), FakeTools()), "hi")
    assert final.text == "done"


async def test_f12_ids_that_come_again_in_a_later_turn_become_new_ones() -> None:
    again = ("f:0", "ping", "{}"), ("f:0_2", "ping", "{}")

    def script(request: ChatRequest, context: CallContext) -> Answer:
        asked = [c["id"] for m in request.messages for c in m.get("tool_calls") or ()]
        told = [m["tool_call_id"] for m in request.messages if m["role"] == "tool"]
        if asked != told or len(set(told)) != len(told):
            return RequestRefused("duplicated tool_call_id", status=400)
        return say(None, *again) if len(told) < 6 else "done"

    tools = FakeTools()
    agent = Agent(name="desk")
    run = agent.run(await context(Scripted(script), tools), "hi")
    steps = [step async for step in run]
    assert isinstance(steps[-1], FinalStep) and steps[-1].tool_calls == 6
    ids = [m["tool_call_id"] for m in run.conversation.messages if m["role"] == "tool"]
    assert ids[:2] == ["f:0", "f:0_2"] and len(set(ids)) == 6


# --- limits


async def test_the_last_turn_is_asked_for_without_tools() -> None:
    agent = Agent(name="desk", limits=AgentLimits(steps=3))
    steps, endpoint = await play(agent, say(None, PING), say(None, PING), "as far as I know", tools=FakeTools())
    assert [request.tool_choice for request in endpoint.requests] == [None, None, "none"]
    assert endpoint.requests[2].messages[-1] == {"role": "user", "content": LAST_TURN}
    assert endpoint.requests[2].tools == endpoint.requests[0].tools  # the prefix stays
    assert isinstance(steps[-1], FinalStep)
    assert (steps[-1].flagged, steps[-1].text) == ("last_turn", "as far as I know")


async def test_an_answer_before_the_last_turn_is_not_flagged() -> None:
    steps, _ = await play(
        Agent(name="desk", limits=AgentLimits(steps=3)), say(None, PING), "so it is", tools=FakeTools()
    )
    assert isinstance(steps[-1], FinalStep)
    assert steps[-1].flagged == ""
    steps, _ = await play(Agent(name="desk", tools=(), limits=AgentLimits(steps=1)), "so it is", tools=FakeTools())
    assert isinstance(steps[-1], FinalStep)
    assert steps[-1].flagged == ""


async def test_calls_in_the_last_turn_are_refused_and_end_the_run() -> None:
    tools = FakeTools()
    agent = Agent(name="desk", limits=AgentLimits(steps=2))
    endpoint = await fails(agent, StepLimit, say(None, PING), say("let me see", PING), tools=tools)
    assert len(endpoint.requests) == 2
    assert len(tools.calls) == 1


async def test_the_limit_of_tool_calls() -> None:
    tools = FakeTools()
    agent = Agent(name="desk", limits=AgentLimits(tool_calls=2))
    calls = [(f"c{n}", "ping", "{}") for n in range(3)]
    steps, endpoint = await play(agent, say(None, *calls), "enough", tools=tools)
    assert len(tools.calls) == 2
    assert "limit" in tool_messages(endpoint.requests[1].messages)[2][1]
    assert endpoint.requests[1].tool_choice == "none"
    assert isinstance(steps[-1], FinalStep)
    assert (steps[-1].tool_calls, steps[-1].flagged) == (2, "last_turn")


@pytest.mark.parametrize(
    "refused",
    [
        say(None, ("a", "nope", "{}")),
        say(None, ("a", "ping", "{oops")),
        say(None, ("a", "ping", "{}"), finish="length"),
        say(None, ("a", "get_order_status", "{}"), ("b", "nope", "")),
    ],
)
async def test_f10_a_loop_of_refusals_ends_early(refused: ChatAnswer) -> None:
    tools = FakeTools()
    endpoint = await fails(Agent(name="desk"), StepLimit, *[refused] * MAX_REFUSED_TURNS, tools=tools)
    assert len(endpoint.requests) == MAX_REFUSED_TURNS
    assert tools.calls == []


async def test_refusals_that_are_not_in_a_row_go_on() -> None:
    bad, good = say(None, ("a", "nope", "{}")), say(None, PING)
    steps, _ = await play(Agent(name="desk"), bad, bad, good, bad, bad, "ok", tools=FakeTools())
    assert isinstance(steps[-1], FinalStep)
    assert steps[-1].steps == 6


async def test_tokens_end_the_run_before_the_next_turn() -> None:
    greedy = msgspec.structs.replace(say(None, PING), usage=Usage(input=900, output=100))
    agent = Agent(name="desk", limits=AgentLimits(tokens=2_000))
    endpoint = await fails(agent, TokenLimit, greedy, greedy, tools=FakeTools())
    assert len(endpoint.requests) == 2
    silent = msgspec.structs.replace(say(None, ("a", "nope", "x" * 4_000)), usage=None)
    await fails(Agent(name="desk", limits=AgentLimits(tokens=1_000)), TokenLimit, silent, tools=FakeTools())
    await fails(Agent(name="desk", limits=AgentLimits(tokens=10_000)), StepLimit, *[silent] * 3, tools=FakeTools())


async def test_seconds_end_a_tool_that_hangs() -> None:
    cleaned = asyncio.Event()

    async def hang(arguments: dict[str, Any]) -> ToolResult:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        raise AssertionError

    async with asyncio.timeout(10):
        agent = Agent(name="desk", limits=AgentLimits(seconds=0.05))
        await fails(agent, DeadlineReached, say(None, PING), tools=FakeTools(ping=hang))
    assert cleaned.is_set()


async def test_seconds_and_the_deadline_travel_with_every_call() -> None:
    clock = VirtualClock()
    agent = Agent(name="desk", limits=AgentLimits(seconds=30))

    for outer, expected in [(None, 30.0), (10.0, 10.0), (60.0, 30.0)]:
        endpoint, tools = Scripted([say(None, PING), "ok"]), FakeTools()
        deadline = None if outer is None else clock.now() + outer
        ctx = await context(endpoint, tools, clock=clock, call=CallContext(deadline=deadline))
        await agent.ask(ctx, "hi")
        assert {c.deadline for c in endpoint.contexts + tools.contexts} == {clock.now() + expected}

    async def slow(arguments: dict[str, Any]) -> ToolResult:
        await clock.sleep(31)
        return ToolResult(text="late")

    endpoint = Scripted([say(None, PING), "never asked for"])
    ctx = await context(endpoint, FakeTools(ping=slow), clock=clock)
    with pytest.raises(DeadlineReached, match="desk"):
        await agent.ask(ctx, "hi")
    assert len(endpoint.requests) == 1


async def test_seconds_end_tools_that_cannot_be_listed() -> None:
    class Stuck(FakeTools):
        async def list(self) -> Sequence[Tool]:
            await asyncio.Event().wait()
            raise AssertionError

    async with asyncio.timeout(10):
        await fails(Agent(name="desk", limits=AgentLimits(seconds=0.05)), DeadlineReached, tools=Stuck())


async def test_a_timeout_from_inside_is_not_taken_for_the_deadline() -> None:
    ctx = await context(Scripted([TimeoutError("of the script")]))
    with pytest.raises(TimeoutError, match="of the script"):
        await Agent(name="desk", limits=AgentLimits(seconds=60)).ask(ctx, "hi")


async def test_a_call_whose_outcome_is_unknown_is_not_made_again() -> None:
    tools = FakeTools(process_refund=OutcomeUnknown("the server died"))
    refund = say(None, ("r", "process_refund", '{"order_id":"1","amount":5}'))
    again = say(None, ("s", "process_refund", '{"amount":5, "order_id":"1"}'))
    steps, endpoint = await play(Agent(name="desk"), refund, again, "it is being checked", tools=tools)
    assert len(tools.calls) == 1
    assert [text.split(":")[0] for _, text in tool_messages(endpoint.requests[2].messages)] == [
        "ERROR (outcome_unknown)",
        "NOT RUN (outcome_unknown)",
    ]
    assert isinstance(steps[-1], FinalStep)


# --- the declared output


async def test_a_valid_output_comes_as_its_type() -> None:
    steps, endpoint = await play(SORTER, '```json\n{"category":"refund"}\n```')
    assert [type(done) for done in steps] == [ModelStep, FinalStep]
    assert isinstance(steps[-1], FinalStep)
    assert steps[-1].output == Ticket("refund")
    assert endpoint.requests[0].response_format is not None


@pytest.mark.parametrize(
    "first",
    [
        '{"category":"billing"}',
        "I would say refund.",
        say('{"category":"refund"}', finish="length"),
        say(None),
        say("", finish="content_filter"),
    ],
)
async def test_a_bad_output_gets_one_repair_turn(first: Answer) -> None:
    steps, endpoint = await play(SORTER, first, '{"category":"other"}')
    assert [type(done) for done in steps] == [ModelStep, RepairStep, ModelStep, FinalStep]
    assert isinstance(steps[-1], FinalStep)
    assert (steps[-1].output, steps[-1].steps, steps[-1].flagged) == (Ticket("other"), 2, "")
    asked = endpoint.requests[1].messages[-1]
    assert isinstance(steps[1], RepairStep)
    assert asked["role"] == "user"
    assert steps[1].reason in asked["content"]
    assert [c.step for c in endpoint.contexts] == ["/sorter#0", "/sorter#1"]  # each with attempts of its own


async def test_f20_a_label_outside_the_set_twice_is_an_error_or_the_flagged_default() -> None:
    billing = '{"category":"billing"}'
    endpoint = await fails(SORTER, OutputInvalid, billing, billing)
    assert len(endpoint.requests) == 2
    for default in (Ticket("other"), {"category": "other"}):
        agent = Agent(name="sorter", output=Ticket, default=default)
        steps, _ = await play(agent, billing, billing)
        assert isinstance(steps[-1], FinalStep)
        assert (steps[-1].output, steps[-1].flagged, steps[-1].text) == (Ticket("other"), "default", billing)


async def test_f41_the_tokens_of_a_bad_answer_are_counted() -> None:
    answers = [
        msgspec.structs.replace(say(text), usage=Usage(input=100, output=output))
        for text, output in [("no json", 50), ('{"category":"refund"}', 40)]
    ]
    ctx = await context(Scripted(answers))
    await SORTER.ask(ctx, "hi")
    assert (ctx.spent.input_tokens, ctx.spent.output_tokens, ctx.spent.calls) == (200, 90, 2)


async def test_a_cut_or_empty_text_gets_one_repair_turn() -> None:
    cut = say("Dear cu", finish="length")
    steps, endpoint = await play(Agent(name="desk"), cut, "Hello", tools=FakeTools())
    assert isinstance(steps[-1], FinalStep)
    assert steps[-1].text == "Hello"
    assert endpoint.requests[1].tool_choice == "none"
    await fails(Agent(name="desk"), ReplyTruncated, cut, cut)
    await fails(Agent(name="desk"), OutputInvalid, say(None), say(" "))


async def test_an_empty_message_is_not_sent_back() -> None:
    _, endpoint = await play(SORTER, say(None, reasoning_content="hm"), '{"category":"other"}')
    assert [message["role"] for message in endpoint.requests[1].messages] == ["system", "user", "user"]
    _, endpoint = await play(SORTER, "hm", '{"category":"other"}')
    assert [message["role"] for message in endpoint.requests[1].messages] == ["system", "user", "assistant", "user"]


async def test_a_repair_turn_runs_no_tools() -> None:
    tools = FakeTools()
    await fails(SORTER, OutputInvalid, "hm", say(None, PING), tools=tools)
    agent = Agent(name="sorter", output=Ticket)
    await fails(agent, OutputInvalid, "hm", say(None, PING), tools=tools)
    assert tools.calls == []


async def test_the_last_turn_may_be_repaired() -> None:
    agent = Agent(name="sorter", output=Ticket, limits=AgentLimits(steps=2))
    steps, endpoint = await play(agent, say(None, PING), "hm", '{"category":"other"}', tools=FakeTools())
    assert isinstance(steps[-1], FinalStep)
    assert (steps[-1].output, steps[-1].flagged, steps[-1].steps) == (Ticket("other"), "last_turn", 3)
    assert [request.tool_choice for request in endpoint.requests] == [None, "none", "none"]


# --- ends


async def test_a_model_error_ends_the_run() -> None:
    await fails(
        Agent(name="desk"), RequestRefused, say(None, PING), RequestRefused("no", status=400), tools=FakeTools()
    )


async def test_leaving_early_leaks_nothing() -> None:
    for count in range(4):
        tools = FakeTools()
        ctx = await context(Scripted([say(None, PING, STATUS), "ok"]), tools)
        async for _ in Agent(name="desk", limits=AgentLimits(seconds=60)).run(ctx, "hi"):
            if count == 0:
                break
            count -= 1
        gc.collect()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert tools.running == 0
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_cancelling_a_run_gives_the_model_call_up() -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def script(request: ChatRequest, context: CallContext) -> Answer:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        raise AssertionError

    task = asyncio.create_task(Agent(name="desk").ask(await context(Scripted(script)), "hi"))
    async with asyncio.timeout(5):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert cleaned.is_set()


# --- as work


@pytest.mark.parametrize(
    ("item", "text"), [("환불해 주세요", "환불해 주세요"), ({"id": 1, "text": "환불"}, '{"id":1,"text":"환불"}')]
)
async def test_an_agent_is_work(item: Any, text: str) -> None:
    endpoint = Scripted(["fine", '{"category":"refund"}'])
    ctx = await context(endpoint)
    assert await Agent(name="desk").work(item, ctx) == "fine"
    assert endpoint.requests[0].messages[-1]["content"] == text
    assert await SORTER.work(item, ctx) == {"category": "refund"}


BASE = Agent(name="desk", output=Ticket)


@pytest.mark.parametrize(
    "other",
    [
        Agent(name="desk2", output=Ticket),
        Agent(name="desk", output=Ticket, instructions="x"),
        Agent(name="desk", output=Ticket, model="big"),
        Agent(name="desk", output=Ticket, role="r"),
        Agent(name="desk", output=Ticket, tools=()),
        Agent(name="desk"),
        Agent(name="desk", output=Ticket, default={"category": "other"}),
        Agent(name="desk", output=Ticket, limits=AgentLimits(steps=3)),
        Agent(name="desk", output=Ticket, temperature=0.0),
        Agent(name="desk", output=Ticket, max_tokens=5),
        Agent(name="desk", output=Ticket, extra={"seed": 1}),
    ],
)
def test_the_fingerprint_covers_every_field(other: Agent) -> None:
    assert len(BASE.fingerprint()) == 64
    assert BASE.fingerprint() == Agent(name="desk", output=Ticket).fingerprint()
    assert other.fingerprint() != BASE.fingerprint()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a/b"},
        {"name": "a#1"},
        {"name": "x" * 65},
        {"name": "a", "default": 1},
        {"name": "a", "output": Ticket, "default": {"category": "billing"}},
        {"name": "a", "output": int},
    ],
)
def test_a_wrong_agent_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Agent(**wrong)
    assert Agent(name="안내_desk-1.b").name


@pytest.mark.parametrize("name", ["steps", "tool_calls", "tokens", "seconds", "result_chars"])
@pytest.mark.parametrize("value", [0, -1])
def test_limits_are_positive(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=name):
        AgentLimits(**{name: value})
