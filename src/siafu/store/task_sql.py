"""What the statements about work items share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from siafu.store.database import Transaction
from siafu.store.task_records import MAX_PAYLOAD

CHANNEL = "siafu_tasks"
MOST_ROWS = 1000  # of one statement
T = TypeVar("T")


def ring(tx: Transaction) -> None:
    """Tell listeners in other processes, once this is committed; on PostgreSQL only."""
    if tx.dialect == "postgresql":
        tx.rows(f"SELECT pg_notify('{CHANNEL}', '')")


def parts(rows: Iterable[T], most: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """As many of `rows` as one statement may hold: `most`, and not much more than MAX_PAYLOAD in all."""
    part: list[T] = []
    held = 0
    for row in rows:
        part.append(row)
        held += size(row)
        if len(part) == most or held > MAX_PAYLOAD:
            yield part
            part, held = [], 0
    if part:
        yield part


def as_json(rows: list[dict[str, Any]]) -> str:
    """For `{given}`."""
    return msgspec.json.encode(rows).decode()


def now(tx: Transaction) -> float:
    """The database's clock."""
    return float(tx.rows("SELECT {now} AS now")[0]["now"])
