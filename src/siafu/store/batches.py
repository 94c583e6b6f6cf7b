"""Stored files and batches in SQL: what there is of each, whose it is, and how far. The bytes are in `apps/batches`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from siafu.store.batch_records import OPEN, Batch, BatchFault, Purpose, Status, StoredFile
from siafu.store.database import Database, Transaction

SCHEMA = "batches"
MIGRATIONS: Sequence[Sequence[str]] = (
    (
        """CREATE TABLE file (
            n {serial},
            id TEXT NOT NULL UNIQUE,
            owner TEXT NOT NULL,
            name TEXT NOT NULL,
            purpose TEXT NOT NULL CHECK (purpose IN ('batch', 'batch_output')),
            bytes {integer} NOT NULL CHECK (bytes >= 0),
            created_at {integer} NOT NULL,
            expires_at {integer}
        ) {strict}""",
        "CREATE INDEX file_of_owner ON file (owner, n)",
        "CREATE INDEX file_expires ON file (expires_at) WHERE expires_at IS NOT NULL",
        """CREATE TABLE batch (
            n {serial},
            id TEXT NOT NULL UNIQUE,
            owner TEXT NOT NULL,
            once TEXT,
            input_file_id TEXT NOT NULL,
            completion_window TEXT NOT NULL,
            status TEXT NOT NULL CHECK (status IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed',
                'expired', 'cancelling', 'cancelled')),
            metadata TEXT NOT NULL,
            output_seconds {integer},
            output_file_id TEXT,
            error_file_id TEXT,
            faults TEXT NOT NULL,
            total {integer} NOT NULL,
            completed {integer} NOT NULL,
            failed {integer} NOT NULL,
            created_at {integer} NOT NULL,
            expires_at {integer} NOT NULL,
            in_progress_at {integer},
            finalizing_at {integer},
            completed_at {integer},
            failed_at {integer},
            expired_at {integer},
            cancelling_at {integer},
            cancelled_at {integer},
            UNIQUE (owner, once)
        ) {strict}""",
        "CREATE INDEX batch_of_owner ON batch (owner, n)",
        """CREATE INDEX batch_open ON batch (n)
            WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling')""",
    ),
)
_FILE, _BATCH = StoredFile.__struct_fields__, Batch.__struct_fields__
_JSON = ("metadata", "faults")
_UPDATED = ", ".join(f"{name} = :{name}" for name in _BATCH if name not in ("id", "owner"))


