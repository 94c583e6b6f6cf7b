"""A process that follows a canary: it divides its calls, tells what it saw, and moves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from siafu.config import canary as module
from siafu.config.canary import FILE, canaries, canary_rows, checked_sides, following_canaries, standing
from siafu.config.settings import Settings, load
from siafu.errors import ConfigError, InputError, StoreError
from siafu.gateway.canary import Split
from siafu.gateway.tally import Tally
from siafu.observe.events import AttemptEnded, CanaryMoved, Event
from siafu.store.canary_records import Bounds, Canary, Move, Plan, State

PLAN = Plan(old="@legacy", new="@new", salt="s", stages=(50, 100), window_seconds=0.05, min_samples=300)
TWO = '[upstreams.legacy]\nbase_url = "http://127.0.0.1:9/v1"\n[upstreams.new]\nbase_url = "http://127.0.0.1:9/v1"\n'


def settings(folder: Path, text: str = TWO) -> Settings:
    file = folder / "siafu.toml"
    file.write_text(f'home = "{folder / "home"}"\n{text}', encoding="utf-8")
    return load(config=file, environ={})


class Divided:
    """A gateway of which only the split is looked at."""

    def __init__(self) -> None:
        self.splits: list[Split] = []

    def divide(self, split: Split) -> None:
        self.splits.append(split)

    @property
    def percent(self) -> int | None:
        current = self.splits[-1].current if self.splits else None
        return None if current is None else current.percent


class Process:
    def __init__(self) -> None:
        self.gateway, self.tally = Divided(), Tally()
        self.said: list[str] = []
        self.events: list[Event] = []

    @asynccontextmanager
    async def follows(self, found: Settings) -> AsyncIterator[None]:
        gateway: Any = self.gateway
        async with following_canaries(found, gateway, self.tally, self.events.append, self.said.append):
            yield

    def calls(self, canary: int, side: str, count: int, **fields: Any) -> None:
        for n in range(count):
            event = {"bucket": f"{canary}/{side}", "task": f"{side}{n}", "seconds": 0.5, "usd_pico": 10**9}
            self.tally(AttemptEnded(**{**event, **fields}))


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.02)


async def test_without_a_canary_nothing_is_made_and_nothing_divided(tmp_path: Path) -> None:
    found, one = settings(tmp_path), Process()
    async with one.follows(found):
        await asyncio.sleep(0.1)
    assert one.gateway.splits == [] and not found.home.exists() and await canary_rows(found) == []


async def test_processes_follow_one_canary_to_its_end(tmp_path: Path) -> None:
    """It is started while they run; each tells what it saw, and both go on together."""
    found, one, two = settings(tmp_path), Process(), Process()
    async with one.follows(found), two.follows(found), canaries(found.home / FILE) as own:
        id = (await own.start(PLAN)).id
        await until(lambda: one.gateway.percent == two.gateway.percent == 50)
        one.calls(id, "old", 300)
        two.calls(id, "new", 299)
        await asyncio.sleep(0.2)
        assert one.gateway.percent == 50  # one call is missing: the window is extended
        one.calls(id, "new", 1)
        await until(lambda: one.gateway.percent == two.gateway.percent == 100)
        two.calls(id, "new", 300)
        await until(lambda: "promoted" in one.said[-1] and "promoted" in two.said[-1])
        moves = await own.moves(id)
    assert [(each.state, each.percent) for each in moves] == [("running", 50), ("running", 100), ("promoted", 100)]
    assert [each.percent for each in one.events if isinstance(each, CanaryMoved)] == [50, 100, 100]


async def test_a_failing_new_side_is_rolled_back_and_said(tmp_path: Path) -> None:
    found, one = settings(tmp_path), Process()
    async with one.follows(found), canaries(found.home / FILE) as own:
        id = (await own.start(PLAN)).id
        await until(lambda: one.gateway.percent == 50)
        one.calls(id, "new", 10, outcome="failed", code="upstream_fault")
        await until(lambda: one.gateway.percent is None)
    assert "rolled back" in one.said[-1] and "10 of 10 calls failed" in one.said[-1]
    (row,) = await canary_rows(found)
    assert row.state == "warn" and "take new out" in row.advice


async def test_what_was_seen_last_is_told_at_the_end(tmp_path: Path) -> None:
    found, one = settings(tmp_path), Process()
    async with canaries(found.home / FILE) as own:
        id = (await own.start(PLAN)).id
        async with one.follows(found):
            assert one.gateway.percent == 50  # from the first call on
            one.calls(id, "new", 7)
        assert (await own.look()).new.calls == 7


async def test_while_the_database_is_away_all_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, one = settings(tmp_path), Process()
    async with canaries(found.home / FILE) as own:
        id = (await own.start(PLAN)).id
        async with one.follows(found):
            look = type(own).look
            monkeypatch.setattr(type(own), "look", _away)
            one.calls(id, "new", 5)
            await until(lambda: any("stays as it is" in text for text in one.said))
            one.calls(id, "new", 5)
            await asyncio.sleep(0.1)
            assert sum("stays as it is" in text for text in one.said) == 1 and one.gateway.percent == 50
            monkeypatch.setattr(type(own), "look", look)
            await asyncio.sleep(0.1)
        assert (await own.look()).new.calls == 10  # nothing of it is lost, nothing counted twice


async def _away(*_: Any) -> None:
    raise StoreError("the disk is gone")


async def test_a_database_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    found = settings(tmp_path)
    found.home.mkdir()
    (found.home / FILE).write_text("no database " * 100)
    with pytest.raises(StoreError, match=FILE):
        async with Process().follows(found):
            raise AssertionError("it must not begin")
    (row,) = await canary_rows(found)
    assert row.state == "fail"


@pytest.mark.parametrize(
    ("state", "toml", "level", "words"),
    [
        ("running", TWO, "ok", "50 % of users get new first"),
        ("running", TWO.replace("legacy", "older"), "warn", "no upstream legacy"),
        ("promoted", TWO, "ok", "siafu canary retire"),
        ("retired", TWO, "ok", "take legacy out"),
        ("retired", TWO.replace("legacy", "older"), "ok", "legacy is retired"),
        ("rolled_back", TWO, "warn", "rolled back"),
    ],
)
async def test_the_doctor_says_what_to_do(tmp_path: Path, state: Any, toml: str, level: str, words: str) -> None:
    found = settings(tmp_path, toml)
    async with canaries(found.home / FILE) as own:
        started = await own.start(PLAN)
        if state != "running":
            await own.move(started, Move(state=state, stage=0, reason="by hand"))
    (row,) = await canary_rows(found)
    assert row.state == level and words in f"{row.found} {row.advice}"


ENDPOINT = '[endpoint]\nbase_url = "http://127.0.0.1:9/v1"\n'
NAMED = TWO.replace("[upstreams.new]", 'models = ["big", "mid"]\n[upstreams.new]') + 'models = ["mid"]\n'


@pytest.mark.parametrize(
    ("toml", "old", "new", "sides"),
    [
        (TWO, "legacy", "new", ("@legacy", "@new")),
        (NAMED, "legacy", "new", ("@legacy", "@new")),
        (NAMED, "big", "mid", ("big", "mid")),
        (NAMED, "mid@legacy", "mid@new", ("mid@legacy", "mid@new")),
        (ENDPOINT, "gpt-4.1", "gpt-4.1-mini", ("gpt-4.1", "gpt-4.1-mini")),
    ],
)
def test_sides_are_upstreams_or_models(tmp_path: Path, toml: str, old: str, new: str, sides: tuple[str, str]) -> None:
    assert checked_sides(settings(tmp_path, toml), old, new) == sides


@pytest.mark.parametrize(
    ("toml", "old", "new", "words"),
    [
        ("", "legacy", "new", "needs real upstreams"),
        (TWO, "legacy", "nwe", "is no upstream"),
        (TWO, "legacy", "legacy", "nothing to compare"),
        (NAMED.replace('["mid"]', '["small"]'), "legacy", "new", "no model in common"),
        (NAMED, "big", "tiny", "neither an upstream"),
        (NAMED, "big", "mid@elsewhere", "no upstream 'elsewhere'"),
        (NAMED, "big", "big", "both sides are the same"),
        (NAMED, "big", "", "names no model"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, toml: str, old: str, new: str, words: str) -> None:
    with pytest.raises((ConfigError, InputError), match=words):
        checked_sides(settings(tmp_path, toml), old, new)


def test_every_state_has_its_line() -> None:
    plan = Plan(old="big", new="small@서울", salt="", stages=(5, 100), window_seconds=1, min_samples=1, bounds=Bounds())
    states: tuple[State, ...] = get_args(State)
    lines = {standing(Canary(id=1, plan=plan, state=state)) for state in states}
    assert len(lines) == 4 and all("big -> small@서울" in line for line in lines)
