"""Who works on the tasks of a database, and whether the work comes along.

Each worker says every few seconds that it is there; by the database's clock, as leases are. What it holds and what it
has ended is counted from the tasks themselves, so a worker that has died cannot be wrong about it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import msgspec

from siafu.store.database import Database, Transaction

HEARD = 10.0  # seconds without a word after which a worker counts as stale
KEPT = 3600.0  # seconds after which a stale one is forgotten
OVERDUE = 5.0  # seconds for which a lease that is over may stay where it is, as each worker looks once a second
RATE_SECONDS = 60.0

Presence = Literal["alive", "draining", "stale"]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself. slots: tasks it holds at most, now; they may move within `least` and `most`.
    draining: it takes no more. skew: seconds by which its host's clock is ahead of the database's.
    """

    name: str
    host: str
    pid: int
    version: str
    slots: int
    least: int
    most: int
    draining: bool = False
    skew: float = 0.0


class Present(Standing, frozen=True, kw_only=True):
    """A worker as others see it. busy: tasks that are leased to it. per_minute: tasks it has ended in the last minute.
    Times are seconds since 1970 by the database's clock. seen_ago: seconds since it was heard of last.
    """

    state: Presence
    busy: int
    per_minute: int
    began_at: float
    seen_at: float
    seen_ago: float


class Heard(msgspec.Struct, frozen=True):
    """The database's answer to a worker. now: its clock. ready: tasks that nobody has taken yet."""

    now: float
    ready: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How the work comes along. now: the database's clock. ready, leased, waiting, dead: how many tasks there are so.
    oldest_ready: seconds for which one has been ready, None = none is. overdue: leases that are over and that no worker
    has taken back.
    """

    now: float
    ready: int
    leased: int
    waiting: int
    dead: int
    oldest_ready: float | None
    overdue: int


_SAY = (
    "INSERT INTO worker (name, host, pid, version, slots, least, most, draining, skew, began_at, seen_at) VALUES "
    "(:name, :host, :pid, :version, :slots, :least, :most, :draining, :skew, {now}, {now}) ON CONFLICT (name) "
    "DO UPDATE SET slots = excluded.slots, draining = excluded.draining, skew = excluded.skew, "
    "seen_at = excluded.seen_at"
)
_BUSY = "SELECT worker, COUNT(*) AS n FROM task WHERE state = 'leased' GROUP BY worker"
_ENDED = "SELECT worker, COUNT(*) AS n FROM task WHERE ended_at IS NOT NULL AND ended_at > :since GROUP BY worker"


class Workers:
    """The workers in a database of tasks, which stays its owner's to close. Raises (every method): StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def say(self, standing: Standing, kinds: Collection[str]) -> Heard:
        """A worker is there. kinds: of tasks that it does; of them it is told how many are ready, at most as many as
        it may ever hold.
        """

        def work(tx: Transaction) -> Heard:
            tx.change(_SAY, **msgspec.structs.asdict(standing))
            now = _now(tx)
            tx.change("DELETE FROM worker WHERE seen_at < :until", until=now - KEPT)
            ready = sum(_ready(tx, kind, standing.most) for kind in kinds)
            return Heard(now, min(ready, standing.most))

        return await self._database.run(work)

    async def leave(self, name: str) -> None:
        """A worker has ended in good order."""
        await self._database.run(lambda tx: tx.change("DELETE FROM worker WHERE name = :name", name=name))

    async def all(self) -> list[Present]:
        """Everybody who is there or was within the hour, who began first the first."""

        def work(tx: Transaction) -> list[Present]:
            now = _now(tx)
            busy = {row["worker"]: row["n"] for row in tx.rows(_BUSY)}
            ended = {row["worker"]: row["n"] for row in tx.rows(_ENDED, since=now - RATE_SECONDS)}
            rows = tx.rows("SELECT * FROM worker ORDER BY began_at, name")
            return [_present(row, now, busy.get(row["name"], 0), ended.get(row["name"], 0)) for row in rows]

        return await self._database.run(work)

    async def health(self) -> Health:
        """How the work comes along, whoever does it."""

        def work(tx: Transaction) -> Health:
            now, sql = _now(tx), "SELECT state, COUNT(*) AS n FROM task WHERE ended_at IS NULL GROUP BY state"
            counts = {row["state"]: row["n"] for row in tx.rows(sql)}
            (dead,) = tx.rows("SELECT COUNT(*) AS n FROM task WHERE state = 'dead_letter'")
            (oldest,) = tx.rows("SELECT MIN(ready_at) AS at FROM task WHERE state = 'ready' AND ended_at IS NULL")
            overdue = "SELECT COUNT(*) AS n FROM task WHERE state = 'leased' AND lease_until < :at"
            (late,) = tx.rows(overdue, at=now - OVERDUE)
            return Health(
                now=now,
                ready=counts.get("ready", 0),
                leased=counts.get("leased", 0),
                waiting=counts.get("waiting", 0),
                dead=dead["n"],
                oldest_ready=None if oldest["at"] is None else max(0.0, now - oldest["at"]),
                overdue=late["n"],
            )

        return await self._database.run(work)


def presence(seen_ago: float, draining: bool) -> Presence:
    """What a worker counts as that was heard of so many seconds ago."""
    if seen_ago > HEARD:
        return "stale"
    return "draining" if draining else "alive"


def _now(tx: Transaction) -> float:
    return float(tx.rows("SELECT {now} AS now")[0]["now"])


def _ready(tx: Transaction, kind: str, most: int) -> int:
    sql = "SELECT 1 AS one FROM task WHERE state = 'ready' AND kind = :kind AND lapses < 2 LIMIT :most"
    (row,) = tx.rows(f"SELECT COUNT(*) AS n FROM ({sql}) AS found", kind=kind, most=most)  # noqa: S608 - ours
    return int(row["n"])


def _present(row: Any, now: float, busy: int, ended: int) -> Present:
    ago, draining = max(0.0, now - row["seen_at"]), bool(row["draining"])
    more = {"draining": draining, "state": presence(ago, draining), "busy": busy, "per_minute": ended, "seen_ago": ago}
    return Present(**{**row, **more})
