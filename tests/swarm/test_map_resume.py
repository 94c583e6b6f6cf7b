"""A map that goes on where it stopped: nothing that finished is repeated, and a change says what it costs."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.agents.task import TaskContext
from siafu.errors import BudgetReached, ConfigError, ModelError, RequestRefused, StoreBusy, StoreError
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.gateway.scripted import Scripted, say
from siafu.observe.calls import CallContext
from siafu.observe.events import Discarded, Event, ItemEnded, RunResumed
from siafu.store.records import RunState
from swarm.nest import DictStore, brief, collect, results, start

ITEMS = [{"id": f"주문-{n}", "text": f"text {n}"} for n in range(6)]


def priced(request: ChatRequest, context: CallContext) -> ChatAnswer:
    return msgspec.structs.replace(say(f"<{request.messages[-1]['content']}>"), usd_pico=10)


async def test_a_second_session_repeats_nothing() -> None:
    store, endpoint, events = DictStore(), Scripted(priced), list[Event]()
    first = await results("{text}", ITEMS, store=store, endpoint=endpoint, ordered=True)
    run = start("{text}", ITEMS, store=store.next_session(), endpoint=endpoint, ordered=True, events=events, run="r")
    again = await collect(run)
    assert [brief(r) for r in again] == [brief(r) for r in first]
    assert (len(endpoint.requests), store.written.count("주문-3")) == (6, 1)
    assert all(r.restored for r in again)
    assert not any(r.restored for r in first)
    summary = run.summary
    assert (summary.ok, summary.restored, summary.usd_pico, summary.restored_usd_pico) == (6, 6, 60, 60)
    assert events[0] == RunResumed(run="r", finished=6)
    assert all(isinstance(e, ItemEnded) and e.restored for e in events[1:])


async def test_the_order_of_the_input_does_not_matter() -> None:
    store, endpoint = DictStore(), Scripted(priced)
    plain = [{"text": "a"}, {"text": "b"}, {"text": "a"}, {"text": "a"}]
    keys = {r.key for r in await results("{text}", plain, store=store, endpoint=endpoint)}
    assert len(keys) == 4
    again = await results("{text}", plain[::-1], store=store.next_session(), endpoint=endpoint)
    assert {r.key for r in again} == keys
    assert all(r.restored and r.value == f"<{r.item['text']}>" for r in again)
    assert len(endpoint.requests) == 4


async def test_a_result_is_recorded_before_it_is_given_out() -> None:
    store = DictStore()
    async with start("{text}", ITEMS, store=store, concurrency=2) as run:
        async for result in run:
            assert result.key in store.records


@pytest.mark.parametrize("value_type", [Any, dict[str, int]])
async def test_a_value_is_the_same_in_the_session_that_made_it_and_in_the_next(value_type: Any) -> None:
    class Count(msgspec.Struct):
        n: int

    async def work(item: dict[str, str], ctx: TaskContext) -> Count:
        return Count(len(item["text"]))

    store = DictStore()
    first = await results(work, ITEMS[:1], store=store, value_type=value_type)
    again = await results(work, ITEMS[:1], store=store.next_session(), value_type=value_type)
    assert first[0].value == again[0].value == {"n": 6}
    typed = await results(work, ITEMS[:1], store=store.next_session(), value_type=Count)
    assert typed[0].value == Count(6)
    wrong = await results(work, ITEMS[:1], store=store.next_session(), value_type=int)
    assert wrong[0].error is not None
    assert wrong[0].error.code == "output_invalid"


async def test_a_value_that_cannot_be_kept_is_an_error() -> None:
    async def work(item: Any, ctx: TaskContext) -> object:
        return object()

    [result] = await results(work, ["a"], store=DictStore())
    assert result.error is not None
    assert result.error.code == "output_invalid"


async def test_an_item_that_cannot_be_kept_is_an_error_of_that_item() -> None:
    found = await results("{item}", ["a", object(), "c"], store=DictStore(), ordered=True)
    assert [r.error.code if r.error else None for r in found] == [None, "input", None]
    assert "journal" in found[1].error.message  # type: ignore[union-attr]


async def test_a_duplicate_key_keeps_the_first_item() -> None:
    store = DictStore()
    items = [{"id": 1, "text": "a"}, {"id": 1, "text": "b"}]
    for _ in range(2):
        found = await results("{text}", items, store=store.next_session(), endpoint=Scripted(priced), ordered=True)
        assert found[0].value == "<a>"
        assert found[1].error is not None
        assert found[1].error.code == "duplicate_key"
    assert store.written == ["1"]


async def test_changed_content_under_the_same_key_is_not_run_and_the_result_is_kept() -> None:
    store, endpoint = DictStore(), Scripted(priced)
    await results("{text}", ITEMS[:1], store=store, endpoint=endpoint)
    changed = [{"id": ITEMS[0]["id"], "text": "other"}]
    [result] = await results("{text}", changed, store=store.next_session(), endpoint=endpoint)
    assert result.error is not None
    assert result.error.code == "input_changed"
    assert len(endpoint.requests) == 1
    [result] = await results("{text}", ITEMS[:1], store=store.next_session(), endpoint=endpoint)
    assert result.value == "<text 0>"


async def test_failed_items_run_again_only_when_asked() -> None:
    store, down = DictStore(), True
    calls: Counter[str] = Counter()

    def answer(request: ChatRequest, context: CallContext) -> ChatAnswer | BaseException:
        asked = str(request.messages[-1]["content"])
        calls[asked] += 1
        return ModelError("down") if down and asked == "second 1" else priced(request, context)

    async def work(item: int, ctx: TaskContext) -> str:
        await ctx.model(f"first {item}")
        return (await ctx.model(f"second {item}")).text

    given: dict[str, Any] = {"store": store, "endpoint": Scripted(answer), "ordered": True}
    assert [r.ok for r in await results(work, range(3), **given)] == [True, False, True]
    store.next_session()
    found = await results(work, range(3), **given)
    assert [(r.restored, r.error.code if r.error else "") for r in found] == [
        (True, ""),
        (True, "model_error"),
        (True, ""),
    ]
    down = False
    store.next_session()
    found = await results(work, range(3), retry_failed=True, **given)
    assert [(r.restored, r.value) for r in found] == [(True, "<second 0>"), (False, "<second 1>"), (True, "<second 2>")]
    assert calls == {"first 0": 1, "second 0": 1, "first 1": 1, "second 1": 2, "first 2": 1, "second 2": 1}


# ---- changed work -----------------------------------------------------------------------------------------------


async def test_a_changed_prompt_of_finished_items() -> None:
    store, endpoint, events = DictStore(), Scripted(priced), list[Event]()
    await results("{text}", ITEMS, store=store, endpoint=endpoint)
    with pytest.raises(ConfigError, match="6 finished items"):
        await results("say {text}", ITEMS, store=store.next_session(), endpoint=endpoint, on_change="refuse")
    kept = await results("say {text}", ITEMS, store=store.next_session(), endpoint=endpoint, on_change="keep")
    assert all(r.restored for r in kept)
    assert len(endpoint.requests) == 6
    run = start("say {text}", ITEMS, store=store.next_session(), endpoint=endpoint, events=events)
    assert {r.value for r in await collect(run)} == {f"<say {i['text']}>" for i in ITEMS}
    assert (run.summary.changed, run.summary.discarded, run.summary.billed_again_pico) == (6, 6, 60)
    resumed = events[0]
    assert isinstance(resumed, RunResumed)
    assert (resumed.changed, resumed.changed_usd_pico) == (6, 60)


async def test_opaque_work_runs_again_under_another_version_and_pays_for_nothing_twice() -> None:
    async def work(item: dict[str, str], ctx: TaskContext) -> str:
        return (await ctx.model(item["text"])).text

    store, endpoint = DictStore(), Scripted(priced)
    for version, changed in (("", 0), ("", 0), ("1", 6), ("1", 0)):
        run = start(work, ITEMS, store=store.next_session(), endpoint=endpoint, version=version)
        await collect(run)
        assert (run.summary.changed, len(endpoint.requests)) == (changed, 6)
    store.records = {k: msgspec.structs.replace(r, work_print="other") for k, r in store.records.items()}
    run = start(work, ITEMS, store=store.next_session(), endpoint=endpoint, version="2")
    await collect(run)
    assert (run.summary.changed, run.summary.replayed, len(endpoint.requests)) == (6, 6, 6)


async def test_other_work_in_the_same_journal_gets_no_results_of_the_first() -> None:
    async def classify(item: dict[str, str], ctx: TaskContext) -> str:
        return "a class"

    async def summarise(item: dict[str, str], ctx: TaskContext) -> str:
        return "a summary"

    store = DictStore()
    for work, value in ((classify, "a class"), (summarise, "a summary"), (functools.partial(summarise), "a summary")):
        assert {r.value for r in await results(work, ITEMS, store=store.next_session())} == {value}


async def test_a_change_runs_again_only_what_depends_on_it() -> None:
    store, endpoint, events = DictStore(), Scripted(priced), list[Event]()

    def work(last: str) -> Any:
        async def two_calls(item: dict[str, str], ctx: TaskContext) -> str:
            kind = await ctx.model(f"classify {item['text']}")
            return (await ctx.model(f"{last} {kind.text}")).text

        return two_calls

    given: dict[str, Any] = {"store": store, "endpoint": endpoint}
    await results(work("answer"), ITEMS, version="1", **given)
    store.next_session()
    run = start(work("answer politely"), ITEMS, version="2", events=events, **given)
    found = await collect(run)
    assert all(str(r.value).startswith("<answer politely <classify") for r in found)
    assert Counter(str(r.messages[-1]["content"]).split()[0] for r in endpoint.requests) == {
        "classify": 6,
        "answer": 12,
    }
    summary = run.summary
    assert (summary.replayed, summary.discarded, summary.billed_again_pico) == (6, 6, 60)
    assert sum(isinstance(e, Discarded) for e in events) == 6


# ---- stops and crashes ------------------------------------------------------------------------------------------


async def test_more_budget_goes_on_where_the_last_ended() -> None:
    store, left = DictStore(), 5

    def answer(request: ChatRequest, context: CallContext) -> ChatAnswer | BaseException:
        nonlocal left
        if left == 0:
            return BudgetReached("spent")
        left -= 1
        return priced(request, context)

    async def work(item: int, ctx: TaskContext) -> str:
        await ctx.model(f"first {item}")
        return (await ctx.model(f"second {item}")).text

    endpoint = Scripted(answer)
    run = start(work, range(6), store=store, endpoint=endpoint, concurrency=1)
    assert [r.value for r in await collect(run)] == ["<second 0>", "<second 1>"]
    assert run.summary.budget_reached
    left = 100
    run = start(work, range(6), store=store.next_session(), endpoint=endpoint, ordered=True)
    assert [r.value for r in await collect(run)] == [f"<second {n}>" for n in range(6)]
    assert (run.summary.restored, run.summary.replayed, 100 - left) == (2, 1, 7)


async def test_a_store_that_fails_ends_the_run_and_is_raised() -> None:
    store = DictStore()

    async def work(item: int, ctx: TaskContext) -> int:
        if item == 3:
            store.error = StoreError("disk full")
        await asyncio.sleep(0)
        return item

    run = start(work, itertools.count(), store=store, concurrency=1)
    with pytest.raises(StoreError, match="disk full"):
        await collect(run)
    assert sorted(store.records) == sorted(store.written)
    assert len(store.records) == 3


async def test_a_journal_that_fails_within_the_work_ends_the_run_too() -> None:
    store = DictStore()

    class Full:
        async def entries(self, task: str) -> list[Any]:
            return []

        async def append(self, task: str, entry: Any) -> None:
            raise StoreError("disk full")

    store.journal = Full()
    with pytest.raises(StoreError, match="disk full"):
        await results("{item}", range(3), store=store)
    assert not store.records


async def test_a_store_that_is_busy_is_said_at_once() -> None:
    class Busy(DictStore):
        async def begin(self, work_print: str) -> RunState:
            raise StoreBusy("another process holds it")

    with pytest.raises(StoreBusy):
        await results("{item}", range(3), store=Busy())


async def test_calls_that_were_in_flight_are_told() -> None:
    store, events = DictStore(), list[Event]()
    store.sessions, store.in_flight = 1, 4
    run = start("{item}", [1], store=store, events=events)
    await collect(run)
    assert run.summary.in_flight_lost == 4
    assert events[0] == RunResumed(run="map", in_flight=4)


async def crash_and_resume(crashes: list[int], concurrency: int, *, journal: bool = True) -> None:
    """Close a run after so many calls, again and again; then let it end, and judge by the endpoint's own count."""
    store, clean = DictStore(), DictStore()
    calls: Counter[str] = Counter()
    left, crashed = 0, asyncio.Event()

    async def answer(request: ChatRequest, context: CallContext) -> ChatAnswer:
        nonlocal left
        calls[str(request.messages[-1]["content"])] += 1
        left -= 1
        for _ in range(random.Random(calls.total()).randrange(4)):
            await asyncio.sleep(0)
        if left == 0:
            crashed.set()
        if crashed.is_set():
            await asyncio.Future()
        return priced(request, context)

    async def work(item: int, ctx: TaskContext) -> str:
        parts = await asyncio.gather(*(ctx.model(f"{item} part {n}") for n in range(2)))
        return (await ctx.model(f"{item} sum " + " ".join(p.text for p in parts))).text

    given: dict[str, Any] = {"concurrency": concurrency, "ordered": True, "endpoint": Scripted(answer)}
    lost = 0
    for crash in crashes:
        left = crash
        crashed.clear()
        reader = asyncio.ensure_future(collect(start(work, range(8), store=store.next_session(), **given)))
        death = asyncio.ensure_future(crashed.wait())
        await asyncio.wait({reader, death}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        death.cancel()
        reader.cancel()
        await asyncio.wait({reader, death}, timeout=10)
        lost += 2 * concurrency
        if not journal:
            store.pages.rows.clear()
    crashed.clear()
    left = 0
    found = await results(work, range(8), store=store.next_session(), **given)
    assert 24 <= calls.total() <= 24 + lost
    assert all(n <= 1 + len(crashes) for n in calls.values())
    assert len(store.written) == len(set(store.written)) == 8
    calls.clear()
    assert [brief(r) for r in found] == [brief(r) for r in await results(work, range(8), store=clean, **given)]


@settings(max_examples=60, deadline=None)
@given(crashes=st.lists(st.integers(1, 24), max_size=4), concurrency=st.integers(1, 4))
def test_any_number_of_stops_changes_nothing_but_the_calls_in_flight(crashes: list[int], concurrency: int) -> None:
    asyncio.run(crash_and_resume(crashes, concurrency))


def test_the_check_can_fail() -> None:
    crashes = [3, 3, 3, 3, 3]
    asyncio.run(crash_and_resume(crashes, 1))
    with pytest.raises(AssertionError):
        asyncio.run(crash_and_resume(crashes, 1, journal=False))


async def test_an_error_that_work_survived_comes_again_when_the_item_is_run_again() -> None:
    store, stop = DictStore(), True
    calls: list[str] = []

    def answer(request: ChatRequest, context: CallContext) -> ChatAnswer | BaseException:
        asked = str(request.messages[-1]["content"])
        calls.append(asked)
        if asked == "a":
            return RequestRefused(f"refused {len(calls)}")
        return BudgetReached("stop") if asked == "c" and stop else priced(request, context)

    async def work(item: int, ctx: TaskContext) -> str:
        try:
            heard = (await ctx.model("a")).text
        except ModelError as error:
            heard = error.message
        await ctx.model(f"b {heard}")
        return (await ctx.model("c")).text

    await results(work, [1], store=store, endpoint=Scripted(answer))
    stop = False
    [result] = await results(work, [1], store=store.next_session(), endpoint=Scripted(answer))
    assert result.value == "<c>"
    assert calls == ["a", "b refused 1", "c", "c"]
