"""An agent's task dies at any of its steps and runs again: nothing that finished happens twice."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Any

import pytest

from siafu.agents.agent import Agent, AgentLimits
from siafu.agents.arguments import identity
from siafu.agents.replay import Replay
from siafu.agents.steps import FinalStep
from siafu.agents.strands import Place
from siafu.errors import ToolFault, ToolTimeout, ToolUnavailable
from siafu.gateway.chat import ChatRequest
from siafu.gateway.scripted import Answer, Scripted, say
from siafu.observe.calls import CallContext
from siafu.store.records import JournalEntry
from siafu.tools.toolset import ToolResult

from .agent_fakes import Crash, DictJournal, FakeTools, context

AGENT = Agent(name="desk", instructions="Help.", limits=AgentLimits(steps=5))
TURNS: list[Answer] = [
    say(None, ("a", "get_order_status", '{"order_id":"1"}'), ("b", "nope", "{}"), ("c", "ping", "")),
    say(None, ("d", "process_refund", '{"order_id":"1","amount":5}'), ("e", "get_order_status", '{"order_id":"1"}')),
    say(None, ("f", "ping", "{}"), ("g", "ping", "{}")),
    "all done",
]


REFUND = identity("process_refund", {"order_id": "1", "amount": 5})
STATUS = identity("get_order_status", {"order_id": "1"})
PLANNED = {
    REFUND: 1,
    STATUS: 2,
    identity("ping", {}): 3,
}  # how often the turns call each; every model call is made once
APPENDS = 4 + 6 + 1  # models, tools, and the mark before the refund


def by_turn(turns: list[Answer]) -> Scripted:
    """A model that, like a real one, answers what it is asked, however often it was asked before."""

    def script(request: ChatRequest, context: CallContext) -> Answer:
        return turns[sum(1 for message in request.messages if message["role"] == "assistant")]

    return Scripted(script)


async def session(endpoint: Scripted, tools: FakeTools, journal: DictJournal) -> FinalStep:
    return await AGENT.ask(await context(endpoint, tools, journal=journal), "refund order 1")


def sent(endpoint: Scripted, tools: FakeTools) -> Counter[str]:
    """Everything that left, by fingerprint."""
    asked = [sha256(request.canonical()).hexdigest() for request in endpoint.requests]
    return Counter(asked + [identity(*call) for call in tools.calls])


async def test_a_whole_run_appends_what_the_sweep_below_walks_through() -> None:
    endpoint, tools, journal = by_turn(TURNS), FakeTools(), DictJournal()
    first = await session(endpoint, tools, journal)
    assert journal.appends == APPENDS
    assert journal.finished() == sent(endpoint, tools)
    assert await session(endpoint, tools, journal) == first
    assert journal.finished() == sent(endpoint, tools)  # the second session sent nothing


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("crash_at", range(APPENDS))
async def test_a_crash_at_any_step_repeats_nothing_that_finished(crash_at: int, kept: bool) -> None:
    endpoint, tools, journal = by_turn(TURNS), FakeTools(), DictJournal(crash_at=crash_at, kept=kept)
    with pytest.raises(Crash):
        await session(endpoint, tools, journal)
    first, finished = sent(endpoint, tools), journal.finished()
    assert finished <= first
    journal.restart()
    final = await session(endpoint, tools, journal)
    assert final.text == "all done"
    everything = sent(endpoint, tools)
    lost = first - finished  # in flight when the process died: at most one turn's calls
    assert sum(lost.values()) <= 2
    assert {key: count for key, count in (everything - lost).items() if count > PLANNED.get(key, 1)} == {}
    assert everything[REFUND] <= 1


async def test_a_refund_that_was_sent_and_not_recorded_is_not_sent_again() -> None:
    tools, endpoint = FakeTools(), by_turn(TURNS)
    journal = DictJournal()

    async def die(arguments: dict[str, Any]) -> ToolResult:
        raise Crash  # after the mark, within the call

    tools.bodies["process_refund"] = die
    with pytest.raises(Crash):
        await session(endpoint, tools, journal)
    del tools.bodies["process_refund"]
    final = await session(endpoint, tools, journal)
    assert final.text == "all done"
    assert sum(name == "process_refund" for name, _ in tools.calls) == 1
    told = [str(message["content"]) for message in endpoint.requests[-1].messages if message["role"] == "tool"]
    assert sum(text.startswith("ERROR (outcome_unknown)") for text in told) == 1
    assert max(sent(endpoint, FakeTools()).values()) == 1


@pytest.mark.parametrize("fault", [ToolUnavailable("down"), ToolTimeout("late")])
@pytest.mark.parametrize("crash_at", range(2, 6))
async def test_a_fault_the_model_was_told_of_is_told_again(crash_at: int, fault: ToolFault) -> None:
    """The tool is down, the model calls it once more, and now it works: a resume must not mix the two up."""
    again = say(None, ("b", "ping", "{}"))
    turns: list[Answer] = [say(None, ("a", "ping", "{}")), again, "well"]

    worked = 0

    async def flaky(arguments: dict[str, Any]) -> ToolResult:
        nonlocal worked
        worked += 1
        if worked == 1:
            raise fault
        return ToolResult(text="pong")

    endpoint, tools, journal = by_turn(turns), FakeTools(ping=flaky), DictJournal(crash_at=crash_at)
    agent = Agent(name="desk")
    try:
        await agent.ask(await context(endpoint, tools, journal=journal), "hi")
    except Crash:
        journal.restart()
    final = await agent.ask(await context(endpoint, tools, journal=journal), "hi")
    assert final.text == "well"
    assert len(endpoint.requests) == 3
    assert worked == 2


def test_the_earlier_outcome_is_found_first_also_away_from_its_place() -> None:
    rows = [
        JournalEntry(path="/desk", seq=seq, kind=kind, fingerprint="same", outcome=b"null")
        for seq, kind in [(1, "fault"), (3, "tool")]
    ]
    replay = Replay("t", None, rows)
    found = [replay.take(Place("/desk", (0, seq)), ("tool", "fault"), "same") for seq in (5, 6, 7)]
    assert found == [*rows, None]
