"""What a map gives for its items: one result each, whatever happens to the others, within bounds."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from siafu.agents.task import TaskContext
from siafu.errors import ConfigError, InputError, RequestRefused, StepLimit
from siafu.gateway.chat import ChatRequest
from siafu.gateway.scripted import Scripted, say
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, ItemEnded, ItemStarted
from siafu.swarm.options import MapOptions
from swarm.nest import collect, results, start


async def echo(item: Any, ctx: TaskContext) -> Any:
    return item


async def test_a_prompt_for_each_item() -> None:
    endpoint = Scripted(lambda request, context: str(request.messages[-1]["content"]).upper())
    run = start("say {item}", ["a", "b"], endpoint=endpoint, ordered=True)
    assert [(r.key, r.index, r.item, r.value) for r in await collect(run)] == [
        ("0", 0, "a", "SAY A"),
        ("1", 1, "b", "SAY B"),
    ]
    assert endpoint.requests[0].model == "small"
    assert (run.summary.read, run.summary.ok, run.summary.left, run.summary.stopped) == (2, 2, 0, "")


async def test_an_agent_for_each_item() -> None:
    class Ant:
        async def work(self, item: str, ctx: TaskContext) -> str:
            return (await ctx.model(item)).text + "!"

        def fingerprint(self) -> str:
            return "ant"

    assert [r.value for r in await results(Ant(), ["a"])] == ["ok!"]


async def test_costs_and_labels_of_an_item() -> None:
    endpoint = Scripted(lambda request, context: msgspec.structs.replace(say("hi"), usd_pico=5))

    async def twice(item: str, ctx: TaskContext) -> None:
        await ctx.model("a")
        await ctx.model("b")

    run = start(
        twice, ["x"], endpoint=endpoint, run="r", key=lambda i: f"k-{i}", user=lambda i: "kim", priority=lambda i: 1
    )
    [result] = await collect(run)
    assert (result.calls, result.usd_pico, result.input_tokens, result.output_tokens) == (2, 10, 20, 4)
    assert (run.summary.usd_pico, run.summary.calls, run.summary.usd_unknown) == (10, 2, 0)
    call = endpoint.contexts[0]
    assert (call.run, call.task, call.user, call.priority, call.step) == ("r", "k-x", "kim", 1, "#0")


async def test_f42_one_failing_task_leaves_the_others_their_results() -> None:
    def answer(request: ChatRequest, context: CallContext) -> str | BaseException:
        return RequestRefused("bad request", status=400) if context.task == "50" else "fine"

    run = start("{item}", range(100), endpoint=Scripted(answer), ordered=True)
    found = await collect(run)
    assert [r.index for r in found] == list(range(100))
    assert [r.index for r in found if not r.ok] == [50]
    assert found[50].error is not None
    assert (found[50].error.code, found[50].error.message) == ("request_refused", "bad request")
    assert isinstance(found[50].exception, RequestRefused)
    assert (run.summary.ok, run.summary.failed) == (99, 1)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StepLimit("30 steps"), "step_limit", "30 steps"),
        (ValueError("no"), "work_failed", "ValueError: no"),
        (ExceptionGroup("g", [ValueError("v"), StepLimit("s")]), "step_limit", "s"),
        (asyncio.CancelledError(), "work_failed", "CancelledError: the work cancelled itself"),
        (ValueError("key sk-0123456789abcdefghij"), "work_failed", "ValueError: key ***"),
    ],
)
async def test_how_errors_are_told(error: BaseException, code: str, message: str) -> None:
    async def work(item: Any, ctx: TaskContext) -> None:
        raise error

    [result] = await results(work, [1])
    assert result.error is not None
    assert (result.status, result.error.code, result.error.message) == ("error", code, message)


async def test_the_live_exception_keeps_its_traceback() -> None:
    async def work(item: Any, ctx: TaskContext) -> None:
        raise KeyError(item)

    [result] = await results(work, ["a"])
    assert result.exception is not None
    frames = []
    trace = result.exception.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-1] == "work"


async def test_an_item_that_does_not_fit_is_an_error_and_nothing_else() -> None:
    found = await results("{name}", [{"name": "Kim"}, {}, {"name": "Lee"}], ordered=True)
    assert [r.error.code if r.error else None for r in found] == [None, "input", None]
    assert "no field 'name'" in found[1].error.message  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "options",
    [{"key": lambda i: i["k"]}, {"priority": lambda i: 9 if i == {} else 2}, {"user": lambda i: i["k"]}],
)
async def test_a_callable_that_fails_for_an_item_fails_that_item(options: dict[str, Any]) -> None:
    found = await results(echo, [{"k": "a"}, {}, {"k": "c"}], ordered=True, **options)
    assert [r.ok for r in found] == [True, False, True]
    assert found[1].key == "1"


async def test_f47_duplicate_keys_are_errors_and_nothing_is_lost() -> None:
    seen = []

    async def work(item: Any, ctx: TaskContext) -> Any:
        seen.append(item)
        return item

    found = await results(work, [("q1", 1), ("q2", 2), ("q1", 3)], key=lambda i: i[0], ordered=True)
    assert [r.error.code if r.error else None for r in found] == [None, None, "duplicate_key"]
    assert found[2].item == ("q1", 3)
    assert seen == [("q1", 1), ("q2", 2)]


# ---- order, priority, concurrency -------------------------------------------------------------------------------


async def test_results_come_as_they_finish_or_in_order() -> None:
    async def work(item: int, ctx: TaskContext) -> int:
        for _ in range(item):
            await asyncio.sleep(0)
        return item

    items = [40, 1, 20, 2]
    assert [r.value for r in await results(work, items)] == [1, 2, 20, 40]
    assert [r.value for r in await results(work, items, ordered=True)] == items


async def test_urgent_items_overtake_those_that_wait() -> None:
    seen = []

    async def work(item: tuple[int, str], ctx: TaskContext) -> None:
        seen.append(item[1])
        await asyncio.sleep(0)

    items = [(3, "a"), (2, "b"), (1, "c"), (2, "d"), (1, "e")]
    await results(work, items, concurrency=1, priority=lambda i: i[0])
    assert seen == ["c", "e", "b", "d", "a"]


async def test_f43_all_that_may_run_at_once_do_and_no_more() -> None:
    now = peak = 0
    full = asyncio.Event()

    async def work(item: int, ctx: TaskContext) -> None:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        if now == 150:
            full.set()
        async with asyncio.timeout(10):
            await full.wait()
        await asyncio.sleep(0)
        now -= 1

    run = start(work, range(400), concurrency=150)
    assert all(r.ok for r in await collect(run))
    assert peak == run.summary.peak == 150


# ---- inputs -----------------------------------------------------------------------------------------------------


async def test_any_kind_of_input() -> None:
    async def slowly() -> AsyncIterator[int]:
        for n in range(3):
            await asyncio.sleep(0)
            yield n

    for items in ([0, 1, 2], (n for n in range(3)), slowly()):
        assert sorted(r.value for r in await results(echo, items)) == [0, 1, 2]
    assert await results(echo, []) == []


@pytest.mark.parametrize("items", ["text", b"bytes", {"a": 1}, 7])
async def test_what_cannot_be_meant_as_items_is_refused(items: Any) -> None:
    with pytest.raises(ConfigError, match="items are a list"):
        start(echo, items)


async def test_an_error_of_the_input_is_raised_after_all_results() -> None:
    def broken() -> Iterator[int]:
        yield from range(5)
        raise OSError("disk")

    run = start(echo, broken(), concurrency=2)
    found = []
    with pytest.raises(OSError, match="disk"):
        async for result in run:
            found.append(result.value)  # noqa: PERF401  what came before the error counts
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert (run.summary.ok, run.summary.stopped) == (5, "failed")
    assert [r async for r in run] == []


async def test_reading_does_not_keep_the_loop_for_long() -> None:
    read = ticks = 0

    def items() -> Iterator[int]:
        nonlocal read
        for n in range(50):
            until = asyncio.get_running_loop().time() + 0.002
            while asyncio.get_running_loop().time() < until:
                pass
            read = n
            yield n

    async def tick() -> None:
        nonlocal ticks
        while read < 49:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await results(echo, items())
    await ticking
    assert ticks >= 10


class Item:
    def __init__(self, n: int) -> None:
        self.n = n


async def test_an_endless_input_stays_within_bounds_however_slow_the_reader() -> None:
    alive: weakref.WeakSet[Item] = weakref.WeakSet()
    made = 0

    def endless() -> Iterator[Item]:
        nonlocal made
        for made in itertools.count():
            item = Item(made)
            alive.add(item)
            yield item

    async def work(item: Item, ctx: TaskContext) -> int:
        return item.n

    run = start(work, endless(), concurrency=10, lookahead=20)
    most = 0
    async with run:
        for taken in range(1, 400):
            await anext(run)
            for _ in range(5):  # a slow reader: the map could run far ahead by now
                await asyncio.sleep(0)
            gc.collect() if taken % 50 == 0 else None
            most = max(most, len(alive))
            assert made <= taken + 31
    assert 25 <= most <= 35


async def test_a_hundred_thousand_items_and_a_reader_that_stops_reading() -> None:
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        for n in range(100_000):
            read = n
            yield n

    async with start(echo, items(), concurrency=50, lookahead=0) as run:
        await anext(run)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert read <= 51
        assert run.summary.ok <= 51


async def test_ordered_results_are_bounded_too() -> None:
    first = asyncio.Event()
    done = 0

    async def work(item: int, ctx: TaskContext) -> int:
        nonlocal done
        if item == 0:
            await first.wait()
        done += 1
        return item

    async with start(work, itertools.count(), concurrency=3, lookahead=7, ordered=True) as run:
        waiting = asyncio.ensure_future(anext(run))
        for _ in range(300):
            await asyncio.sleep(0)
        assert (done, run.summary.read) == (9, 10)
        first.set()
        assert (await waiting).value == 0
        assert [(await anext(run)).value for _ in range(20)] == list(range(1, 21))


# ---- observers --------------------------------------------------------------------------------------------------


async def test_what_observers_see() -> None:
    async def work(item: int, ctx: TaskContext) -> None:
        if item:
            raise InputError("no")

    events: list[Event] = []
    await results(work, [0, 1], events=events, concurrency=1, run="r")
    assert [type(e) for e in events] == [ItemStarted, ItemEnded, ItemStarted, ItemEnded]
    ended = [e for e in events if isinstance(e, ItemEnded)]
    assert [(e.run, e.task, e.ok, e.code) for e in ended] == [("r", "0", True, ""), ("r", "1", False, "input")]


async def test_an_observer_that_raises_is_logged_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(list[Event]):
        def append(self, event: Event) -> None:
            raise RuntimeError("broken observer")

    with caplog.at_level(logging.ERROR, logger="siafu"):
        assert len(await results(echo, range(5), events=Broken())) == 5
    assert [record.message for record in caplog.records] == ["run map: an observer failed; this is said once"]


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 1_000_000},
        {"lookahead": -1},
        {"item_timeout": 0},
        {"deadline": float("nan")},
        {"run": ""},
        {"on_error": "ignore"},
        {"on_change": "ask"},
    ],
)
def test_options_outside_their_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MapOptions(**options)
