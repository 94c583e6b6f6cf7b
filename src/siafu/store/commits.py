"""What writers have committed, as metrics. Apart from `figures`, as it is there without the SQL door."""

from __future__ import annotations

from typing import Protocol

from siafu.errors import StoreError
from siafu.observe.figures import Family
from siafu.store.sqlite import SqliteStore

_COMMITS = "Transactions of this process; each is one fsync"


class Commits(Protocol):
    """A writer whose callers share commits."""

    commits: int
    operations: int


def commit_families(store: str, writer: Commits) -> list[Family]:
    """store: its label."""
    return [
        Family("siafu_store_commits", "counter", _COMMITS, ("store",), [((store,), writer.commits)]),
        Family("siafu_store_writes", "counter", "Writes that they held", ("store",), [((store,), writer.operations)]),
    ]


def ledger_families(store: SqliteStore) -> list[Family]:
    """None before the store is open, and once it is closed."""
    try:
        return commit_families("ledger", store.writer)
    except StoreError:
        return []
