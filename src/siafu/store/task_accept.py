"""How tasks are accepted: whole submissions in one transaction, by as few statements as there are tenants."""

# ruff: noqa: S608 - the names put into statements are our own

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import Any

import msgspec

from siafu.errors import StoreError
from siafu.store.database import Transaction
from siafu.store.task_records import TERMINAL, Accepted, NewTask, NotAccepted, body_print
from siafu.store.task_sql import MOST_ROWS, as_json, parts, ring
from siafu.store.task_turns import give_turns

AT_ONCE = 100  # rows of one submission's part


def new_row(task: NewTask, id: str) -> dict[str, Any]:
    """A row for `accept`."""
    values = msgspec.structs.asdict(task)
    return {**values, "id": id, "turn": 0, "print": body_print(task), "needs": sorted(set(task.needs))}


def payload_size(row: dict[str, Any]) -> int:
    return len(row["payload"])


def accept(tx: Transaction, submitted: list[list[dict[str, Any]]]) -> list[list[Accepted | NotAccepted]]:
    """What each submission is answered. Rows of one (tenant, once) are one task."""
    found: dict[str, Accepted | NotAccepted] = {}
    for part in parts(chain.from_iterable(submitted), MOST_ROWS, payload_size):
        found |= _accept_part(tx, part)
    return [[found[row["id"]] for row in rows] for rows in submitted]


def all_there(tx: Transaction, rows: list[dict[str, Any]]) -> list[Accepted | NotAccepted] | None:
    """What rows are answered whose keys all stand for something; None = some do not."""
    found: dict[str, Accepted | NotAccepted] = {}
    for part in parts(rows, MOST_ROWS, payload_size):
        found |= _there(tx, part)
    return [found[row["id"]] for row in rows] if len(found) == len(rows) else None


def _accept_part(tx: Transaction, rows: list[dict[str, Any]]) -> dict[str, Accepted | NotAccepted]:
    """By the id that each row would have."""
    found = _there(tx, rows)
    new: dict[tuple[str, str], dict[str, Any]] = {}
    twins: list[dict[str, Any]] = []
    for row in rows:
        if row["id"] in found:
            continue
        if missing := _missing(tx, row):
            found[row["id"]] = missing
        elif new.setdefault((row["tenant"], row["once"] or row["id"]), row) is not row:
            twins.append(row)
    give_turns(tx, [row for row in new.values() if row["state"] == "ready"])
    added = _insert(tx, list(new.values()))
    for row in new.values():
        if row["id"] in added:
            found[row["id"]] = Accepted(id=row["id"], state=row["state"], fresh=True)
    found |= _there(tx, twins + [row for row in new.values() if row["id"] not in added])
    if len(found) < len(rows):
        raise StoreError("a task was removed in the moment in which it was submitted again: submit it once more")
    return found


def _there(tx: Transaction, rows: list[dict[str, Any]]) -> dict[str, Accepted | NotAccepted]:
    """What the keys of rows stand for, where they stand for something."""
    keyed: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["once"] is not None:
            keyed[row["tenant"]].append(row)
    found: dict[str, Accepted | NotAccepted] = {}
    sql = "SELECT once, id, state, print FROM task WHERE tenant = :tenant AND once IN :once"
    for tenant, mine in keyed.items():
        known = {each["once"]: each for each in tx.rows(sql, tenant=tenant, once=[row["once"] for row in mine])}
        found |= {row["id"]: _known(known[row["once"]], row) for row in mine if row["once"] in known}
    return found


def _known(first: Mapping[str, Any], row: Mapping[str, Any]) -> Accepted | NotAccepted:
    """The answer for `row`, whose key stands for `first`."""
    if first["print"] != row["print"]:
        return NotAccepted(code="key_reused", id=first["id"])
    return Accepted(id=first["id"], state=first["state"], fresh=False)


def _missing(tx: Transaction, row: dict[str, Any]) -> NotAccepted | None:
    """Why its needs cannot be met; None = they can, and how many are left stands in the row then."""
    row["deps_left"], row["open_needs"] = 0, []
    for need in row["needs"]:
        sql = "SELECT state FROM task WHERE id = :id AND tenant = :tenant {for_update}"  # it does not end meanwhile
        found = tx.row(sql, id=need, tenant=row["tenant"])
        if found is None:
            return NotAccepted(code="need_unknown", id=need)
        if found["state"] not in TERMINAL:
            row["open_needs"].append(need)
        elif found["state"] != "succeeded":
            return NotAccepted(code="need_failed", id=need)
    row["deps_left"] = len(row["open_needs"])
    row["state"] = "blocked" if row["deps_left"] else "ready"
    return None


_TEXTS = ("id", "kind", "run", "tenant", "customer", "once", "payload", "print", "state", "trace")
_INTEGERS = ("priority", "turn", "deps_left")
_INSERT = (
    "WITH clock AS MATERIALIZED (SELECT {now} AS now) "  # one moment for all of them
    f"INSERT INTO task ({', '.join(_TEXTS + _INTEGERS)}, created_at, ready_at, deadline_at) "
    f"SELECT {', '.join(f'{{given.{name}}}' for name in _TEXTS)}, "
    f"{', '.join(f'CAST({{given.{name}}} AS {{integer}})' for name in _INTEGERS)}, "
    # lists keep the order in which they were submitted
    "clock.now + CAST({given.n} AS {real}) * 1e-6, clock.now + CAST({given.n} AS {real}) * 1e-6, "
    "clock.now + CAST({given.deadline} AS {real}) FROM clock, {given} WHERE TRUE "
    "ON CONFLICT (tenant, once) DO NOTHING RETURNING id"
)


def _insert(tx: Transaction, rows: list[dict[str, Any]]) -> set[str]:
    """The ids that were added; those left out were added by others in this moment, under the same key."""
    if not rows:
        return set()
    given = [{"n": n, **row} for n, row in enumerate(rows)]
    added = {row["id"] for row in tx.rows(_INSERT, given=as_json(given))}
    ring(tx)
    for row in rows:
        for need in row["open_needs"] if row["id"] in added else ():
            tx.change("INSERT INTO task_need (needs, task) VALUES (:needs, :task)", needs=need, task=row["id"])
    return added
