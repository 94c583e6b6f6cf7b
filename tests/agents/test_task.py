"""What a task may do, and that it does nothing twice when it runs again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.ant_farm import DictJournal, Farm
from siafu.agents.faults import freeze, thaw
from siafu.agents.task import TaskContext
from siafu.errors import (
    BudgetReached,
    CallTimeout,
    ModelError,
    OutcomeUnknown,
    QuotaExhausted,
    RequestRefused,
    SiafuError,
    ToolArgumentsInvalid,
    ToolDenied,
    ToolTimeout,
    UpstreamFault,
)
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.gateway.scripted import Scripted, say
from siafu.observe.calls import CallContext
from siafu.observe.events import Discarded, Replayed
from siafu.store.records import JournalEntry


async def test_a_request_is_built_from_the_defaults_and_the_options() -> None:
    endpoint = Scripted(["네"])
    farm = Farm(endpoint)
    ctx = (await farm.context()).child("anna", role="clerk")
    assert (await ctx.model("배송?", system="짧게", temperature=0.0)).text == "네"
    [request] = endpoint.requests
    assert (request.model, request.temperature) == ("small", 0.0)
    assert list(request.messages) == [{"role": "system", "content": "짧게"}, {"role": "user", "content": "배송?"}]
    assert (endpoint.contexts[0].step, endpoint.contexts[0].role) == ("/anna#0", "clerk")
    assert (ctx.spent.calls, ctx.spent.input_tokens, ctx.spent.usd_pico) == (1, 10, 0)


async def test_a_second_delivery_gets_the_journaled_answers_and_costs_nothing() -> None:
    endpoint = Scripted(["one", "two"])
    farm = Farm(endpoint)

    async def work(ctx: TaskContext) -> list[Any]:
        first = await ctx.model("a")
        seen = await ctx.tool("look", {"at": first.text})
        return [
            first.text,
            seen.text,
            await ctx.uuid(),
            await ctx.now(),
            await ctx.random(),
            (await ctx.model("b")).text,
        ]

    once = await work(await farm.context())
    ctx = await farm.context()
    assert await work(ctx) == once
    assert (len(endpoint.requests), farm.tools.calls["look"]) == (2, 1)
    assert (ctx.spent.calls, ctx.spent.tool_calls, ctx.report_discarded()) == (2, 1, 0)
    assert [e.kind for e in farm.seen(Replayed) if isinstance(e, Replayed)] == [
        "model", "tool", "value", "value", "value", "model",
    ]  # fmt: skip


async def test_a_changed_prompt_runs_again_from_there_and_says_what_it_discards() -> None:
    endpoint = Scripted(["one", msgspec.structs.replace(say("two"), usd_pico=7), "new two"])
    farm = Farm(endpoint)
    ctx = await farm.context()
    await ctx.model("a")
    await ctx.model("b")
    ctx = await farm.context()
    assert (await ctx.model("a")).text == "one"
    assert (await ctx.model("B")).text == "new two"
    assert ctx.report_discarded() == 1
    assert farm.seen(Discarded) == [Discarded(run="r", task="t", kind="model", usd_pico=7)]
    assert len(endpoint.requests) == 3


async def test_a_prompt_that_comes_back_costs_nothing_and_one_that_changes_twice_is_counted_once() -> None:
    endpoint = Scripted(lambda request, context: msgspec.structs.replace(say("x"), usd_pico=7))
    farm = Farm(endpoint)
    for prompt, discarded, asked in (("a", 0, 1), ("b", 1, 2), ("a", 0, 2), ("c", 1, 3), ("b", 0, 3)):
        ctx = await farm.context()
        await ctx.model(prompt)
        assert (ctx.report_discarded(), len(endpoint.requests)) == (discarded, asked)


async def test_streamed_or_not_is_the_same_question() -> None:
    farm = Farm(Scripted(["one"]))
    request = ChatRequest(model="m", messages=[{"role": "user", "content": "a"}])
    await (await farm.context()).model(request)
    again = await (await farm.context()).model(msgspec.structs.replace(request, stream=True))
    assert again.text == "one"


async def test_an_error_the_task_went_on_after_comes_again_as_it_was() -> None:
    endpoint = Scripted([RequestRefused("no such model", status=404, provider_code="gone"), "plan b"])
    farm = Farm(endpoint)

    async def work(ctx: TaskContext) -> str:
        try:
            return (await ctx.model("a")).text
        except RequestRefused as error:
            return f"{error.status} {error.provider_code} " + (await ctx.model(f"b: {error.message}")).text

    once = await work(await farm.context())
    assert await work(await farm.context()) == once == "404 gone plan b"
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("error", [QuotaExhausted("no credit"), BudgetReached("5 USD")])
async def test_what_only_pauses_is_not_journaled(error: SiafuError) -> None:
    farm = Farm(Scripted([error, "now"]))
    with pytest.raises(type(error)):
        await (await farm.context()).model("a")
    assert (await (await farm.context()).model("a")).text == "now"


async def test_a_tool_fault_comes_again_although_the_tool_would_now_answer() -> None:
    farm = Farm(Scripted([]))
    farm.tools.fault = ToolTimeout("3 s", tool="look")
    for _ in range(2):
        with pytest.raises(ToolTimeout, match="3 s") as caught:
            await (await farm.context()).tool("look", {})
        assert caught.value.tool == "look"
        farm.tools.fault = None
    assert farm.tools.calls["look"] == 1


async def test_an_unknown_tool_is_denied_and_nothing_is_called() -> None:
    farm = Farm(Scripted([]))
    with pytest.raises(ToolDenied, match="no tool 'drop'"):
        await (await farm.context()).tool("drop", {})
    assert not farm.tools.calls


async def test_an_effect_that_died_half_way_is_not_tried_again() -> None:
    farm = Farm(Scripted([]))
    farm.tools.fault = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        await (await farm.context()).tool("act", {"order": 1})
    farm.tools.fault = None
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="not called again"):
            await (await farm.context()).tool("act", {"order": 1})
    assert farm.tools.calls["act"] == 1


@pytest.mark.parametrize(
    ("error", "kind"), [(ToolTimeout("3 s"), "unclear"), (ToolArgumentsInvalid("no"), "fault"), (None, "effect")]
)
async def test_how_an_effect_ended_decides_what_stays(error: SiafuError | None, kind: str) -> None:
    farm = Farm(Scripted([]))
    farm.tools.fault = error
    if error is None:
        await (await farm.context()).tool("act", {})
    else:
        with pytest.raises(type(error)):
            await (await farm.context()).tool("act", {})
    assert [row.kind for row in farm.journal.rows.values()] == [kind]


async def test_an_idempotent_tool_may_be_called_again() -> None:
    farm = Farm(Scripted([]))
    farm.tools.fault = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        await (await farm.context()).tool("poll", {})
    farm.tools.fault = None
    assert (await (await farm.context()).tool("poll", {})).text == "poll 2"


async def test_another_effect_after_a_change_is_refused_and_the_same_one_is_remembered() -> None:
    farm = Farm(Scripted([]))
    await (await farm.context()).tool("act", {"amount": 5})
    with pytest.raises(OutcomeUnknown, match="acted before"):
        await (await farm.context()).tool("act", {"amount": 7})
    assert (await (await farm.context()).tool("act", {"amount": 5})).text == "act 1"
    ctx = await farm.context()
    await ctx.tool("look", {})  # new code before it moves its place
    assert (await ctx.tool("act", {"amount": 5})).text == "act 1"
    assert farm.tools.calls["act"] == 1


async def test_parallel_effects_of_one_reply_are_told_apart_after_a_crash() -> None:
    farm = Farm(Scripted([]))
    ctx = await farm.context()
    await asyncio.gather(*(ctx.tool("act", {"order": n}) for n in range(3)))
    del farm.journal.rows["t", "", 0]  # as if it had not begun when the process died
    ctx = await farm.context()
    results = await asyncio.gather(*(ctx.tool("act", {"order": n}) for n in range(3)))
    assert [r.structured for r in results] == [{"order": 0}, {"order": 1}, {"order": 2}]
    assert farm.tools.calls["act"] == 4


@pytest.mark.parametrize(
    "error",
    [
        UpstreamFault("끊김", status=502, wait=1.5, attempts=3),
        CallTimeout("slow", phase="idle", attempts=2),
        ToolTimeout("3 s", tool="look"),
    ],
)
def test_errors_survive_the_journal(error: SiafuError) -> None:
    again = thaw(freeze(error))
    assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))


def test_an_error_this_version_does_not_know_is_still_an_error() -> None:
    again = thaw(b'{"code": "from_the_future", "message": "?", "fields": {}}')
    assert (type(again), again.message) == (SiafuError, "?")


# ---- any program, any interleaving, any crash -------------------------------------------------------------------

Step = tuple[str, str]
Branch = list[Step]
STEPS = st.tuples(st.sampled_from(["model", "look", "act", "uuid", "bad"]), st.sampled_from("ab"))
PROGRAMS = st.lists(st.lists(st.lists(STEPS, min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=3)


class World:
    """Endpoint, tools and journal that outlive the process; the process dies at its `crash_at`-th event."""

    def __init__(self, delays: list[int]) -> None:
        self.journal = DictJournal()
        self.delays = itertools.cycle(delays)
        self.made: list[str] = []
        self.open = 0
        self.lost = 0
        self.crash_at = 0
        self.died = asyncio.Event()

    async def event(self) -> None:
        self.crash_at -= 1
        if self.crash_at == 0:
            self.died.set()
        if self.died.is_set():
            await asyncio.Future()

    async def answer(self, request: ChatRequest, context: CallContext) -> ChatAnswer:
        asked = str(request.messages[-1]["content"])
        self.made.append(asked)
        self.open += 1
        for _ in range(next(self.delays)):
            await asyncio.sleep(0)
        await self.event()
        if asked.startswith("bad"):
            raise UpstreamFault(f"<{asked}> no. {len(self.made)}")
        return say(f"<{asked}> no. {len(self.made)}")

    async def entries(self, task: str) -> list[JournalEntry]:
        return await self.journal.entries(task)

    async def append(self, task: str, entry: JournalEntry) -> None:
        await self.event()
        await self.journal.append(task, entry)
        self.open -= entry.kind in ("model", "fault")
        await self.event()


async def follow(ctx: TaskContext, branch: Branch, told: str, late: int) -> str:
    """Run a branch; every question depends on all that was heard before."""
    for _ in range(late):
        await asyncio.sleep(0)
    for kind, word in branch:
        asked = f"{kind} {word} {told}"
        if kind in ("model", "bad"):
            try:
                heard = (await ctx.model(asked)).text
            except ModelError as error:
                heard = error.message
            assert f"<{asked}>" in heard, "answered with another question's answer"
        elif kind == "uuid":
            heard = await ctx.uuid()
        else:
            result = await ctx.tool(kind, {"asked": asked})
            assert result.structured == {"asked": asked}
            heard = result.text
        told = str(hash((told, heard)))
    return told


async def perform(ctx: TaskContext, program: list[list[Branch]], late: Callable[[], int]) -> str:
    """Run the program: its stages one after the other, the branches of a stage at once."""
    told = ""
    for stage in program:
        heard = await asyncio.gather(*(follow(ctx, b, f"{told}/{i}", late()) for i, b in enumerate(stage)))
        told = " ".join(heard)
    return told


async def live(world: World, farm: Farm, work: Callable[[TaskContext], Awaitable[str]]) -> str | None:
    """One life of the process: the work's result, or None when it died."""
    world.died.clear()
    ctx = await farm.context()
    task = asyncio.ensure_future(work(ctx))
    death = asyncio.ensure_future(world.died.wait())
    await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    dead = not task.done()
    for one in (task, death):
        one.cancel()
    await asyncio.wait({task, death}, timeout=10)
    if dead:
        world.lost += world.open
        world.open = 0
        return None
    assert ctx.report_discarded() == 0
    return task.result()


