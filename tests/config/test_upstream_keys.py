"""Keys that are added and disabled beside the settings, and how what runs follows."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.fake_upstream import OK, Answer, Arrival, error, http, upstream
from siafu.config import reload
from siafu.config.assembly import House, Plan, opened
from siafu.config.settings import Settings, load
from siafu.config.upstream_keys import FILE, Added, changing, named_keys
from siafu.config.upstreams import configured_ways, usable_ways
from siafu.errors import AccessRefused, ConfigError
from siafu.gateway.chat import ChatRequest
from siafu.observe.calls import CallContext

KEY = "sk-test-0123456789abcdefghij"
ASK = ChatRequest(model="m", messages=[{"role": "user", "content": "안녕하세요"}])


def settings(folder: Path, url: str, keys: str = '"file:{0}/a", "file:{0}/b"') -> Settings:
    for name in "abc":
        (folder / name).write_text(f"{KEY}-{name}")
    home, file = folder / "home", folder / "siafu.toml"
    named = keys.format(folder)
    file.write_text(f'home = "{home}"\n[upstreams.u]\nbase_url = "{url}"\napi_keys = [{named}]\n', encoding="utf-8")
    return load(config=file, environ={})


def ids(found: Settings) -> list[str]:
    return [way.id for way in configured_ways(found)]


URL = "https://u.example/v1"


def test_a_disabled_key_is_left_out_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    found = settings(tmp_path, URL)
    with changing(found.home, "u") as own:
        own.disabled.append(f"file:{tmp_path}/a")
        own.added.append(Added(f"file:{tmp_path}/c", "https://u.example:443"))
    assert ids(found) == ["u#2", "u#3"]
    keys = [way.upstream.key.reveal() for way in configured_ways(found) if way.upstream.key]
    assert keys == [f"{KEY}-b", f"{KEY}-c"]
    assert KEY not in (found.home / FILE).read_text(encoding="utf-8")


def test_an_added_key_never_goes_to_another_origin(tmp_path: Path) -> None:
    found = settings(tmp_path, URL)
    with changing(found.home, "u") as own:
        own.added.append(Added(f"file:{tmp_path}/c", "https://u.example:443"))
    moved = settings(tmp_path, "https://elsewhere.example/v1")
    assert ids(moved) == ["u#1", "u#2"] and not named_keys(moved)["u"][2].used


def test_the_endpoint_is_the_upstream_default(tmp_path: Path) -> None:
    (tmp_path / "c").write_text(f"{KEY}-c")
    file = tmp_path / "siafu.toml"
    file.write_text(f'home = "{tmp_path}"', encoding="utf-8")
    one = load(config=file, environ={"OPENAI_BASE_URL": URL, "OPENAI_API_KEY": KEY})
    assert ids(one) == [""]
    with changing(tmp_path, "default") as own:
        own.added.append(Added(f"file:{tmp_path}/c", "https://u.example:443"))
    assert ids(one) == ["default#1", "default#2"]
    with changing(tmp_path, "default") as own:
        own.disabled += ["as given", f"file:{tmp_path}/c"]
    with pytest.raises(ConfigError, match="every key is disabled"):
        usable_ways(one)


def test_a_broken_file_is_named_and_kept(tmp_path: Path) -> None:
    found = settings(tmp_path, URL)
    found.home.mkdir()
    (found.home / FILE).write_text('{"u": {"addd": []}}')
    with pytest.raises(ConfigError, match=FILE), changing(found.home, "u"):
        raise AssertionError("never reached")
    assert (found.home / FILE).read_text() == '{"u": {"addd": []}}'


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    def disable(number: int) -> None:
        with changing(tmp_path, "u") as own:
            own.disabled.append(f"env:K{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(disable, range(40)))
    assert sorted(json.loads((tmp_path / FILE).read_bytes())["u"]["disabled"]) == sorted(f"env:K{n}" for n in range(40))


def test_what_fails_in_the_block_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), changing(tmp_path, "u") as own:
        own.disabled.append("env:K")
        raise ZeroDivisionError
    assert not (tmp_path / FILE).exists()


async def ask(house: House) -> str:
    return (await (await house.around.endpoint.open(ASK, CallContext())).message()).content or ""


async def told(notices: list[str], count: int) -> None:
    async with asyncio.timeout(5):
        while len(notices) < count:
            await asyncio.sleep(0.01)


def keys_seen(arrivals: list[Arrival]) -> list[str]:
    return [arrival.headers["authorization"].rpartition("-")[2] for arrival in arrivals]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "EVERY", 0.02)


async def test_what_runs_follows_keys_that_are_disabled_added_and_written_anew(tmp_path: Path) -> None:
    async with upstream([http(OK)]) as gw:
        found, notices = settings(tmp_path, gw.base_url, '"file:{0}/a"'), list[str]()
        async with opened(found, Plan(notice=notices.append)) as house:
            await ask(house)
            (tmp_path / "a").write_text(f"{KEY}-new")  # rotated in place: a single key, nothing to choose
            await told(notices, 1)
            await ask(house)
            with changing(found.home, "u") as own:
                own.added.append(Added(f"file:{tmp_path}/c", f"http://127.0.0.1:{gw.port}"))
            await told(notices, 2)
            await ask(house)
            await ask(house)
            with changing(found.home, "u") as own:
                own.disabled.append(f"file:{tmp_path}/a")
            await told(notices, 3)
            await ask(house)
            await ask(house)
            (tmp_path / "c").write_text("YOUR_API_KEY")  # nothing usable: all stays as it was
            await told(notices, 4)
            await ask(house)
            with changing(found.home, "u") as own:
                own.disabled.append(f"file:{tmp_path}/c")
            await told(notices, 5)
            with pytest.raises(AccessRefused, match="no key is left"):
                await ask(house)
    seen = keys_seen(gw.arrivals)
    assert seen[:2] == ["a", "new"] and sorted(seen[2:4]) == ["c", "new"] and seen[4:] == ["c", "c", "c"]
    assert notices[:3] == [f"keys of upstreams in use now: {ids}" for ids in ("u", "u#1, u#2", "u#2")]
    assert "placeholder" in notices[3] and notices[4].endswith("now: none")
    assert KEY not in "".join(notices)


async def test_a_refused_key_that_is_written_anew_is_used_again(tmp_path: Path) -> None:
    def by_key(arrival: Arrival) -> Answer:
        return error(401, "no") if arrival.headers["authorization"].endswith("-a") else http(OK)

    async with upstream(by_key) as gw:
        found, notices = settings(tmp_path, gw.base_url), list[str]()
        async with opened(found, Plan(notice=notices.append)) as house:
            for _ in range(4):
                await ask(house)
            assert keys_seen(gw.arrivals) == ["a", "b", "b", "b", "b"]
            (tmp_path / "a").write_text(f"{KEY}-good")
            await told(notices, 1)
            for _ in range(4):
                await ask(house)
    assert sorted(keys_seen(gw.arrivals)[5:]) == ["b", "b", "good", "good"]


async def test_calls_under_way_end_and_those_that_wait_go_to_another_key(tmp_path: Path) -> None:
    """200 calls on two keys with room for one each; the first key is taken out while most of them wait."""

    def slowly(arrival: Arrival) -> Any:
        async def send(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
            await asyncio.sleep(0.005)
            writer.write(http(OK))

        return send

    async with upstream(slowly) as gw:
        found = settings(tmp_path, gw.base_url)
        found = found.model_copy(update={"limits": found.limits.model_copy(update={"concurrency": 1})})
        notices: list[str] = []
        async with opened(found, Plan(notice=notices.append)) as house:
            calls = [asyncio.create_task(ask(house)) for _ in range(200)]
            await gw.until(lambda: len(gw.arrivals) >= 10)
            with changing(found.home, "u") as own:
                own.disabled.append(f"file:{tmp_path}/a")
            await told(notices, 1)
            before = keys_seen(gw.arrivals).count("a")
            assert await asyncio.gather(*calls) == ["ok"] * 200
    assert 0 < before < 100 and keys_seen(gw.arrivals).count("a") <= before + 1
    assert len(gw.arrivals) == 200, "nothing is asked twice"
