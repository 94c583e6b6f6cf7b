"""Settings that change while siafu runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.fake_upstream import OK, Arrival, http, upstream
from siafu.config import reload
from siafu.config.assembly import House, Plan, opened
from siafu.config.reload import told, weigh
from siafu.config.settings import Settings, load
from siafu.gateway.chat import ChatRequest
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, SettingsChanged

KEY = "sk-test-0123456789abcdefghij"
ASK = ChatRequest(model="m", messages=[{"role": "user", "content": "안녕하세요"}], max_tokens=10)


def made(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


# ---- what a change means --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({}, {"limits": {"rpm": 60}}, "from now on limits.rpm = 60.0"),
        ({"limits": {"rpm": 60}}, {}, "from now on limits.rpm"),
        ({}, {"limits": {"policy": "aimd"}}, "after a new start limits.policy"),
        (
            {"limits": {"concurrency": 1}},
            {"limits": {"concurrency": 2, "ramp_seconds": 3}, "models": {"strong": "s"}},
            "from now on limits.concurrency = 2; after a new start models.strong, limits.ramp_seconds",
        ),
        ({"budgets": {"day": "1 USD"}}, {"budgets": {"day": "2 USD"}}, "from now on budgets.day = 2 USD"),
        ({}, {"budgets": {"day": "2 USD"}}, "after a new start budgets.day"),
        (
            {"budgets": {"roles": {"a": "1 USD"}, "keys": {"default#1": "1 USD"}}},
            {"budgets": {"roles": {"a": "2 USD"}, "keys": {"default#1": "3 USD"}}},
            "from now on budgets.roles, budgets.keys",
        ),
        ({}, {"budgets": {"keys": {"default#1": "3 USD"}}}, "after a new start budgets.keys"),
        ({"budgets": {"day": "2 USD"}}, {}, "after a new start budgets.day"),
        ({}, {"budgets": {"soft": 0.5, "cheaper": {"a": "b"}}}, "from now on budgets.soft = 0.5, budgets.cheaper"),
        ({}, {"budgets": {"per_item": "1 USD"}}, "after a new start budgets.per_item"),
        ({}, {"prices": {"m.1": {"input": 1, "output": 1, "date": "2026-01-01"}}}, "from now on prices.m.1"),
        ({}, {"home": "elsewhere"}, "after a new start home"),
        ({}, {"redis_url": "redis://h"}, "after a new start redis_url"),
        ({}, {"mcp_servers": {"a": {"command": "a"}}}, "after a new start mcp_servers.a"),
        ({}, {"tools": {"effects": {"a.b": {}}}}, "after a new start tools.effects"),
        (
            {},
            {"endpoint": {"base_url": "https://a.example/v1"}},
            "after a new start endpoint.base_url",
        ),  # was simulated
        (
            {"upstreams": {"a": {"base_url": "https://a.example/v1"}}},
            {
                "upstreams": {"a": {"base_url": "https://b.example/v1"}, "b": {"base_url": "https://c.example/v1"}},
                "routes": [{"use": ["m"]}],
            },
            "from now on upstreams.a, routes, upstreams.b",
        ),
    ],
)
def test_what_changes_at_once_and_what_waits(before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    old, new = made(**before), made(**after)
    change = weigh(old, old, new)
    assert told(change, "siafu.toml") == f"siafu.toml has changed: {text}"
    for place in change.places:
        section, _, name = place.partition(".")
        source = old if place in change.later else new
        of = [getattr(getattr(each, section), name, getattr(each, section)) for each in (change.settings, source)]
        assert of[0] == of[1], place


def test_what_is_taken_back_needs_no_new_start() -> None:
    one, two = made(), made(models={"default": "x"}, limits={"rpm": 5})
    first = weigh(one, one, two)
    assert first.later == ("models.default",)
    second = weigh(first.settings, two, one)
    assert (second.places, second.later) == (("models.default", "limits.rpm"), ())
    assert second.settings == one
    assert told(weigh(one, one, one), "f").endswith("nothing is other than before")


# ---- while it runs --------------------------------------------------------------------------------------------------


class Running:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.notices: list[str] = []
        self.events: list[Event] = []
        self.house: House

    def write(self, text: str) -> None:
        """Put a new file in the place of the old one, as editors do."""
        new = self.file.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.file)

    async def told(self, count: int) -> str:
        async with asyncio.timeout(10):
            while len(self.notices) < count:
                await asyncio.sleep(0.01)
        assert len(self.notices) == count, self.notices
        return self.notices[-1]

    async def ask(self) -> Any:
        return await (await self.house.around.endpoint.open(ASK, CallContext())).message()


@asynccontextmanager
async def running(tmp_path: Path, text: str, **flags: Any) -> AsyncIterator[Running]:
    file = tmp_path / "siafu.toml"
    file.write_text(text, encoding="utf-8")
    run = Running(file)
    settings = load(config=file, environ={"SIAFU_HOME": str(tmp_path / "home")}, flags=flags)
    async with opened(settings, Plan(notice=run.notices.append, observer=run.events.append)) as run.house:
        yield run


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "EVERY", 0.02)


def page(url: str, more: str = "", first: str = "") -> str:
    return f'{first}\n[endpoint]\nbase_url = "{url}"\n{more}'


async def test_limits_and_prices_change_under_way(tmp_path: Path) -> None:
    go = asyncio.Event()

    def hold(arrival: Arrival) -> Any:
        async def send(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
            await go.wait()
            writer.write(http(OK))

        return send

    price = "[prices.m]\ninput = 1\noutput = {}\ndate = 2026-01-01\n"
    async with (
        upstream(hold) as fake,
        running(tmp_path, page(fake.base_url, price.format(1), "limits.concurrency = 1")) as run,
    ):
        calls = [asyncio.create_task(run.ask()) for _ in range(3)]
        assert await fake.until(lambda: len(fake.arrivals) == 1)
        run.write(page(fake.base_url, price.format(6), "limits.concurrency = 3"))
        assert await run.told(1) == "siafu.toml has changed: from now on limits.concurrency = 3, prices.m"
        assert await fake.until(lambda: len(fake.arrivals) == 3)
        go.set()
        costs = [answer.usd_pico for answer in await asyncio.gather(*calls)]
    assert costs == [12 * 10**6, 22 * 10**6, 22 * 10**6] and len(fake.arrivals) == 3
    assert [event for event in run.events if isinstance(event, SettingsChanged)] == [
        SettingsChanged(places=("limits.concurrency", "prices.m"))
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[limits]\nconcurrency = 0\nrmp = 5", "limits.concurrency must be at least 1"),
        ("[limits]\nconcurrency = 0\nrmp = 5", "limits.rmp is no setting; did you mean rpm?"),
        ("[limits\n", "siafu.toml: "),
        ("[endpoint]\nbase_url = 'http://a.example/v1'", "clear text"),
        ("[endpoint]\nbase_url = 'https://a.example/v1'\napi_key = 'env:NOT_SET'", "NOT_SET, which is not set"),
        (f"[endpoint]\napi_key = '{KEY}'", "never the secret itself"),
        ("[mcp_servers.a]\ncommand = 'a'\nurl = 'https://a.example'", "either a command or a url"),
        ("[tools.effects.'a.b']\nkey = 'no'", "tools.effects"),
        ("[budgets]\nsoft = 0.5", "go together"),
    ],
)
async def test_a_file_that_is_wrong_changes_nothing(tmp_path: Path, text: str, words: str) -> None:
    async with upstream([http(OK)]) as fake, running(tmp_path, page(fake.base_url)) as run:
        run.write(text)
        notice = await run.told(1)
        assert notice.startswith("the settings stay as they were: ") and words in notice and KEY not in notice
        assert (await run.ask()).content == "ok"
        run.write(page(fake.base_url, first="limits.rpm = 6000"))
        assert (await run.told(2)).endswith("limits.rpm = 6000.0")
    refused = [event.refused for event in run.events if isinstance(event, SettingsChanged)]
    assert words in refused[0] and refused[1] == ""


async def test_a_file_that_goes_away_changes_nothing(tmp_path: Path) -> None:
    async with upstream([http(OK)]) as fake, running(tmp_path, page(fake.base_url)) as run:
        run.file.unlink()
        assert "cannot be read: No such file" in await run.told(1)
        assert (await run.ask()).content == "ok"


async def test_the_command_still_wins_and_a_touch_says_nothing(tmp_path: Path) -> None:
    async with upstream([http(OK)]) as fake, running(tmp_path, page(fake.base_url), **{"limits.rpm": 60.0}) as run:
        run.file.touch()
        run.write(page(fake.base_url, first="limits.rpm = 5"))
        assert (await run.told(1)).endswith("nothing is other than before")


async def test_a_file_that_is_written_piece_by_piece_counts_once_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it is a valid file too: its upstream has no key of its own."""
    monkeypatch.setattr(reload, "EVERY", 0.3)
    async with upstream([http(OK)]) as fake, running(tmp_path, page(fake.base_url)) as run:
        with run.file.open("w") as file:
            for line in (f'[endpoint]\nbase_url = "{fake.base_url}"\n', "[limits]\nrpm = 7\n", "tpm = 8\n"):
                file.write(line)
                file.flush()
                await asyncio.sleep(0.1)
        assert (await run.told(1)).endswith("limits.rpm = 7.0, limits.tpm = 8.0")


