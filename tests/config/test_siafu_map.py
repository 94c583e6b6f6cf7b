"""The public `siafu.map`, as users call it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import siafu
from processes import children
from siafu.errors import ConfigError, OutputInvalid
from siafu.gateway.chat import ChatRequest
from siafu.gateway.scripted import by_last_message, say
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, ItemStarted
from sim import Sim, running_sim

pytestmark = pytest.mark.usefixtures("plain")

ROWS = [{"id": f"r{number}", "text": f"안녕하세요 {number}"} for number in range(12)]
PROMPT = "Translate into English: {text}"


@pytest.fixture(scope="module")
def sim() -> Any:
    with running_sim(keep_bodies=True) as running:
        yield running


def key(row: dict[str, Any]) -> Any:
    return row["id"]


async def test_a_script_calls_nothing_twice(sim: Sim, tmp_path: Path) -> None:
    sim.reset()
    options: dict[str, Any] = {"key": key, "journal": tmp_path / "run.db", "base_url": sim.url, "model": "m"}
    first = [result async for result in siafu.map(PROMPT, ROWS[:5], **options)]
    assert {result.key for result in first} == {row["id"] for row in ROWS[:5]} and all(r.ok for r in first)
    run = siafu.map(PROMPT, ROWS, **options)
    second = {result.key: result async for result in run}
    assert len(second) == 12 and sum(result.restored for result in second.values()) == 5
    assert all(second[result.key].value == result.value for result in first)
    assert (run.summary.ok, run.summary.restored, run.summary.left) == (12, 5, 0)
    assert sim.stats()["requests"] == 12


async def test_a_break_leaves_nothing_and_the_next_run_goes_on(sim: Sim, tmp_path: Path) -> None:
    sim.reset()
    journal = tmp_path / "run.db"

    def again() -> Any:
        return siafu.map(PROMPT, ROWS, key=key, journal=journal, base_url=sim.url, model="m", concurrency=2)

    async for result in again():
        assert result.ok
        break
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert others and not (await asyncio.wait(others, timeout=10))[1]
    assert len([result async for result in again()]) == 12
    assert sim.stats()["completed"] <= 12 + 2  # at most what flew when it was let go of


async def test_leaving_the_block_waits_for_the_end(sim: Sim, tmp_path: Path) -> None:
    async with siafu.map(PROMPT, ROWS, journal=tmp_path / "run.db", base_url=sim.url, model="m") as run:
        assert (await anext(run)).ok
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await run.aclose()
    assert [result async for result in run] == []  # over is over
    never = siafu.map(PROMPT, ROWS)
    await never.aclose()
    assert [result async for result in never] == []


async def test_cancelling_whoever_iterates_closes_all_of_it(tmp_path: Path) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work(item: int, ctx: siafu.TaskContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def consume() -> None:
        async for _ in siafu.map(work, [1], journal=tmp_path / "run.db"):
            pass

    before = children()
    task = asyncio.create_task(consume())
    async with asyncio.timeout(20):
        await begun.wait()
        assert children() > before  # the simulated endpoint
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled() and ended.is_set() and children() == before
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_two_may_share_one_map() -> None:
    run = siafu.map("{item}", range(20), endpoint=siafu.Scripted(by_last_message({})))

    async def take() -> int:
        return len([result async for result in run])

    assert sum(await asyncio.gather(take(), take())) == 20


async def test_a_budget_that_is_reached_ends_the_run_with_a_reason(sim: Sim, tmp_path: Path) -> None:
    (tmp_path / "siafu.toml").write_text("[prices.m]\ninput = 10\noutput = 1000\ndate = 2020-01-01\n")
    run = siafu.map(
        PROMPT, ROWS, base_url=sim.url, model="m", budget="0.05 USD", concurrency=1, max_tokens=20, journal="run.db"
    )
    results = [result async for result in run]
    summary = run.summary
    assert summary.budget_reached and summary.stop_message and 0 < len(results) < 12
    assert all(result.ok for result in results) and summary.usd_pico <= 50 * 10**9
    more = siafu.map(
        PROMPT, ROWS, base_url=sim.url, model="m", budget="1 USD", concurrency=1, max_tokens=20, journal="run.db"
    )
    assert len([r async for r in more]) == 12 and more.summary.restored == len(results)


async def test_a_model_without_a_price_is_refused_under_a_budget(sim: Sim) -> None:
    run = siafu.map(PROMPT, ROWS, base_url=sim.url, model="nobody-sells-this", budget="1 USD")
    assert [result async for result in run] == [] and run.summary.stopped == "unpriced_model"
    free = siafu.map(PROMPT, ROWS, base_url=sim.url, model="nobody-sells-this", budget="1 USD", allow_unpriced=True)
    assert len([result async for result in free]) == 12


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"concurency": 5}, "no option 'concurency'; did you mean 'concurrency'?"),
        ({"zzz": 5}, "no option 'zzz'"),
    ],
)
def test_an_option_that_does_not_exist_is_named_at_once(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        siafu.map(PROMPT, ROWS, **keywords)
    gc.collect()  # an error in a finaliser would be a warning, and so an error


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"key": "id"}, "key is a function of an item, .*, not str"),
        ({"priority": 3}, "priority is a function of an item, .*, not 3"),
        ({"observer": []}, "observer is a function of an event, not list"),
        ({"model": 5}, "model is text, not 5"),
        ({"api_key": b"sk-secret"}, "api_key is text, not bytes$"),
        ({"journal": ""}, "journal is the path of a file, not str"),
        ({"allow_unpriced": "no"}, "allow_unpriced is True or False, not str"),
        ({"deadline": "30s"}, "deadline is a number, not str"),
        ({"lookahead": 1.5}, "lookahead is a whole number, not 1.5"),
        ({"max_tokens": 0}, "max_tokens is 1 or more tokens, not 0"),
        ({"max_tokens": True}, "max_tokens is 1 or more tokens, not True"),
        ({"response_format": "json"}, "response_format is a dict, not str"),
        ({"tools": "주문"}, "tools is a list of functions or one ToolSet, not str"),
        ({"tools": key}, "tools is a list of functions or one ToolSet, not function"),
        ({"endpoint": "https://host/v1"}, "endpoint is an Endpoint, not str"),
    ],
)
def test_an_option_of_another_kind_is_refused_before_anything_is_asked(keywords: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        siafu.map(PROMPT, ROWS, **keywords)


async def test_none_is_as_good_as_left_away(sim: Sim) -> None:
    nothing: Any = dict.fromkeys(siafu.MapKeywords.__annotations__) | {"base_url": sim.url, "model": "m"}
    assert all([result.ok async for result in siafu.map(PROMPT, ROWS[:2], **nothing)])


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"concurrency": 0}, "limits.concurrency"),
        ({"budget": "much"}, "much"),
        ({"on_error": "explode"}, "on_error is isolate or fail_fast"),
        ({"base_url": "http://example.com/v1", "api_key": "abcdefgh"}, "clear text"),
        ({"base_url": "http://127.0.0.1:1/v1"}, "SIAFU_MODEL"),
        ({"config": "nowhere.toml"}, "nowhere.toml cannot be read"),
    ],
)
async def test_a_value_that_cannot_be_used_is_told_before_anything_runs(keywords: dict[str, Any], words: str) -> None:
    before = children()
    with pytest.raises(siafu.SiafuError, match=words):
        await anext(siafu.map(PROMPT, ROWS, **keywords))
    assert children() == before and asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_or_items_of_no_use_are_told_and_nothing_stays_open() -> None:
    before = children()
    with pytest.raises(ConfigError):
        await anext(siafu.map(PROMPT, 5))  # type: ignore[arg-type]
    assert children() == before and asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_concurrency_of_the_settings_holds_for_maps(tmp_path: Path) -> None:
    (tmp_path / "siafu.toml").write_text("[limits]\nconcurrency = 3\n")

    async def slow(request: ChatRequest, context: CallContext) -> str:
        await asyncio.sleep(0.005)
        return "네"

    for given, expected in ({}, 3), ({"concurrency": 5}, 5):
        scripted = siafu.Scripted(slow)
        run = siafu.map("{item}", range(20), endpoint=scripted, **given)  # type: ignore[arg-type]
        assert len([result async for result in run]) == 20
        assert scripted.peak == run.summary.peak == expected


async def test_everything_that_belongs_to_a_call_reaches_it() -> None:
    scripted = siafu.Scripted(["네"])
    run = siafu.map("{item}", ["가"], endpoint=scripted, model="m", system="Be brief.", temperature=0.2, max_tokens=7)
    assert [result.value async for result in run] == ["네"]
    (request,) = scripted.requests
    assert (request.model, request.temperature, request.max_tokens) == ("m", 0.2, 7)
    assert [message["role"] for message in request.messages] == ["system", "user"]


async def test_python_functions_are_tools() -> None:
    def stock(sku: str) -> int:
        """How many are left."""
        return {"SKU-1": 7}[sku]

    def script(request: ChatRequest, context: CallContext) -> Any:
        told = [message["content"] for message in request.messages if message["role"] == "tool"]
        return f"{told[0]}개 있습니다" if told else say(None, ("c1", "stock", '{"sku": "SKU-1"}'))

    agent = siafu.Agent(name="clerk", instructions="You know the stock.", tools=("stock",))
    run = siafu.map(agent, ["SKU-1 몇 개 있나요?"], endpoint=siafu.Scripted(script), tools=[stock])
    (result,) = [result async for result in run]
    assert result.ok and result.value == "7개 있습니다" and result.tool_calls == 1


async def test_a_work_function_and_an_observer() -> None:
    seen: list[Event] = []

    async def work(item: int, ctx: siafu.TaskContext) -> str:
        if item == 2:
            raise OutputInvalid("둘은 안 됩니다")
        answer = await ctx.model(f"숫자 {item}")
        return answer.text

    run = siafu.map(
        work, [1, 2, 3], endpoint=siafu.Scripted(by_last_message({}, "네")), observer=seen.append, ordered=True
    )
    results = [result async for result in run]
    assert [result.status for result in results] == ["ok", "error", "ok"]
    assert results[1].error is not None and results[1].error.code == "output_invalid"
    assert sum(isinstance(event, ItemStarted) for event in seen) == 3


async def test_endless_items_are_read_no_further_than_needed() -> None:
    read = 0

    async def numbers() -> AsyncIterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    run = siafu.map("{item}", numbers(), endpoint=siafu.Scripted(by_last_message({})), concurrency=2, lookahead=4)
    async with run:
        for _ in range(10):
            await anext(run)
    assert 10 <= read <= 20


def test_run_sync_in_a_script_and_in_a_notebook() -> None:
    def doubled() -> list[Any]:
        run = siafu.map("{item}", ["가"], endpoint=siafu.Scripted(["네"]))
        return [result.value for result in siafu.run_sync(run)]

    async def notebook() -> list[Any]:
        return doubled()

    assert doubled() == ["네"] and asyncio.run(notebook()) == ["네"]


async def test_a_key_shows_nowhere() -> None:
    secret = "k3y-" + "0123456789abcdef"
    run = siafu.map(PROMPT, ROWS, api_key=secret, base_url="http://127.0.0.1:9/v1", model="m", rpm=-1)
    assert secret not in repr(run) and secret not in repr(vars(run))
    with pytest.raises(ConfigError) as caught:
        await anext(run)
    frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    ours = [frame for frame in frames.stack if "/src/siafu/" in frame.filename]
    assert ours and secret not in str(caught.value)
    assert not any(secret in text for frame in ours for text in (frame.locals or {}).values())
    unreachable = siafu.map(
        PROMPT, ROWS[:1], api_key=secret, base_url="http://127.0.0.1:9/v1", model="m", item_timeout=2
    )
    (result,) = [result async for result in unreachable]
    assert result.error is not None and secret not in repr(result)


DROPS = """
import asyncio, logging, siafu
logging.getLogger("siafu").setLevel("ERROR")
logging.getLogger("asyncio").setLevel("ERROR")

def new(number):
    return siafu.map("{item}", range(50), journal=f"{number}.db", concurrency=5)

async def let_go():
    async for result in new(1):
        break

async def let_go_and_go_on():
    async for result in new(2):
        break
    await asyncio.sleep(0.2)

async def hold():
    await anext(held)

async def fail():
    async for result in new(4):
        raise ValueError("mine")

held = new(3)
for main in let_go, let_go_and_go_on, hold, fail:
    try:
        asyncio.run(main())
    except ValueError:
        pass
    print(main.__name__)
new(5)
"""


def test_a_script_may_let_go_of_a_map_in_any_way(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", DROPS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["let_go", "let_go_and_go_on", "hold", "fail"]
