"""What is asked all the time reads the rows it is about, however many others there are."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from siafu.errors import InputError
from siafu.store import tasks as module
from siafu.store.database import Transaction
from siafu.store.figures import task_families
from siafu.store.records import JournalEntry
from siafu.store.task_events import TaskViews, Whose
from siafu.store.task_records import Task
from siafu.store.webhooks import WebhookQueue
from siafu.store.workers import Workers

from .task_house import LEASE, House, new
from .test_workers import standing

OPEN, DOUBLED = 250, 6  # and 16,000 that have ended


@pytest.fixture
async def house(tasks_sql_url: str) -> AsyncIterator[House]:
    """Thousands of tasks, most of which have ended an hour ago."""
    opened = House(tasks_sql_url)
    opened.clear()
    await opened.added(*(new(priority=1 + n % 3, tenant=f"{n % 7}") for n in range(2 * OPEN)))
    ended = (
        "UPDATE task SET state = 'succeeded', result = '1', ended_at = created_at - 3600 "
        "WHERE id IN (SELECT id FROM task ORDER BY id LIMIT :most)"
    )
    names = ", ".join(name for name in Task.__struct_fields__ if name not in ("id", "once"))
    twice = f"INSERT INTO task (id, {names}) SELECT id || :end, {names} FROM task WHERE ended_at IS NOT NULL"

    def fill(tx: Transaction) -> None:
        tx.change(ended, most=OPEN)
        for number in range(DOUBLED):
            tx.change(twice, end=f"x{number}")
        tx.change("ANALYZE")

    opened.database.transact(fill)
    yield opened
    await opened.aclose()


class Plans:
    """Asks the database for the plan of every statement about tasks that runs, before it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full: list[str] = []
        self.seen: list[str] = []
        inner = Transaction._execute

        def execute(tx: Transaction, sql: str, values: Any) -> Any:
            if re.search(r"\b(FROM|UPDATE|JOIN) task\b", sql) and not sql.startswith("INSERT"):
                self.seen.append(sql)
                explain = "EXPLAIN QUERY PLAN " if tx.dialect == "sqlite" else "EXPLAIN "
                plan = "\n".join(" ".join(map(str, row.values())) for row in inner(tx, explain + sql, values)[0])
                sorts = "chosen" in sql and re.search(r"TEMP B-TREE|Sort Key", plan)  # all that is ready
                if sorts or re.search(r"(SCAN|SEARCH) task(_event)?(?! USING)\b|Seq Scan on task(_event)?\b", plan):
                    self.full.append(f"{sql}\n{plan}")
            return inner(tx, sql, values)

        monkeypatch.setattr(Transaction, "_execute", execute)


async def test_nothing_that_workers_ask_for_reads_the_whole_table(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = Plans(monkeypatch)
    leases = await house.claim(20)
    held = {lease.id: lease.epoch for lease in leases}
    entry = JournalEntry(path="", seq=0, kind="model", fingerprint="f", outcome=b"1")
    await house.store.append(leases[0].id, 1, entry)
    await house.store.tick("w", held, LEASE, renew=True)
    await house.done(leases[0])
    await house.store.accept([new("once", needs=(leases[1].id,))])
    await house.store.any_left("k")
    await house.desk.cancel(await house.added(new("other", tenant="3")))
    with pytest.raises(InputError, match="there is no task"):
        await house.desk.one("run/nobody")
    await Workers(house.database).say(standing(), ["k"])
    await Workers(house.database).all()
    await Workers(house.database).health()
    await task_families(house.database)()
    await clients_ask(house, leases[0].id)
    assert not plans.full, "\n".join(plans.full)
    assert len(plans.seen) >= 25


async def clients_ask(house: House, id: str) -> None:
    """What `siafu serve` is asked about tasks of one of many tenants, and what it looks for to tell webhooks."""
    views, queue, mine = TaskViews(house.database), WebhookQueue(house.database), Whose(tenant="3", customer="")
    last = await views.settle()
    house.database.transact(lambda tx: tx.change("ANALYZE"))
    page, after = await views.page(mine, {}, limit=3, after=None)
    await views.page(mine, {"state": "failed"}, limit=3, after=after)
    await views.these([task.id for task in page], mine)
    await views.events(after=last - 10, upto=last, limit=100)
    await views.events_of(mine, {}, after=last - 10, upto=last, limit=100)
    await views.events_of(Whose(tenant=""), {"id": id}, after=0, upto=last, limit=100)
    await queue.begin("hook")
    await queue.collect("hook", None)
    await queue.claim("hook", 5, 60.0)


async def test_the_check_can_fail(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = Plans(monkeypatch)
    monkeypatch.setattr(
        module, "_NEXT", "WHERE state = 'ready' AND kind = :kind AND lapses < 2 ORDER BY priority, payload"
    )
    await house.claim(3)
    assert len(plans.full) == 1
