"""What Redis may do to the bell: every fault costs latency, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from certificates import certified
from services import Server, free_port, redis_command, running_redis
from siafu.border.secrets import Secret
from siafu.cli.main import main
from siafu.config.settings import load
from siafu.config.task_house import task_house
from siafu.config.tasks import task_database, task_store
from siafu.errors import ConfigError, StoreError
from siafu.pace.clock import SystemClock
from siafu.queue import redis_bell
from siafu.queue.redis_bell import GROUP, MOST, RedisBell
from siafu.queue.worker import Outcome
from siafu.store.redis import RedisDoor, RedisStream
from siafu.store.task_journal import TaskJournal
from siafu.store.task_records import Lease, Succeeded
from store.task_house import new

from .redis_faults import AT_ONCE, FAULTS, a_town
from .site import SECONDS, Site, quick

pytest.importorskip("redis")
STREAM = "siafu:tasks:place"


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BLOCK": 0.2, "SLOW": 0.3, "BASE": 0.05, "CAP": 0.2}.items():
        monkeypatch.setattr(redis_bell, name, seconds)


class Bells:
    """Bells at one Redis. notices: what they have told."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.notices: list[str] = []

    async def opened(self, url: str, reader: str | None = None) -> RedisBell:
        bell = RedisBell(
            Secret(url), "place", reader=reader, clock=SystemClock(), rng=Random(1), notice=self.notices.append
        )
        await self._stack.enter_async_context(bell.open())
        return bell


@pytest.fixture
async def bells() -> AsyncIterator[Bells]:
    async with asyncio.timeout(2 * SECONDS), AsyncExitStack() as stack:
        yield Bells(stack)


async def until(done: Callable[[], bool], between: Callable[[], object] = lambda: None) -> None:
    async with asyncio.timeout(SECONDS):
        while not done():
            between()
            await asyncio.sleep(0.05)


def waits(url: str) -> tuple[int, int, int]:
    """Notes in the stream, notes that were read and not dropped, readers."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    read = redis_command(port, "XPENDING", STREAM, GROUP).split()[1:2]
    readers = redis_command(port, "XINFO", "CONSUMERS", STREAM, GROUP).split()[0]
    return int(redis_command(port, "XLEN", STREAM)[1:]), int(read[0][1:]), int(readers[1:])


@pytest.mark.parametrize("name", FAULTS)
async def test_p4_f35_a_redis_that_is(name: str, bells: Bells, tmp_path: Path) -> None:
    """Tasks are done all the while; what runs goes on; it is told once or twice; and the bell rings again after it."""
    over = asyncio.Event()

    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        if lease.run == "long":
            await over.wait()
        return Succeeded("1")

    async with a_town(STREAM) as town, AsyncExitStack() as stack:
        site = Site(f"sqlite:///{tmp_path / 'tasks.db'}")
        stack.push_async_callback(site.aclose)
        site.bell = bell = await bells.opened(town.url(name), "r1")
        site.house.store._rung = bell.ring
        elsewhere = await bells.opened(town.url(name))
        both: list[Callable[[], object]] = [bell.ring, elsewhere.ring]
        long = await site.house.one(run="long")
        run, rings = site.work(work, poll=0.1, slots=4), Counter[str]()
        stack.enter_context(bell.heard(lambda: rings.update("r")))

        async def rings_again() -> None:
            rings.clear()
            await until(lambda: rings["r"] > 0, elsewhere.ring)

        await rings_again()
        async with FAULTS[name](town):
            for number in range(1, 4):
                await site.house.added(new(), new())
                await site.until("succeeded", 2 * number)
            if name not in AT_ONCE:
                await until(lambda: bells.notices != [])
        await rings_again()
        await until(
            lambda: 2 * sum(notice.endswith("again") for notice in bells.notices) == len(bells.notices),
            lambda: [ring() for ring in both],
        )
        over.set()
        site.stops.signal()
        tally = await run
        assert (tally.left, tally.fenced, (await site.house.task(long)).lease_epoch) == (Counter(succeeded=7), 0, 1)
        assert len(bells.notices) <= 6 and (name in AT_ONCE or bells.notices), bells.notices
        await bells._stack.aclose()
        assert waits(town.url("killed"))[1:] == (0, 0)


async def test_f35_without_its_group_it_does_not_ask_in_a_hurry(bells: Bells, redis_url: str) -> None:
    """The group is destroyed for a second, again and again."""
    bell = await bells.opened(redis_url, "r1")
    bell.looked(1)
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    await until(lambda: redis_command(port, "EXISTS", STREAM) == b":1\r\n")
    redis_command(port, "CONFIG", "RESETSTAT")
    for _ in range(20):
        redis_command(port, "DEL", STREAM)
        await asyncio.sleep(0.05)
    calls = redis_command(port, "INFO", "commandstats").decode()
    assert int(calls.partition("cmdstat_xreadgroup:calls=")[2].partition(",")[0]) < 100
    assert len(bells.notices) <= 2


class Answering:
    """A server that gives one answer to everything. asked: how often it was connected to; open: how many are."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.asked = self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        self.open += 1
        with contextlib.suppress(ConnectionError):
            while self._answer and (data := await reader.read(65536)):
                writer.write(self._answer * max(1, data.count(b"\r\n*") + data.startswith(b"*")))
            writer.close()
            await writer.wait_closed()
        self.open -= 1


