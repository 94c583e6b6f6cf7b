from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from processes import children, descriptors
from services import free_port
from siafu.border.money import parse_usd
from siafu.border.secrets import Secret
from siafu.config import assembly
from siafu.config.assembly import House, Plan, opened
from siafu.config.settings import Settings, load
from siafu.errors import BudgetReached, ConfigError, StoreBusy
from siafu.gateway.chat import ChatRequest
from siafu.gateway.client import Gateway
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, LimitsShared
from siafu.store.sqlite import SqliteStore
from sim import Sim, running_sim

PRICES = {"prices": {"m": {"input": "1", "output": "1000", "date": "2020-01-01"}}}


@pytest.fixture(scope="module")
def sim() -> Any:
    with running_sim() as running:
        yield running


def settings(sim: Sim, **more: Any) -> Settings:
    return Settings.model_validate({"endpoint": {"base_url": sim.url}, **PRICES, **more})


async def ask(house: House, run: str = "map", tokens: int = 20) -> str:
    request = ChatRequest(model="m", messages=[{"role": "user", "content": "안녕하세요"}], max_tokens=tokens)
    reply = await house.around.endpoint.open(request, CallContext(run=run, task="t"))
    return (await reply.message()).text


def locked(journal: Path) -> bool:
    """Whether a process holds the journal."""
    with journal.with_name(journal.name + ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def test_a_budget_counts_what_earlier_sessions_spent(sim: Sim, tmp_path: Path) -> None:
    plan = Plan(journal=tmp_path / "run.db", budget_pico=parse_usd("0.05 USD"))
    paid = 0
    for _ in range(10):  # sessions
        async with opened(settings(sim), plan) as house:
            assert house.store is not None
            state = await house.store.begin("same")
            assert state.spent_pico == paid
            if paid + parse_usd("0.021 USD") > parse_usd("0.05 USD"):
                with pytest.raises(BudgetReached):
                    await ask(house)
                break
            await ask(house)
        async with opened(settings(sim), plan) as house:
            assert house.store is not None
            paid = (await house.store.begin("same")).spent_pico
    assert 0 < paid <= parse_usd("0.05 USD")


async def test_a_budget_without_a_journal_holds_for_the_block(sim: Sim) -> None:
    plan = Plan(budget_pico=parse_usd("0.0001 USD"))
    async with opened(settings(sim), plan) as house:
        with pytest.raises(BudgetReached):
            await ask(house)
        assert await ask(house, run="another")  # whose budget it is not


async def test_everything_is_closed_with_the_block(sim: Sim, tmp_path: Path) -> None:
    before, threads = descriptors(), threading.active_count()
    journal = tmp_path / "run.db"
    async with opened(settings(sim), Plan(journal=journal)) as house:
        assert house.store is not None and house.upstream is not None and house.upstream.base_url == sim.url
        await house.store.begin("w")
        await ask(house)
        assert descriptors() > before and locked(journal)  # the checks can fail
    await asyncio.sleep(0)
    assert descriptors() == before and not locked(journal) and threading.active_count() <= threads + 1


async def test_it_is_closed_in_reverse_order(sim: Sim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Noted(SqliteStore):
        def close(self) -> None:
            order.append("store")
            super().close()

    async def close(self: Any) -> None:
        order.append("connections")
        await keep(self)

    keep = Gateway.aclose
    monkeypatch.setattr(assembly, "SqliteStore", Noted)
    monkeypatch.setattr(Gateway, "aclose", close)
    with pytest.raises(ValueError, match="mine"):
        async with opened(settings(sim), Plan(journal=tmp_path / "run.db")) as house:
            assert house.store is not None
            await house.store.begin("w")
            raise ValueError("mine")
    assert order == ["connections", "store"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endpoint": {"base_url": "http://example.com/v1", "api_key": "abcdefgh"}}, "clear text"),
        ({"endpoint": {"base_url": "http://127.0.0.1:1/v1", "headers": {"host": "x"}}}, "set by siafu itself"),
        ({"endpoint": {"base_url": "http://127.0.0.1:1/v1", "headers": {"x": "env:NOT_SET"}}}, "NOT_SET"),
    ],
)
async def test_what_fails_half_way_leaves_nothing(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    before = descriptors()
    with pytest.raises(ConfigError, match=words):
        async with opened(Settings.model_validate(given), Plan(journal=tmp_path / "run.db")):
            pass
    assert descriptors() == before and not (tmp_path / "run.db").exists()


async def test_a_tool_that_cannot_be_used_ends_the_simulated_endpoint_too() -> None:
    def bad(**anything: int) -> None:
        """Takes what no schema can say."""

    before = children()
    with pytest.raises(ConfigError, match="bad"):
        async with opened(load(environ={}), Plan(tools=[bad])):
            pass
    assert children() == before


async def test_two_cannot_hold_one_journal(sim: Sim, tmp_path: Path) -> None:
    plan = Plan(journal=tmp_path / "run.db")
    async with opened(settings(sim), plan) as first:
        assert first.store is not None
        await first.store.begin("w")
        with pytest.raises(StoreBusy, match=str(os.getpid())):
            async with opened(settings(sim), plan) as second:
                assert second.store is not None
                await second.store.begin("w")
        assert await first.store.claim([("a", "p")])  # the first is not disturbed
    assert not locked(tmp_path / "run.db")


async def test_a_given_endpoint_is_used_as_it_is() -> None:
    told: list[str] = []
    before = children()
    async with opened(load(environ={}), Plan(endpoint=Scripted(["네"]), notice=told.append)) as house:
        assert await ask(house) == "네" and house.upstream is None and not told and children() == before


async def test_the_simulated_endpoint_is_announced() -> None:
    told: list[str] = []
    before = children()
    async with opened(load(environ={}), Plan(notice=told.append)) as house:
        assert await ask(house) and children() > before
    assert len(told) == 1 and "SIMULATED" in told[0] and children() == before


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() - {asyncio.current_task()} <= before


async def test_tokens_a_minute_are_kept_so_that_the_endpoint_has_nothing_to_refuse() -> None:
    async def limited(running: Sim, **limits: float) -> int:
        async with opened(settings(running, limits=limits), Plan()) as house:
            await asyncio.gather(*(ask(house) for _ in range(150)))
        found: int = running.stats()["by_status"].get("429", 0)
        return found

    with running_sim(tpm=60_000, burst=6) as running:
        assert await limited(running, tpm=60_000) == 0
        running.reset()
        running.set_limits(tpm=60_000, burst=1)
        assert await limited(running) > 0, "the control: with less at once, and no tpm set, the endpoint does refuse"


async def test_limits_are_shared_through_redis(sim: Sim, redis_url: str) -> None:
    pytest.importorskip("redis")
    sim.reset()
    events: list[Event] = []
    given = settings(sim, redis_url=Secret(redis_url), limits={"concurrency": 3})
    async with opened(given, Plan(observer=events.append)) as house:
        await asyncio.gather(*(ask(house) for _ in range(12)))
    assert not any(isinstance(event, LimitsShared) for event in events)
    assert sim.stats()["peak_in_flight"] <= 3


async def test_a_redis_that_is_not_there_is_said_once_and_holds_nothing_up(sim: Sim) -> None:
    pytest.importorskip("redis")
    notices: list[str] = []
    events: list[Event] = []
    address = Secret(f"redis://:geheim-1234@127.0.0.1:{free_port()}/0")
    given = settings(sim, redis_url=address, limits={"concurrency": 8, "processes": 4})
    async with opened(given, Plan(notice=notices.append, observer=events.append)) as house:
        await asyncio.gather(*(ask(house) for _ in range(20)))
    assert len(notices) == 1 and "one in 4" in notices[0] and "geheim" not in notices[0]
    assert [event.alone for event in events if isinstance(event, LimitsShared)] == [True]


async def test_a_run_waits_for_credit_and_a_single_answer_does_not() -> None:
    own = {"patience": {"quota_seconds": 100, "outage_seconds": 200, "quota_probe_seconds": 7}}
    found = [assembly._patience(Settings.model_validate(own), served=served) for served in (False, True)]
    assert [(each.outage, each.quota, each.probe) for each in found] == [(200, 100, 7), (assembly.SERVED, 0, 7)]


async def test_second_requests_are_off_unless_enabled_and_end_where_a_budget_is_saved() -> None:
    assert assembly._hedge(Settings()) is None
    found = assembly._hedge(Settings.model_validate({"hedging": {"enabled": True}}))
    assert found is not None and (str(found.share), str(found.soft)) == ("0.05", "0.8")
    found = assembly._hedge(Settings.model_validate({"hedging": {"enabled": True}, "budgets": {"soft": 0.5}}))
    assert found is not None and str(found.soft) == "0.5"
