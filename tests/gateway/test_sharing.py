"""Limits that processes share, on a real Redis. Each `Process` is one with connections and counts of its own."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from services import free_port, redis_command, running_redis
from siafu.border.secrets import Secret
from siafu.errors import ConfigError, StoreError
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.endpoint import PlainReply, Reply
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.sharing import Sharing, limits_key
from siafu.gateway.upstream import Upstream
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, LimitsShared
from siafu.pace.clock import SystemClock
from siafu.service import together
from siafu.store.redis import RedisDoor, RedisStream

from .conftest import ASK

pytest.importorskip("redis")
CLOCK = SystemClock()


class Endpoint:
    """What all processes call. `came`: when requests came; `peak`: the most at once."""

    def __init__(self, seconds: float = 0.05, tokens: int = 100) -> None:
        self.seconds, self.tokens = seconds, tokens
        self.came: list[float] = []
        self.now = self.peak = 0

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        self.came.append(time.monotonic())
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.now -= 1
        usage = Usage(input=self.tokens - 10, output=10)
        return PlainReply(ChatAnswer(message={}, content="네", usage=usage, model="m"), seconds=self.seconds)


class Process:
    def __init__(self, url: str, limits: Limits, endpoint: Endpoint) -> None:
        self.events: list[Event] = []
        upstream = Upstream(name="u", base_url="http://127.0.0.1:9/v1", key=Secret("sk-shared-0123456789"))
        self.door = RedisDoor(Secret(url))
        self.sharing = Sharing(self.door, limits.whole, upstream, clock=CLOCK, observer=self.events.append)
        self.limited = Limited(
            endpoint,
            limits,
            clock=CLOCK,
            rng=Random(1),
            upstream="u",
            observer=self.events.append,
            sharing=self.sharing,
        )

    async def ask(self, count: int = 1) -> None:
        await asyncio.gather(*(self.limited.open(ASK, CallContext()) for _ in range(count)))

    @property
    def alone(self) -> list[bool]:
        return [event.alone for event in self.events if isinstance(event, LimitsShared)]


@asynccontextmanager
async def processes(url: str, count: int, limits: Limits, endpoint: Endpoint) -> AsyncIterator[list[Process]]:
    made = [Process(url, limits, endpoint) for _ in range(count)]
    try:
        async with asyncio.timeout(60):
            yield made
    finally:
        for each in made:
            await each.sharing.aclose()
            await each.door.aclose()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.01)


def most_within(times: list[float], window: float) -> int:
    return max(sum(start <= at <= start + window for at in times) for start in times)


async def test_processes_together_keep_the_concurrency_and_use_all_of_it(redis_url: str) -> None:
    endpoint = Endpoint()
    async with processes(redis_url, 3, Limits(concurrency=9), endpoint) as found:
        await asyncio.gather(*(each.ask(30) for each in found))
        assert len(endpoint.came) == 90
        assert endpoint.peak <= 9
        assert endpoint.peak >= 8
        assert [each.alone for each in found] == [[], [], []]


async def test_processes_that_do_not_share_do_not_keep_it(redis_url: str) -> None:
    """The control: three processes, each with limits of its own."""
    endpoint = Endpoint()
    single = [
        Limited(endpoint, Limits(concurrency=9), clock=CLOCK, rng=Random(1), upstream="u", observer=lambda event: None)
        for _ in range(3)
    ]
    await asyncio.gather(*(each.open(ASK, CallContext()) for each in single for _ in range(30)))
    assert endpoint.peak == 27


async def test_f56_processes_together_keep_the_requests_a_minute(redis_url: str) -> None:
    endpoint, limits = Endpoint(), Limits(concurrency=100, rpm=3000)  # 50 a second
    async with processes(redis_url, 2, limits, endpoint) as found:
        await asyncio.gather(*(each.ask(50) for each in found))
    window = 0.5
    assert most_within(endpoint.came, window) <= 50 * (window + 0.25) + 10, "what is on lease may come a little later"
    assert endpoint.came[-1] - endpoint.came[0] >= 1.6


async def test_processes_together_keep_the_tokens_a_minute(redis_url: str) -> None:
    endpoint, limits = Endpoint(tokens=1000), Limits(concurrency=100, tpm=1_200_000)  # 20 calls a second
    async with processes(redis_url, 2, limits, endpoint) as found:
        await asyncio.gather(*(each.ask(30) for each in found))
        assert found[0].alone == []
    assert len(endpoint.came) == 60
    assert endpoint.came[-1] - endpoint.came[0] >= 2.0, "60,000 tokens at 20,000 a second, beginning with nothing"


async def test_slots_that_one_process_does_not_need_are_for_the_other(redis_url: str) -> None:
    endpoint = Endpoint(seconds=0.3)
    async with processes(redis_url, 2, Limits(concurrency=6), endpoint) as (busy, late):
        first = asyncio.create_task(busy.ask(30))
        await until(lambda: endpoint.now == 6)
        await late.ask(1)
        assert not first.done(), "the late one does not wait for all calls of the busy one"
        await first
        assert endpoint.peak == 6


async def test_slots_of_a_process_that_died_come_back(redis_url: str) -> None:
    endpoint = Endpoint(seconds=0.05)
    async with processes(redis_url, 1, Limits(concurrency=2), endpoint) as (alive,):
        key = limits_key(Upstream(name="u", base_url="http://127.0.0.1:9/v1", key=Secret("sk-shared-0123456789")))
        door = RedisDoor(Secret(redis_url))
        (seconds, _) = await door.run("return redis.call('TIME')", [], [])
        script = "redis.call('HSET', KEYS[1], 'dead', ARGV[1]) return {1}"
        await door.run(script, [f"{key}:members"], [f"2 2 {seconds + 2}000000"])
        await door.aclose()
        began = time.monotonic()
        await alive.ask(2)
        assert 0.5 <= time.monotonic() - began <= 20


async def test_a_redis_that_is_wiped_grants_nothing_twice(redis_url: str) -> None:
    endpoint, limits = Endpoint(), Limits(concurrency=100, rpm=3000)
    port = int(redis_url.rsplit(":", 1)[1].split("/")[0])
    async with processes(redis_url, 1, limits, endpoint) as (one,):
        asked = asyncio.create_task(one.ask(80))
        while not asked.done():
            await asyncio.sleep(0.1)
            assert redis_command(port, "FLUSHALL") == b"+OK\r\n"
        await asked
        assert one.alone == []
    assert most_within(endpoint.came, 0.5) <= 50 * 0.75 + 10


async def test_a_redis_that_was_killed_stalls_nobody_and_is_used_again() -> None:
    with running_redis() as server:
        url, endpoint = f"redis://127.0.0.1:{server.port}/0", Endpoint(seconds=0.02)
        async with processes(url, 2, Limits(concurrency=8), endpoint) as found:
            work = [asyncio.create_task(each.ask(300)) for each in found]
            await until(lambda: all(each.sharing.share.processes == 2 for each in found))
            server.kill()
            await asyncio.gather(*work)
            await asyncio.gather(*(each.ask(4) for each in found))
            assert [each.alone for each in found] == [[True], [True]], "said once"
            assert {each.sharing.share.processes for each in found} == {2}
            endpoint.peak = 0
            await asyncio.gather(*(each.ask(40) for each in found))
            assert endpoint.peak <= 8, "each takes its half"
            server.start()
            for _ in range(400):
                if all(each.alone == [True, False] for each in found):
                    break
                await asyncio.gather(*(each.ask(1) for each in found))
                await asyncio.sleep(0.02)
            assert [each.alone for each in found] == [[True, False], [True, False]]


async def test_a_redis_that_accepts_and_says_nothing_holds_a_call_up_only_once() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        endpoint, limits = Endpoint(seconds=0.0), Limits(concurrency=8, processes=4, rpm=60_000)
        async with processes(f"redis://127.0.0.1:{port}/0", 1, limits, endpoint) as (one,):
            began = time.monotonic()
            await one.ask(20)
            assert time.monotonic() - began < 5
            assert one.alone == [True]
            assert endpoint.peak <= 2, "a fourth of eight, as the settings say"


async def test_one_who_ends_disturbs_no_other_who_asks_at_the_same_door(redis_url: str) -> None:
    slow = "for _ = 1, 10000000 do end return {7}"  # since Redis 7.2 the time stands still within a script
    async with processes(redis_url, 1, Limits(), Endpoint()) as (one,):
        assert await one.door.run("return {1}", [], []) == [1]  # connected
        asking = asyncio.create_task(one.door.run(slow, [], []))
        for _ in range(3):
            await asyncio.sleep(0)
        await one.sharing.aclose()
        assert await asking == [7]


async def test_a_command_beside_one_that_fails_leaves_no_connection_behind(redis_url: str) -> None:
    """The failure closes the client of both, which connects anew for the one that goes on."""
    door, clients, go_on = RedisDoor(Secret(redis_url)), list[Any](), asyncio.Event()

    async def slow(client: Any) -> bytes:
        clients.append(client)
        await go_on.wait()
        answer: bytes = await client.echo("살아 있음")
        return answer

    asking = asyncio.create_task(door.ask(slow))
    while not clients:
        await asyncio.sleep(0)
    with pytest.raises(StoreError):
        await door.run("return nonsense(", [], [])
    go_on.set()
    assert (await asking).decode() == "살아 있음"
    await until(lambda: redis_command(_port(redis_url), "CLIENT", "LIST").count(b" laddr=") == 1)  # who asks this
    await door.aclose()


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


async def test_errors_of_redis_are_ours_and_name_no_password() -> None:
    door = RedisDoor(Secret(f"redis://:s3cret-word@127.0.0.1:{free_port()}/0"))
    with pytest.raises(StoreError) as caught:
        await door.run("return {1}", [], [])
    assert "s3cret-word" not in str(caught.value)
    with pytest.raises(StoreError, match=r"\(TimeoutError\)$"):
        await door.ask(lambda client: asyncio.sleep(9))
    await door.aclose()


async def test_a_script_that_is_wrong_is_an_error_and_the_door_goes_on(redis_url: str) -> None:
    door = RedisDoor(Secret(redis_url))
    with pytest.raises(StoreError):
        await door.run("return nonsense(", [], [])
    assert await door.run("return {tonumber(ARGV[1]), 2}", [], [1]) == [1, 2]
    await door.aclose()


async def test_a_user_of_redis_with_the_rights_that_are_documented_can_do_all(redis_url: str) -> None:
    text = (Path(__file__).parents[2] / "docs/queue.md").read_text(encoding="utf-8")
    words = shlex.split(text.partition("redis-cli ")[2].partition("\n\n")[0].replace("\\\n", " "))
    port = _port(redis_url)
    assert redis_command(port, *words) == b"+OK\r\n"
    limits, endpoint = Limits(concurrency=3, rpm=6000, tpm=600_000), Endpoint()
    async with processes(f"redis://siafu:PASSWORD@127.0.0.1:{port}/0", 1, limits, endpoint) as (process,):
        await process.ask(5)
        assert process.alone == []
        assert await process.door.run(
            together.SCRIPT, ("siafu:{client:k}:m", "siafu:{client:k}:r"), ("me", 1, 9000, 2, 2, "n")
        ) == [0, 0]
        stream = RedisStream(process.door, "siafu:tasks:place", "workers", most=10)
        await stream.join()
        await stream.add(["t_1"])
        assert len(await stream.read("r", 10, 0.01)) == 1
        assert await stream.tidy(-1) == 1
        with pytest.raises(StoreError, match="NoPermission"):
            await process.door.ask(lambda client: client.get("siafu:x"))


@pytest.mark.parametrize("url", ["", "ftp://x", "127.0.0.1:6379", "rediss://127.0.0.1/0?ssl_ca_certs=/not/there.pem"])
def test_an_address_that_cannot_be_used_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError):
        RedisDoor(Secret(url))


def test_a_missing_library_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("siafu.store.redis.importlib.import_module", missing)
    with pytest.raises(ConfigError, match=r"siafu\[redis\]"):
        RedisDoor(Secret("redis://127.0.0.1:1"))


def test_the_name_of_a_limit_tells_keys_apart_and_shows_none() -> None:
    names = {
        limits_key(Upstream(name="u", base_url=url, key=None if key is None else Secret(key)))
        for url in ("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1")
        for key in (None, "sk-a-0123456789", "sk-b-0123456789")
    }
    assert len(names) == 6
    assert not any("0123456789" in name for name in names)