@pytest.mark.parametrize(
    "answer",
    [
        "-LOADING Redis is loading the dataset in memory",
        "-CLUSTERDOWN The cluster is down",
        "-READONLY You can't write against a read only replica.",
        "-OOM command not allowed when used memory > 'maxmemory'.",
        "-MISCONF Redis is configured to save RDB snapshots, but cannot persist on disk",
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "-NOAUTH Authentication required.",
        "-TRYAGAIN Multiple keys request during rehashing of slot",
        "-MOVED 1 127.0.0.1:1",
        "-BUSY Redis is busy running a script",
        "HTTP/1.1 400 Bad Request",
        "",
    ],
)
async def test_p4_a_redis_that_answers(answer: str, bells: Bells, tmp_path: Path) -> None:
    found = Answering(answer.encode() + b"\r\n" if answer else b"")
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    site = Site(f"sqlite:///{tmp_path / 'tasks.db'}")
    try:
        site.bell = await bells.opened(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", "r1")
        site.house.store._rung = site.bell.ring
        site.work(quick, poll=0.1)
        await site.house.added(new(), new())
        await site.until("succeeded", 2)
        await until(lambda: len(bells.notices) == 2)
        assert all("find tasks by looking" in notice for notice in bells.notices), bells.notices
        assert found.asked < 60, "it pauses between tries"
    finally:
        await bells._stack.aclose()
        await site.aclose()
        server.close()
        await until(lambda: not found.open)


async def test_f34_what_a_dead_reader_has_read_is_cleared_away_with_it(
    bells: Bells, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_bell, "DEAD", 0.3)
    door = RedisDoor(Secret(redis_url), timeout=5)
    stream = RedisStream(door, STREAM, GROUP, most=MOST)
    await stream.join()
    for number in range(30):
        await stream.add(["t"] * 10)
        assert len(await stream.read(f"dead{number}", 10, 0.1)) == 10
    await door.aclose()
    assert waits(redis_url) == (300, 300, 30)
    bell = await bells.opened(redis_url, "alive")
    await until(lambda: waits(redis_url) in ((0, 0, 0), (0, 0, 1)), lambda: bell.looked(1))  # the one is itself


async def test_notes_that_nobody_reads_do_not_pile_up(bells: Bells, redis_url: str) -> None:
    bell = await bells.opened(redis_url)
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    for _ in range(30):
        bell.ring([f"t_{number}" for number in range(200)])
        await until(lambda: not bell._notes)
    assert MOST - 100 <= int(redis_command(port, "XLEN", STREAM)[1:]) <= MOST + 200


async def test_who_has_no_slot_leaves_notes_to_others(bells: Bells, redis_url: str) -> None:
    full, free, elsewhere = [await bells.opened(redis_url, name) for name in ("full", "free", "elsewhere")]
    heard = Counter[str]()
    full.looked(0)
    free.looked(1)
    with full.heard(lambda: heard.update(["full"])), free.heard(lambda: heard.update(["free"])):
        for number in range(5):
            elsewhere.ring([f"t_{number}"])
            await until(lambda number=number: heard["free"] > number, lambda: free.looked(1))  # type: ignore[misc]
    assert heard["full"] == 0


async def test_a_note_names_the_task_that_was_accepted_or_begins_again(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the settings put together; and the end of the block sends what was rung."""
    settings = load(flags={"home": tmp_path, "redis_url": redis_url}, environ={})
    monkeypatch.setenv("SIAFU_HOME", str(tmp_path))
    monkeypatch.setenv("SIAFU_REDIS_URL", redis_url)

    def retried() -> None:
        with pytest.raises(SystemExit, match="0"):
            main(["tasks", "retry", task.id])

    async with task_store(settings) as store:
        (task,) = await store.accept([new("1")])
    async with task_database(settings) as database:
        (row,) = await database.run(lambda tx: tx.rows("SELECT id FROM task_place"))
    stream, port = f"siafu:tasks:{row['id']}", int(redis_url.rpartition(":")[2].partition("/")[0])

    def notes() -> int:
        return redis_command(port, "XRANGE", stream, "-", "+").count(task.id.encode())

    assert notes() == 1
    async with task_house(settings) as served:
        assert not isinstance(served, str)
        await served.desk.cancel([task.id])
        await served.desk.retry([task.id])
        await until(lambda: notes() == 2)
        await served.desk.cancel([task.id])
        await asyncio.to_thread(retried)
        assert notes() == 3


@pytest.mark.parametrize(
    ("redis", "database", "refused"),
    [
        ("redis://redis.example:6379/0", None, True),
        ("rediss://10.0.0.7", "sqlite:///tasks.db", True),
        ("redis://localhost", None, False),
        ("unix:///run/redis.sock", None, False),
        ("redis://redis.example", "postgresql://127.0.0.1:1/none", False),
    ],
)
async def test_a_file_of_tasks_and_a_redis_elsewhere_do_not_go_together(
    redis: str, database: str | None, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(flags={"home": tmp_path, "redis_url": redis, "database_url": database}, environ={})
    if refused:
        with pytest.raises(ConfigError, match="SIAFU_DATABASE_URL=postgresql"):
            async with task_database(settings):
                pass
        assert not (tmp_path / "tasks.db").exists()
    elif database:
        with pytest.raises(StoreError, match="cannot be reached"):
            async with task_database(settings):
                pass
    else:
        async with task_database(settings):
            pass


# ---- ways to reach a Redis ----------------------------------------------------------------------------------------


async def rings_through(bells: Bells, url: str) -> None:
    bell, elsewhere = await bells.opened(url, "r1"), await bells.opened(url)
    bell.looked(1)
    heard = asyncio.Event()
    with bell.heard(heard.set):
        await until(heard.is_set, elsewhere.ring)


async def test_a_socket_of_this_machine(bells: Bells, tmp_path: Path) -> None:
    with running_redis("--unixsocket", str(tmp_path / "redis.sock")):
        await rings_through(bells, f"unix://{tmp_path / 'redis.sock'}")


async def test_tls_with_a_certificate_authority_of_its_own(bells: Bells, tmp_path: Path) -> None:
    files, port = certified(tmp_path, "127.0.0.1"), free_port()
    tls = ["--tls-port", str(port), "--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key)]
    with running_redis(*tls, "--tls-ca-cert-file", str(files.certificate), "--tls-auth-clients", "no"):
        await rings_through(bells, f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={files.certificate}")
        untrusted = await bells.opened(f"rediss://127.0.0.1:{port}/0")
        await until(lambda: any("certificate verify failed" in notice for notice in bells.notices), untrusted.ring)


@pytest.mark.parametrize("option", ["ssl_cert_reqs=none", "ssl_cert_reqs=optional", "ssl_check_hostname=false"])
def test_sec28_a_redis_whose_certificate_is_not_checked_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="ssl_ca_certs"):
        RedisDoor(Secret(f"rediss://redis.example/0?{option}"))


async def test_a_cluster_through_a_node_that_does_not_have_the_stream(bells: Bells) -> None:
    flags = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
    with running_redis(*flags) as one, running_redis(*flags) as other:
        await asyncio.to_thread(_join, one, other)
        slot = int(redis_command(one.port, "CLUSTER", "KEYSLOT", STREAM)[1:])
        without = other if slot < 8192 else one
        await rings_through(bells, f"redis://127.0.0.1:{without.port}/0")
        assert await _left_open(f"redis://127.0.0.1:{without.port}/0") == []


async def _left_open(url: str) -> list[str]:
    """What a door to a cluster has not closed in the end, as the library tells it."""
    told = list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["message"]))
    door = RedisDoor(Secret(url), timeout=2.0)

    async def work(client: Any) -> Any:
        await client.xlen(STREAM)
        await client.aclose()  # as for another command, which failed; what is under way connects again
        return await client.get_nodes()[0].execute_command("PING")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        assert await door.ask(work)
        await door.aclose()
        gc.collect()
    return told


def _join(*nodes: Server) -> None:
    for number, node in enumerate(nodes):
        slots = [str(slot) for slot in range(8192 * number, 8192 * (number + 1))]
        for start in range(0, len(slots), 1024):
            assert redis_command(node.port, "CLUSTER", "ADDSLOTS", *slots[start : start + 1024]) == b"+OK\r\n"
    redis_command(nodes[0].port, "CLUSTER", "MEET", "127.0.0.1", str(nodes[1].port))
    asyncio.run(until(lambda: all(b"state:ok" in redis_command(node.port, "CLUSTER", "INFO") for node in nodes)))