class BatchStore:
    """Over a database opened with MIGRATIONS, which stays the caller's to close. Raises (all): StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_file(self, file: StoredFile) -> None:
        await self._database.run(lambda tx: _insert(tx, "file", msgspec.structs.asdict(file)))

    async def file(self, id: str, owner: str) -> StoredFile | None:
        """None also when it is somebody else's."""
        sql = "SELECT * FROM file WHERE id = :id AND owner = :owner"
        row = await self._database.run(lambda tx: tx.row(sql, id=id, owner=owner))
        return None if row is None else _file(row)

    async def files(
        self, owner: str, *, purpose: Purpose | None, after: str, limit: int, newest_first: bool
    ) -> list[StoredFile]:
        """Those that follow the file `after`; "" = from the start."""
        order, sign = ("DESC", "<") if newest_first else ("ASC", ">")
        sql = f"""SELECT * FROM file WHERE owner = :owner AND (:purpose IS NULL OR purpose = :purpose)
            AND (:after = '' OR n {sign} (SELECT n FROM file WHERE id = :after)) ORDER BY n {order} LIMIT :limit"""  # noqa: S608
        values = {"owner": owner, "purpose": purpose, "after": after, "limit": limit}
        return [_file(row) for row in await self._database.run(lambda tx: tx.rows(sql, **values))]

    async def held(self, owner: str) -> tuple[int, int]:
        """How many files an owner has, and the bytes that they take up."""
        sql = "SELECT COUNT(*) AS files, COALESCE(SUM(bytes), 0) AS bytes FROM file WHERE owner = :owner"
        (row,) = await self._database.run(lambda tx: tx.rows(sql, owner=owner))
        return row["files"], int(row["bytes"])

    async def remove_file(self, id: str, owner: str) -> bool:
        """Whether there was one."""
        sql = "DELETE FROM file WHERE id = :id AND owner = :owner"
        return bool(await self._database.run(lambda tx: tx.change(sql, id=id, owner=owner)))

    async def forget(self, now: float, keep: float | None) -> list[str]:
        """Drop files that have expired, and batches that ended more than `keep` seconds ago (None = none). Returns the
        ids of those files.
        """

        def work(tx: Transaction) -> list[str]:
            if keep is not None:
                ended = "COALESCE(completed_at, failed_at, expired_at, cancelled_at)"
                tx.change(f"DELETE FROM batch WHERE {ended} < :before", before=int(now - keep))  # noqa: S608
            rows = tx.rows("DELETE FROM file WHERE expires_at <= :now RETURNING id", now=int(now))
            return [row["id"] for row in rows]

        return await self._database.run(work)

    async def known(self) -> tuple[set[str], set[str]]:
        """The ids of all files, and of the batches that have not ended."""

        def work(tx: Transaction) -> tuple[set[str], set[str]]:
            files = {row["id"] for row in tx.rows("SELECT id FROM file")}
            return files, {row["id"] for row in tx.rows(_ALL_OPEN)}

        return await self._database.run(work)

    async def add_batch(self, batch: Batch, once: str | None) -> Batch:
        """Keep a new batch and return it; under an Idempotency-Key (`once`) that its owner used before, the batch of
        then.
        """

        def work(tx: Transaction) -> Batch:
            sql = "SELECT * FROM batch WHERE owner = :owner AND once = :once"
            row = None if once is None else tx.row(sql, owner=batch.owner, once=once)
            if row is not None:
                return _batch(row)
            _insert(tx, "batch", {**_values(batch), "once": once})
            return batch

        return await self._database.run(work)

    async def batch(self, id: str, owner: str) -> Batch | None:
        """None also when it is somebody else's."""
        sql = "SELECT * FROM batch WHERE id = :id AND owner = :owner"
        row = await self._database.run(lambda tx: tx.row(sql, id=id, owner=owner))
        return None if row is None else _batch(row)

    async def batch_asked(self, owner: str, once: str) -> Batch | None:
        """That which an owner asked for under an Idempotency-Key; None = there is none."""
        sql = "SELECT * FROM batch WHERE owner = :owner AND once = :once"
        row = await self._database.run(lambda tx: tx.row(sql, owner=owner, once=once))
        return None if row is None else _batch(row)

    async def batches(self, owner: str, *, after: str, limit: int) -> list[Batch]:
        """Newest first, those that follow the batch `after`; "" = from the newest."""
        sql = """SELECT * FROM batch WHERE owner = :owner
            AND (:after = '' OR n < (SELECT n FROM batch WHERE id = :after)) ORDER BY n DESC LIMIT :limit"""
        rows = await self._database.run(lambda tx: tx.rows(sql, owner=owner, after=after, limit=limit))
        return [_batch(row) for row in rows]

    async def open_batches(self) -> list[Batch]:
        """Those that have not ended, oldest first."""
        return [_batch(row) for row in await self._database.run(lambda tx: tx.rows(_ALL_OPEN))]

    async def keep(self, batch: Batch, *, before: Iterable[Status], files: Sequence[StoredFile] = ()) -> bool:
        """Replace the row of a batch, if it is in one of the states `before`, and add `files` with it; else nothing is
        changed. Whether it was.
        """

        def work(tx: Transaction) -> bool:
            sql = f"UPDATE batch SET {_UPDATED} WHERE id = :id AND owner = :owner AND status IN {_in(before)}"  # noqa: S608
            if not tx.change(sql, **_values(batch)):
                return False
            for file in files:
                _insert(tx, "file", msgspec.structs.asdict(file))
            return True

        return await self._database.run(work)


def _in(states: Iterable[Status]) -> str:
    return "(" + ", ".join(f"'{state}'" for state in sorted(states)) + ")"


_ALL_OPEN = f"SELECT * FROM batch WHERE status IN {_in(OPEN)} ORDER BY n"  # noqa: S608


def _insert(tx: Transaction, table: str, values: Mapping[str, Any]) -> None:
    names = ", ".join(values)
    tx.change(f"INSERT INTO {table} ({names}) VALUES ({', '.join(f':{name}' for name in values)})", **values)  # noqa: S608


def _values(batch: Batch) -> dict[str, Any]:
    values = msgspec.structs.asdict(batch)
    return {**values, **{name: msgspec.json.encode(values[name]).decode() for name in _JSON}}


def _file(row: Mapping[str, Any]) -> StoredFile:
    return StoredFile(**{name: row[name] for name in _FILE})


def _batch(row: Mapping[str, Any]) -> Batch:
    values = {name: row[name] for name in _BATCH}
    values["metadata"] = msgspec.json.decode(values["metadata"])
    values["faults"] = msgspec.json.decode(values["faults"], type=tuple[BatchFault, ...])
    return Batch(**values)
