"""A worker from the settings, with all that it works with."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from siafu import __version__
from siafu.apps.support.asking import SupportTasks
from siafu.apps.support.job import SupportJob
from siafu.apps.support.requests import KIND
from siafu.apps.support.routes import Tier
from siafu.apps.support.swarm import Support
from siafu.config.assembly import Plan, opened
from siafu.config.effects import process_name
from siafu.config.servers import support_desk
from siafu.config.settings import Settings
from siafu.config.tasks import opened_store, task_bell, task_database
from siafu.errors import StoreBusy, StoreError
from siafu.gateway.client import Gateway
from siafu.gateway.endpoint import Endpoint
from siafu.observe.events import Observer
from siafu.observe.scrape import Scrape
from siafu.pace.clock import SystemClock
from siafu.pace.slots import Slots
from siafu.queue.attendance import Attendance
from siafu.queue.worker import Worker, WorkerOptions
from siafu.store.commits import commit_families
from siafu.store.database import Database
from siafu.store.figures import effect_families, task_families
from siafu.store.lock import Lock
from siafu.store.task_desk import TaskDesk, Which
from siafu.store.workers import Workers

RUN = "tasks"  # the account, and the name in ledgers and the audit, of what workers do
MOST_WORKERS = 1000  # of one home folder
PUT_AWAY_SECONDS = 600.0  # between two looks for tasks that are to be removed


@contextlib.asynccontextmanager
async def opened_worker(
    settings: Settings,
    options: WorkerOptions,
    *,
    shop: str | None,
    keep: float | None,
    notice: Callable[[str], None],
    observer: Observer,
    scrape: Scrape,
) -> AsyncIterator[Worker]:
    """A worker for support tasks, with its endpoint, tools and ledger. shop: the example shop's database, None = its
    default place. keep: seconds after which tasks that have ended are removed; None = never. notice: told what an
    operator should know. observer: told of every event; scrape: of the same, for its metrics.

    Raises: ConfigError, StoreError.
    """
    models: dict[Tier, str] = {"strong": settings.model("strong"), "cheap": settings.model("cheap")}
    job = SupportJob(Support(models=models))
    async with contextlib.AsyncExitStack() as stack:
        database = await stack.enter_async_context(task_database(settings))
        name = f"{process_name()}:{secrets.token_hex(4)}"
        bell = await stack.enter_async_context(task_bell(settings, database, reader=name, notice=notice))
        store = await stack.enter_async_context(contextlib.aclosing(opened_store(settings, database, bell)))
        desk = await stack.enter_async_context(support_desk(settings, database=shop))
        ledger, place = _ledger(settings.home)
        stack.callback(place.release)
        plan = Plan(
            run=RUN, journal=ledger, tools=desk.tools, denied=desk.denied, observer=observer, notice=notice,
            scrape=scrape,
        )  # fmt: skip
        house = await stack.enter_async_context(opened(settings, plan))
        if house.store is None:
            raise TypeError("a worker needs a ledger")
        state = await house.store.begin("")
        if state.in_flight:
            notice(f"{state.in_flight} calls were in flight when the last worker ended: lost_in_crash in its ledger")
        await job.ready(desk.tools, desk.identity_key)
        handlers = {KIND: SupportTasks(job, house.around, house.store.ledger, RUN)}
        if keep is not None:
            stack.callback(asyncio.create_task(_put_away(TaskDesk(database), keep, notice)).cancel)
        beside = _attendance(database, options, house.around.endpoint).run
        worker = Worker(name, store, handlers, bell, SystemClock(), options, beside)
        scrape.add(worker.families)
        scrape.add(partial(commit_families, "tasks", store.together))
        scrape.add_slow("tasks", task_families(database))
        scrape.add_slow("effects", effect_families(desk.effects))
        yield worker


def _attendance(database: Database, options: WorkerOptions, endpoint: Endpoint) -> Attendance:
    def waiting() -> int:
        return endpoint.waiting if isinstance(endpoint, Gateway) else 0

    start = options.slots
    slots = Slots(options.least or start, options.most or start, start)
    return Attendance(Workers(database), slots, waiting, SystemClock(), __version__)


def _ledger(home: Path) -> tuple[Path, Lock]:
    """A ledger that no other worker writes, and the place that keeps it so; what one that has ended wrote is gone on
    with. The place is taken before the ledger is opened, so workers that start at once do not meet at one.
    """
    home.mkdir(parents=True, exist_ok=True)
    for number in range(1, MOST_WORKERS + 1):
        place = home / f"worker-{number}"
        ledger = place.with_suffix(".db")
        with contextlib.suppress(StoreBusy), contextlib.ExitStack() as undo:
            taken = Lock(place)
            undo.callback(taken.release)
            Lock(ledger).release()  # a worker of a version that knew no places may hold it
            undo.pop_all()
            return ledger, taken
    raise StoreError(f"{MOST_WORKERS} workers run on {home}: set another SIAFU_HOME")


async def _put_away(desk: TaskDesk, seconds: float, notice: Callable[[str], None]) -> None:
    while True:
        try:
            await desk.purge(Which(), seconds)
        except StoreError as error:
            notice(f"tasks that have ended could not be removed: {error.message}")
        await asyncio.sleep(PUT_AWAY_SECONDS)