async def judge(
    program: list[list[Branch]], crashes: list[int], delays: list[int], *, keep: bool = True, late: bool = False
) -> None:
    world = World(delays)

    async def work(ctx: TaskContext) -> str:
        return await perform(ctx, program, lambda: next(world.delays) if late else 0)

    farm = Farm(Scripted(world.answer))
    farm.journal = world  # type: ignore[assignment]
    acts = sum(kind == "act" for stage in program for branch in stage for kind, _ in branch)
    calls = sum(kind in ("model", "bad") for stage in program for branch in stage for kind, _ in branch)
    result = None
    for crash_at in [*crashes, 0]:
        world.crash_at = crash_at
        try:
            result = await live(world, farm, work)
        except OutcomeUnknown as error:
            assert "not called again" in error.message  # died within an effect
            return
        finally:
            assert farm.tools.calls["act"] <= acts
        if result is not None:
            break
        if not keep:
            world.journal.rows.clear()
    assert result is not None
    assert calls <= len(world.made) <= calls + world.lost
    again = len(world.made)
    world.crash_at = 0
    assert await live(world, farm, work) == result
    assert len(world.made) == again, "a finished task asked again"


CRASHES = st.lists(st.integers(1, 25), max_size=3)
DELAYS = st.lists(st.integers(0, 4), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(program=PROGRAMS, crashes=CRASHES, delays=DELAYS)
def test_any_interleaving_and_any_crash_repeats_nothing(
    program: list[list[Branch]], crashes: list[int], delays: list[int]
) -> None:
    asyncio.run(judge(program, crashes, delays))


@settings(max_examples=150, deadline=None)
@given(program=PROGRAMS, crashes=CRASHES, delays=DELAYS)
def test_strands_that_begin_in_another_order_find_what_they_asked(
    program: list[list[Branch]], crashes: list[int], delays: list[int]
) -> None:
    asked = [[[(k if k in ("model", "bad") else "look", w) for k, w in b] for b in stage] for stage in program]
    asyncio.run(judge(asked, crashes, delays, late=True))


def test_the_check_can_fail() -> None:
    program: list[list[Branch]] = [[[("model", "a"), ("model", "b"), ("model", "a")]]]
    asyncio.run(judge(program, [8], [1]))
    with pytest.raises(AssertionError):
        asyncio.run(judge(program, [8], [1], keep=False))
