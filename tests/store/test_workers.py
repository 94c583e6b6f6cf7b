"""Who works, on every database: told by the workers, counted from the tasks."""

from __future__ import annotations

from typing import Any

import pytest

from siafu.store.task_records import Succeeded
from siafu.store.workers import HEARD, KEPT, OVERDUE, Standing, Workers, presence

from .task_house import KIND, LEASE, House, new


def standing(name: str = "w", **more: Any) -> Standing:
    usual = {"host": "서버", "pid": 7, "version": "1", "slots": 8, "least": 8, "most": 64}
    return Standing(**{"name": name, **usual, **more})


def unheard(house: House, name: str, seconds: float) -> None:
    sql = "UPDATE worker SET seen_at = seen_at - :seconds WHERE name = :name"
    house.database.transact(lambda tx: tx.change(sql, seconds=seconds, name=name))


async def test_what_a_worker_holds_and_ends_is_counted_from_the_tasks(house: House) -> None:
    workers = Workers(house.database)
    assert (await workers.say(standing(), [KIND])).ready == 0
    await house.added(*(new() for _ in range(5)))
    assert (await workers.say(standing(slots=16, skew=0.25), [KIND, "other"])).ready == 5
    leases = await house.claim(3, worker="w")
    assert await house.store.end(leases[0].id, leases[0].epoch, Succeeded("1")) == "succeeded"
    (found,) = await workers.all()
    assert (found.host, found.pid, found.slots, found.most, found.skew) == ("서버", 7, 16, 64, 0.25)
    assert (found.state, found.busy, found.per_minute) == ("alive", 2, 1)
    assert found.began_at <= found.seen_at and found.seen_ago < 5
    house.pass_time(61)
    assert (await workers.all())[0].per_minute == 0


async def test_a_backlog_is_counted_no_further_than_a_worker_can_use(house: House) -> None:
    await house.added(*(new() for _ in range(20)))
    assert (await Workers(house.database).say(standing(most=9, least=1), [KIND])).ready == 9


async def test_who_ends_is_gone_who_dies_is_stale_and_forgotten_in_an_hour(house: House) -> None:
    workers = Workers(house.database)
    for name in ("good", "killed", "long dead"):
        await workers.say(standing(name), [KIND])
    unheard(house, "killed", HEARD + 1)
    unheard(house, "long dead", KEPT + 1)
    await workers.leave("good")
    assert {each.name: each.state for each in await workers.all()} == {"killed": "stale", "long dead": "stale"}
    await workers.say(standing("next", draining=True), [KIND])
    assert {each.name: each.state for each in await workers.all()} == {"killed": "stale", "next": "draining"}
    await workers.say(standing("killed"), [KIND])  # it had only stood still
    assert {each.name: each.state for each in await workers.all()} == {"killed": "alive", "next": "draining"}


@pytest.mark.parametrize(
    ("ago", "draining", "found"),
    [(0, False, "alive"), (HEARD, False, "alive"), (HEARD + 0.1, False, "stale"), (HEARD + 0.1, True, "stale"),
     (1, True, "draining")],
)  # fmt: skip
def test_presence(ago: float, draining: bool, found: str) -> None:
    assert presence(ago, draining) == found


async def test_health_tells_what_waits_and_what_is_stuck(house: House) -> None:
    workers = Workers(house.database)
    assert (await workers.health()).oldest_ready is None
    await house.added(*(new() for _ in range(4)))
    await house.claim(1)
    house.pass_time(LEASE + OVERDUE + 1)
    found = await workers.health()
    assert (found.ready, found.leased, found.waiting, found.dead, found.overdue) == (3, 1, 0, 0, 1)
    assert found.oldest_ready is not None and LEASE < found.oldest_ready < LEASE + 60
    await house.sweep()
    assert (await workers.health()).overdue == 0
