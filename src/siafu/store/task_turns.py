"""Turns of work items: which place in the line of its kind and priority a task gets, when it can begin. The rule is
`task_records.first_turn`.
"""

# ruff: noqa: S608 - the names put into statements are our own

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from siafu.store.database import Transaction
from siafu.store.task_records import Task, first_turn

_TURNS = (
    "SELECT (SELECT last FROM task_turn WHERE kind = :kind AND priority = :priority AND tenant = :tenant) AS last,"
    " (SELECT MIN(turn) FROM task WHERE state = 'ready' AND lapses < 2 AND kind = :kind AND priority = :priority"
    " AND lease_epoch = 0) AS waiting,"
    " (SELECT MAX(turn) FROM task WHERE state = 'leased' AND kind = :kind AND priority = :priority) AS served,"
    " (SELECT MAX(last) FROM task_turn WHERE kind = :kind AND priority = :priority) AS ever"
)


def give_turns(tx: Transaction, rows: Sequence[dict[str, Any]]) -> None:
    """Put into each row its `turn`; of those of one kind, priority and tenant, the first goes first."""
    lines: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        lines[row["kind"], row["priority"], row["tenant"]].append(row)
    first = {}  # for all of them before any is given: who comes first in here is not ahead of the others
    for kind, priority, tenant in lines:
        (known,) = tx.rows(_TURNS, kind=kind, priority=priority, tenant=tenant)
        first[kind, priority, tenant] = first_turn(**known)
    for line, turn in sorted(first.items()):  # everybody locks in this order
        kind, priority, tenant = line
        tx.change(
            "INSERT INTO task_turn (kind, priority, tenant, last) VALUES (:kind, :priority, :tenant, :last) "
            "ON CONFLICT (kind, priority, tenant) DO UPDATE SET last = excluded.last",
            kind=kind, priority=priority, tenant=tenant, last=turn + len(lines[line]) - 1,
        )  # fmt: skip
        for number, row in enumerate(lines[line]):
            row["turn"] = turn + number


def line_up(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    """Give tasks that are about to become ready, of any tenants, their turns; the first one first."""
    mine = [dict(row) for row in rows]
    give_turns(tx, mine)
    for row in mine:
        tx.change("UPDATE task SET turn = :turn WHERE id = :id", id=row["id"], turn=row["turn"])


_LINE = "kind = :kind AND priority = :priority AND tenant = :tenant"
_KEPT = (
    "SELECT (SELECT turn FROM task WHERE state = 'ready' AND lapses < 2 AND kind = :kind AND priority = :priority"
    " AND turn <= :last AND tenant = :tenant ORDER BY turn DESC LIMIT 1) AS ready,"
    f" (SELECT MAX(turn) FROM task WHERE state = 'leased' AND {_LINE}) AS leased"
)


def give_back(tx: Transaction, ended: Sequence[Task]) -> None:
    """Let tenants go on behind what they have left in line, or else where the line is, when tasks have `ended` before
    they began. These are given as they were before.
    """
    lines = {(each.kind, each.priority, each.tenant) for each in ended if each.state == "ready"}
    for kind, priority, tenant in sorted(lines):  # everybody locks in this order
        line: dict[str, Any] = {"kind": kind, "priority": priority, "tenant": tenant}
        row = tx.row(f"SELECT last FROM task_turn WHERE {_LINE} {{for_update}}", **line)
        if row is None:
            continue
        (left,) = tx.rows(_KEPT, last=row["last"], **line)
        kept = [turn for turn in (left["ready"], left["leased"]) if turn is not None]
        if not kept:
            tx.change(f"DELETE FROM task_turn WHERE {_LINE}", **line)
        elif max(kept) < row["last"]:
            tx.change(f"UPDATE task_turn SET last = :last WHERE {_LINE}", last=max(kept), **line)
