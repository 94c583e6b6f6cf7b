"""Items that wait for a person's decision: told as waiting, recorded as nothing, gone on with when it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import siafu
from siafu.agents.task import TaskContext
from siafu.errors import ConfigError, InputError, ToolUnavailable
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.gateway.scripted import Scripted, say
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, ItemEnded, ItemStarted, Waited
from siafu.pace.clock import VirtualClock
from siafu.swarm.intake import Entry
from siafu.swarm.keys import Name
from siafu.swarm.map import MapRun
from siafu.swarm.parking import FIRST, MOST, Parking
from siafu.swarm.results import MapError, MapResult
from siafu.tools.toolset import Tool, ToolResult
from swarm.nest import DictStore, collect, start

PENDING = ToolResult(text="later", is_error=True, code="pending_approval", later=True)

AWAY = ToolResult(text="closed", is_error=True, code="bank_closed", later=True)


class Till:
    """`pay` waits for a person where `waits` has the order, and cannot act where `away` has it.

    `asked`: every call, with its key.
    """

    def __init__(self, *waits: str, guarded: bool = True) -> None:
        self.waits = set(waits)
        self.away: set[str] = set()
        self.guarded = guarded
        self.down = False
        self.asked: list[tuple[str, str]] = []

    async def list(self) -> Sequence[Tool]:
        return [Tool(name="pay", guarded=self.guarded)]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        self.asked.append((arguments["order"], context.effect_key))
        if self.down:
            raise ToolUnavailable("down")
        if arguments["order"] in self.away:
            return AWAY
        return PENDING if arguments["order"] in self.waits else ToolResult(text="paid")


async def pays(item: str, ctx: TaskContext) -> str:
    before = await ctx.model(f"before {item}")
    result = await ctx.tool("pay", {"order": item})
    return f"{before.text}: {(await ctx.model(f'{item} {result.text}')).text}"


def priced(request: ChatRequest, context: CallContext) -> ChatAnswer:
    return msgspec.structs.replace(say(f"<{request.messages[-1]['content']}>"), usd_pico=10)


class House:
    """Sessions over one store and one till."""

    def __init__(self, till: Till) -> None:
        self.till, self.store, self.endpoint = till, DictStore(), Scripted(priced)
        self.clock = VirtualClock()
        self.events: list[Event] = []

    def run(self, items: Sequence[Any], work: Any = pays, **options: Any) -> MapRun:
        return start(
            work, items, store=self.store.next_session(), endpoint=self.endpoint, clock=self.clock, events=self.events,
            tools=self.till, **options,
        )  # fmt: skip


async def test_a_pending_tool_makes_the_item_wait_and_the_next_session_goes_on() -> None:
    house = House(Till("b"))
    run = house.run(["a", "b"])
    found = {r.key: r for r in await collect(run)}
    assert {r.item: r.status for r in found.values()} == {"a": "ok", "b": "waiting"}
    (waits,) = [r for r in found.values() if r.status == "waiting"]
    assert (waits.ok, waits.value) == (False, "<before b>: <b later>")  # what can be told in the meantime
    assert waits.error is not None
    assert waits.error.code == siafu.ApprovalPending.code == "pending_approval"
    assert "pay" in waits.error.message
    assert (run.summary.ok, run.summary.failed, run.summary.waiting, run.summary.left) == (1, 0, 1, 0)
    assert [record.key for record in house.store.records.values()] == [
        found_a.key for found_a in found.values() if found_a.ok
    ]
    # Still undecided: asked for again, and nothing is paid for.
    calls = len(house.endpoint.requests)
    again = await collect(house.run(["a", "b"]))
    assert sorted(r.status for r in again) == ["ok", "waiting"]
    assert len(house.endpoint.requests) == calls
    house.till.waits.clear()
    run = house.run(["a", "b"])
    assert {r.value for r in await collect(run)} == {"<before a>: <a paid>", "<before b>: <b paid>"}
    assert (run.summary.ok, run.summary.waiting) == (2, 0)
    assert len(house.endpoint.requests) == calls + 1  # only what the decision has changed
    assert len({key for order, key in house.till.asked if order == "b"}) == 1
    assert {r.restored for r in await collect(house.run(["a", "b"]))} == {True}


async def test_what_cannot_be_done_now_waits_and_says_what_for() -> None:
    house = House(Till("b"))
    house.till.away = {"a", "b"}
    calls = []
    for _ in range(2):
        found = await collect(house.run(["a", "b", "c"]))
        waits = {r.item: r.error.code for r in found if r.status == "waiting" and r.error}
        assert waits == {"a": "bank_closed", "b": "bank_closed"}
        calls.append(len(house.endpoint.requests))
    assert calls[0] == calls[1]
    house.till.away.clear()
    found = await collect(house.run(["a", "b", "c"]))
    assert {r.item: r.error.code if r.error else r.value for r in found} == {
        "a": "<before a>: <a paid>",
        "b": "pending_approval",
        "c": "<before c>: <c paid>",
    }
    assert len(house.endpoint.requests) == calls[1] + 2  # what the tool's new answers have changed
    assert len({key for order, key in house.till.asked if order == "a"}) == 1


async def test_a_run_that_looks_again_tells_what_an_item_waits_for_now() -> None:
    house = House(Till("b"))
    house.till.away = {"b"}
    told = []
    async with asyncio.timeout(20):
        async for result in house.run(["b"], wait=600):
            told.append(result.error.code if result.error else result.value)
            (house.till.away if result.error and result.error.code == "bank_closed" else house.till.waits).clear()
    assert told == ["bank_closed", "pending_approval", "<before b>: <b paid>"]


@pytest.mark.parametrize("wrapped", [False, True])
async def test_work_that_ends_with_the_fault_of_an_open_effect_waits(wrapped: bool) -> None:
    async def work(item: str, ctx: TaskContext) -> str:
        try:
            return (await ctx.tool("pay", {"order": item})).text
        except ToolUnavailable:
            if wrapped:  # an error of its own is its own
                raise ValueError("no") from None
            raise

    house = House(Till())
    house.till.down = True
    run = house.run(["a"], work)
    (found,) = await collect(run)
    assert found.error is not None
    expected = ("error", "work_failed") if wrapped else ("waiting", "tool_unavailable")
    assert (found.status, found.error.code) == expected
    house.till.down = False
    (found,) = await collect(house.run(["a"], work, retry_failed=wrapped))
    assert (found.value, len({key for _, key in house.till.asked})) == ("paid", 1)


async def test_work_may_say_what_it_waits_for() -> None:
    async def work(item: str, ctx: TaskContext) -> str:
        raise siafu.NotNow("closed on Sundays", reason="sunday")

    house = House(Till())
    (found,) = await collect(house.run(["a"], work))
    assert (found.status, found.error) == ("waiting", MapError("sunday", "closed on Sundays"))
    assert any(isinstance(event, ItemEnded) and event.waits for event in house.events)
    assert not house.store.records


async def test_a_retry_asks_again_what_could_not_be_looked_up() -> None:
    class Looks(Till):
        async def list(self) -> Sequence[Tool]:
            return [Tool(name="look", read_only=True)]

    async def work(item: str, ctx: TaskContext) -> str:
        result = await ctx.tool("look", {"order": item})
        if result.is_error:
            raise ValueError(result.text)
        return result.text

    house = House(Looks())
    house.till.away = {"a"}
    assert [r.status for r in await collect(house.run(["a"], work))] == ["error"]
    house.till.away.clear()
    assert [r.status for r in await collect(house.run(["a"], work))] == ["error"]
    assert [r.value for r in await collect(house.run(["a"], work, retry_failed=True))] == ["paid"]


async def test_a_tool_without_a_contract_makes_nothing_wait() -> None:
    house = House(Till("b", guarded=False))
    assert [r.status for r in await collect(house.run(["b"]))] == ["ok"]
    house.till.waits.clear()
    assert [r.value for r in await collect(house.run(["b"]))] == ["<before b>: <b later>"]


async def test_work_may_say_by_itself_that_it_waits() -> None:
    signed: set[str] = set()

    async def work(item: str, ctx: TaskContext) -> str:
        await ctx.model(item)
        if item not in signed:
            raise siafu.ApprovalPending(f"{item} is not signed yet")
        return "done"

    house = House(Till())
    async with asyncio.timeout(20):
        run = house.run(["a"], work, on_error="fail_fast")  # it has not failed
        (waits,) = [r async for r in run]
    assert (waits.status, waits.error) == ("waiting", MapError("pending_approval", "a is not signed yet"))
    assert not house.store.records
    signed.add("a")
    (done,) = await collect(house.run(["a"], work))
    assert (done.value, len(house.endpoint.requests)) == ("done", 1)


async def test_a_run_looks_again_until_all_is_decided() -> None:
    house = House(Till("b", "c"))
    looks: list[float] = []

    async def person() -> None:
        for order, seconds in (("b", 10.0), ("c", 100.0)):
            await house.clock.sleep(seconds)
            house.till.waits.discard(order)

    deciding = asyncio.create_task(person())
    run = house.run(["a", "b", "c"], wait=600)
    began = house.clock.now()
    seen: list[tuple[str, str]] = []
    async with asyncio.timeout(20):
        async for result in run:
            seen.append((result.item, result.status))
            looks.append(house.clock.now() - began)
    await deciding
    assert sorted(seen[:3]) == [("a", "ok"), ("b", "waiting"), ("c", "waiting")]
    assert seen[3:] == [("b", "ok"), ("c", "ok")]
    assert 10 <= looks[3] <= 10 + MOST
    assert 110 <= looks[4] <= 110 + MOST
    summary = run.summary
    assert (summary.ok, summary.waiting, summary.left, summary.failed) == (3, 0, 0, 0)
    assert summary.usd_pico == 6 * 10  # each item's answers, once
    assert len(house.endpoint.requests) == 8
    starts = sum(isinstance(event, ItemStarted) for event in house.events)
    assert starts == sum(isinstance(event, ItemEnded) for event in house.events)
    waits = [event.seconds for event in house.events if isinstance(event, Waited)]
    assert all(FIRST <= seconds <= MOST for seconds in waits)
    assert len(waits) < 20  # no busy loop


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_time_for_waiting_ends(ordered: bool) -> None:
    house = House(Till("a", "b", "c", "d", "e"))
    run = house.run(list("abcde"), wait=60, ordered=ordered, concurrency=2, lookahead=0)
    began = house.clock.now()
    found = await collect(run)
    assert [r.status for r in found] == ["waiting"] * 5  # told once each
    assert house.clock.now() - began == pytest.approx(60)
    assert (run.summary.waiting, run.summary.left, run.summary.peak) == (5, 0, 2)
    house.till.waits = {"b"}
    found = await collect(house.run(list("abcde"), ordered=ordered, wait=5))
    assert sorted(r.item for r in found if r.ok) == ["a", "c", "d", "e"]


async def test_nobody_to_ask_leaves_the_answer_as_it_was() -> None:
    house = House(Till("b"))
    await collect(house.run(["b"]))
    calls, house.till.down = len(house.endpoint.requests), True
    for _ in range(2):
        assert [r.status for r in await collect(house.run(["b"]))] == ["waiting"]
    assert len(house.endpoint.requests) == calls
    house.till.down = False
    house.till.waits.clear()
    assert [r.value for r in await collect(house.run(["b"]))] == ["<before b>: <b paid>"]


async def test_a_run_that_waits_can_be_closed_and_needs_a_journal() -> None:
    house = House(Till("b"))
    async with asyncio.timeout(20), house.run(["b"], wait=10**6) as run:
        async for result in run:
            assert result.status == "waiting"
            break
    assert run.summary.stopped == "closed"
    with pytest.raises(ConfigError, match="journal"):
        start(pays, ["b"], wait=5)


async def test_an_input_that_fails_is_not_waited_for() -> None:
    def items() -> Any:
        yield "b"
        raise InputError("torn")

    house = House(Till("b"))
    began = house.clock.now()
    with pytest.raises(InputError, match="torn"):
        await collect(house.run(items(), wait=600))
    assert house.clock.now() == began


@given(st.floats(0.1, 5000), st.lists(st.booleans(), max_size=80))
def test_looks_are_never_busy_and_the_last_is_at_the_end(seconds: float, decided: list[bool]) -> None:
    parking, now = Parking(seconds), 0.0
    assert parking.pause(now) is None  # nothing waits
    entry = Entry(0, "x", Name("x"))
    parking.put(entry, MapResult(key="x", index=0, item="x", status="waiting"))
    assert parking.entries == [entry]
    for news in decided:
        pause = parking.pause(now)
        if pause is None:
            assert now == pytest.approx(seconds)
            break
        assert min(FIRST, seconds - now) <= pause <= min(MOST, seconds - now)
        now += pause
        if news:
            parking.news()
    assert parking.take(0) is not None
    assert parking.take(0) is None
    assert parking.pause(now) is None
