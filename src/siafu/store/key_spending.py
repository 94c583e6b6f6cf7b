"""What a client key has been charged, from the ledger. Its attempts are those whose task begins with `KEY/`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from siafu.store.schema import open_reader
from siafu.store.sqlite import SqliteStore

# An attempt that is not settled yet counts as much as it may cost. '0' is what follows '/'.
_CHARGED = """
SELECT COALESCE(SUM(charge) FILTER (WHERE opened_at < ?4), 0), COALESCE(SUM(charge) FILTER (WHERE opened_at >= ?4), 0)
FROM (SELECT opened_at, CASE WHEN outcome IS NULL THEN reserved_pico ELSE usd_pico END AS charge
    FROM attempt WHERE run = ?1 AND task >= ?2 AND task < ?3)
"""


def charged(db: sqlite3.Connection, *, run: int, key: str, since: float) -> tuple[int, int]:
    """Pico-dollars charged to a key before and from `since` (seconds since 1970)."""
    before, after = db.execute(_CHARGED, (run, f"{key}/", f"{key}0", since)).fetchone()
    return before, after


async def charged_now(store: SqliteStore, *, run: int, key: str, since: float) -> tuple[int, int]:
    """The same of the run that is open in `store`. Raises: StoreError."""
    await store.index_tasks()
    return await store.read(partial(charged, run=run, key=key, since=since))


def charged_in(path: Path, run: str, key: str, since: float) -> tuple[int, int]:
    """The same from the file at `path`, also while it is written; nothing when there is no such file or run.

    Blocks. Raises: StoreError.
    """
    if not path.exists():
        return 0, 0
    with closing(open_reader(path.resolve())) as db:
        found = db.execute("SELECT id FROM run WHERE name = ?", (run,)).fetchone()
        return charged(db, run=found[0], key=key, since=since) if found else (0, 0)
