"""A journal file that somebody reads, also while a run is at work in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from siafu.store.faults import store_error
from siafu.store.schema import open_reader


class JournalFile:
    """The journal file at `path`; use it with `with`. Nothing is written. Its calls block, so keep them off an event
    loop.

    Raises: StoreError when there is no such file, or it is none of ours.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).resolve()
        self._db = open_reader(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._db.close()

    def runs(self, work_print: str | None = None) -> list[str]:
        """The names of all runs, oldest first; with `work_print`, those whose last session did that work."""
        last = "SELECT work_print FROM session WHERE run = run.id ORDER BY session DESC LIMIT 1"
        known = f"SELECT name FROM run WHERE ? IS NULL OR ({last}) = ? ORDER BY id"  # noqa: S608 - both are these
        return [name for (name,) in self._rows(known, work_print, work_print)]

    def _rows(self, query: str, *values: str | float | None) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._db.execute(query, values)
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error