async def test_a_file_that_changed_while_siafu_started_counts(tmp_path: Path) -> None:
    async with upstream([http(OK)]) as fake:
        run = Running(tmp_path / "siafu.toml")
        run.write(page(fake.base_url))
        settings = load(config=run.file, environ={"SIAFU_HOME": str(tmp_path / "home")})
        run.write(page(fake.base_url, first="limits.rpm = 9"))
        async with opened(settings, Plan(notice=run.notices.append)):
            assert (await run.told(1)).endswith("limits.rpm = 9.0")


async def test_a_secret_in_a_file_that_a_header_names_is_followed(tmp_path: Path) -> None:
    secret = tmp_path / "team"
    secret.write_text("one-secret")
    head = f'headers = {{ x-team = "file:{secret}" }}\n'
    async with upstream([http(OK)]) as fake, running(tmp_path, page(fake.base_url, head)) as run:
        await run.ask()
        secret.write_text("two-secret")
        await run.told(1)
        await run.ask()
    assert [arrival.headers["x-team"] for arrival in fake.arrivals] == ["one-secret", "two-secret"]


async def test_upstreams_and_routes_come_and_go(tmp_path: Path) -> None:
    one_up = '[upstreams.one]\nbase_url = "{}"\n'
    two_up = one_up + '[upstreams.two]\nbase_url = "{}"\n[[routes]]\nuse = ["m@two"]\n'
    async with (
        upstream([http(OK)]) as one,
        upstream([http(OK)]) as two,
        running(tmp_path, one_up.format(one.base_url)) as run,
    ):
        await run.ask()
        run.write(two_up.format(one.base_url, two.base_url))
        assert (await run.told(1)).endswith("from now on routes, upstreams.two")
        await run.ask()
        run.write(one_up.format(one.base_url))
        await run.told(2)
        await run.ask()
    assert (len(one.arrivals), len(two.arrivals)) == (2, 1)


async def test_the_budget_of_the_day_is_raised(tmp_path: Path) -> None:
    day = '[budgets]\nday = "{} USD"\n[prices.m]\ninput = 1\noutput = 1000\ndate = 2026-01-01\n'
    async with upstream([http(OK)]) as fake, running(tmp_path, page(fake.base_url, day.format("0.001"))) as run:
        with pytest.raises(Exception, match="a day"):
            await run.ask()
        run.write(page(fake.base_url, day.format("5")))
        assert (await run.told(1)).endswith("budgets.day = 5 USD")
        assert (await run.ask()).content == "ok"


async def test_a_simulated_endpoint_follows_too(tmp_path: Path) -> None:
    async with running(tmp_path, "") as run:
        run.notices.clear()
        run.write("[limits]\nconcurrency = 7")
        assert (await run.told(1)).endswith("limits.concurrency = 7")
        run.write("[limits]\nconcurrency = 7\n[endpoint]\nbase_url = 'http://127.0.0.1:9/v1'")
        assert (await run.told(2)).endswith("after a new start endpoint.base_url")
