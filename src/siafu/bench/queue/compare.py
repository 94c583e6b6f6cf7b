"""One comparison of queues: each in processes of its own, one after the other, again and again."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from siafu.bench import servers
from siafu.bench.alone import measured
from siafu.bench.gateway.compare import describe
from siafu.bench.gateway.peers import environment
from siafu.bench.goals import Judged
from siafu.bench.queue import drive
from siafu.bench.queue.figures import IN_PROCESS, POSTGRESQL, THROUGH_REDIS, Run, goals, rows
from siafu.border.secrets import redact
from siafu.errors import MeasurementInvalid

_CLIENTS = Path(__file__).parent / "clients"
_LIMIT = 300.0  # seconds for a run beside its work
_FSYNC = "fsync before a task is accepted, and before it has ended"
_SECOND = "Redis writes its file once a second: what is younger may be lost"


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A way to have tasks done. needs: servers. client: it needs siafu's own client of Redis. packages: of an
    environment of its own; none = siafu's.
    """

    name: str
    file: str
    durability: str
    needs: tuple[str, ...] = ()
    together: bool = False
    client: bool = False
    packages: tuple[str, ...] = ()


OWN = (
    Queue(name=IN_PROCESS, file="siafu_queue.py", durability=_FSYNC, together=True),
    Queue(name=POSTGRESQL, file="siafu_queue.py", durability=_FSYNC, needs=("postgresql",)),
    Queue(
        name=THROUGH_REDIS,
        file="siafu_queue.py",
        durability=f"{_FSYNC}; Redis only wakes workers",
        needs=("postgresql", "redis"),
        client=True,
    ),
    Queue(
        name="Redis Streams alone",
        file="redis_streams.py",
        durability=f"{_SECOND}; nothing is known of a task that has ended",
        needs=("redis",),
        client=True,
    ),
)
PEERS = {
    "streaq": Queue(
        name="streaQ", file="streaq_tasks.py", durability=_SECOND, needs=("redis",), packages=("streaq==7.2.0",)
    ),
    "taskiq": Queue(
        name="taskiq",
        file="taskiq_tasks.py",
        durability=f"{_SECOND}; no results",
        needs=("redis",),
        packages=("taskiq==0.13.0", "taskiq-redis==1.2.4"),
    ),
    "arq": Queue(name="arq", file="arq_jobs.py", durability=_SECOND, needs=("redis",), packages=("arq==0.28.0",)),
    "celery": Queue(
        name="Celery",
        file="celery_tasks.py",
        durability=f"{_SECOND}; no results",
        needs=("redis",),
        packages=("celery[redis]==5.7.0",),
    ),
    "dbos": Queue(
        name="DBOS",
        file="dbos_workflows.py",
        durability=_FSYNC,
        needs=("postgresql",),
        packages=("dbos==3.4.0",),
    ),
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """tasks: of `ms` milliseconds each; empty: of no length; 0 = none of that kind. submitters: each waits for the
    acceptance of one task before it submits the next. postgres, redis: servers to use; None = of our own. peers: names
    out of PEERS; home: where their environments are put.
    """

    tasks: int = 1200
    ms: float = 200.0
    empty: int = 3000
    slots: int = 50
    submitters: int = 100
    repeats: int = 3
    peers: tuple[str, ...] = tuple(PEERS)
    postgres: str | None = None
    redis: str | None = None
    home: Path = Path(".siafu")


class Report(Judged, frozen=True, kw_only=True):
    """`skipped`: why a queue is missing."""

    skipped: dict[str, str]


def compare(options: Options, say: Callable[[str], None]) -> Report:
    """Measure, and tell `say` how far it is. Peers run once.

    Raises: MeasurementInvalid when a run of siafu's failed, or contradicts itself.
    """
    options.home.mkdir(parents=True, exist_ok=True)
    machine = describe("asyncio", options.home)
    runs: list[Run] = []
    with contextlib.ExitStack() as stack:
        bench = _Bench(options, say, stack)
        plan = bench.plan()
        for number, (queue, tasks, ms) in enumerate(plan, 1):
            if queue.name in bench.skipped:
                continue
            say(f"{number} of {len(plan)}: {queue.name}, {tasks:,} tasks of {ms:g} ms")
            try:
                runs.append(bench.run(queue, tasks, ms))
            except MeasurementInvalid as error:
                if queue.file == OWN[0].file:
                    raise
                bench.skipped[queue.name] = redact(error.message)
                say(bench.skipped[queue.name])
    machine["load_after"] = round(os.getloadavg()[0], 2)
    durability = {queue.name: queue.durability for queue in (*OWN, *PEERS.values())}
    return Report(rows=rows(runs, durability), goals=goals(runs), machine=machine, skipped=bench.skipped)


class _Bench:
    """What all runs of a comparison share. Servers run until `stack` is closed."""

    def __init__(self, options: Options, say: Callable[[str], None], stack: contextlib.ExitStack) -> None:
        self._options = options
        self._say = say
        self._stack = stack
        self.skipped: dict[str, str] = {}
        self._servers = {"postgresql": options.postgres, "redis": options.redis}
        self._pythons: dict[str, tuple[str, ...]] = {}
        for queue in OWN:
            self._prepare(queue, None)
        for key in options.peers:
            self._prepare(PEERS[key], options.home / "bench-peers" / key)

    def plan(self) -> list[tuple[Queue, int, float]]:
        """Which queue does how many tasks of which length, in this order: each repeat begins with another one."""
        kinds = [(self._options.tasks, self._options.ms), (self._options.empty, 0.0)]
        plan = []
        for turn in range(self._options.repeats):
            chosen = (*OWN, *(PEERS[key] for key in self._options.peers)) if turn == 0 else OWN
            queues = [queue for queue in chosen if queue.name not in self.skipped]
            first = turn % len(queues)
            for tasks, ms in kinds:
                plan += [(queue, tasks, ms) for queue in (*queues[first:], *queues[:first]) if tasks]
        return plan

    def run(self, queue: Queue, tasks: int, ms: float) -> Run:
        """One run, checked. Raises: MeasurementInvalid."""
        options = self._options
        with tempfile.TemporaryDirectory(prefix="bench-", dir=options.home) as folder:
            order = {
                "together": queue.together, "tasks": tasks, "ms": ms, "slots": options.slots,
                "submitters": min(options.submitters, tasks), "limit": _LIMIT + 20 * tasks * ms / 1000 / options.slots,
                "run": f"bench-{uuid.uuid4().hex[:12]}",
                "redis": self._servers["redis"] if "redis" in queue.needs else None,
                "database": self._servers["postgresql"] if queue.needs else f"sqlite:///{Path(folder).resolve()}/tasks.db",
            }  # fmt: skip
            told = Path(folder) / "order.json"  # not on the command line, where others could read its passwords
            told.write_text(json.dumps(order), encoding="utf-8")
            command = [*self._pythons[queue.name], drive.__file__, str(_CLIENTS / queue.file), str(told)]
            found = msgspec.json.decode(measured(command, queue.name))
        run = Run(queue=queue.name, tasks=tasks, ms=ms, slots=options.slots, **found)
        run.check()
        return run

    def _prepare(self, queue: Queue, folder: Path | None) -> None:
        """See that it can run; else say why not."""
        python: Sequence[str] | str = (sys.executable, "-P")
        if folder is not None:
            self._say(f"looking for {' '.join(queue.packages)} (installed on first use)")
            found = environment(folder, list(queue.packages))
            python = (str(found), "-I") if isinstance(found, Path) else found
        elif queue.client and importlib.util.find_spec("redis") is None:
            python = "the Redis client is not installed: pip install 'siafu[redis]'"
        if isinstance(python, str):
            self.skipped[queue.name] = python
        else:
            self._pythons[queue.name] = tuple(python)
            self._serve(queue)
        if queue.name in self.skipped:
            self._say(f"{queue.name}: {self.skipped[queue.name]}")

    def _serve(self, queue: Queue) -> None:
        for need in queue.needs:
            try:
                if self._servers[need] is None:
                    start = servers.postgresql if need == "postgresql" else servers.redis
                    self._servers[need] = self._stack.enter_context(start())
            except MeasurementInvalid as error:
                self.skipped[queue.name] = error.message
