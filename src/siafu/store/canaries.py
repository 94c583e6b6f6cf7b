"""Canaries: which share of users gets a new upstream or model first, and how both sides have done so far.

Durable and shared by all processes of a database. A canary moves from window to window; every move is a
compare-and-set on the window's number, so of all who would make one, one does. What the sides did is added up by
window; each process adds what it has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from siafu.errors import Conflict, InputError
from siafu.store.append_only import append_only
from siafu.store.canary_records import SUMS, Canary, Move, Moved, Numbers, Plan, Seen, Side
from siafu.store.database import Database, Transaction

SCHEMA = "canary"
MIGRATIONS: Sequence[Sequence[str]] = (
    (
        """CREATE TABLE canary (
            id {serial},
            old TEXT NOT NULL,
            new TEXT NOT NULL,
            salt TEXT NOT NULL,
            stages TEXT NOT NULL,
            window_seconds {real} NOT NULL CHECK (window_seconds > 0),
            min_samples {integer} NOT NULL CHECK (min_samples > 0),
            bounds TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('running', 'promoted', 'rolled_back', 'retired')),
            stage {integer} NOT NULL CHECK (stage >= 0),
            number {integer} NOT NULL CHECK (number > 0),
            tries {integer} NOT NULL CHECK (tries >= 0),
            reference {integer} NOT NULL CHECK (reference >= 0),
            began_at {real} NOT NULL,
            reason TEXT NOT NULL
        ) {strict}""",
        "CREATE UNIQUE INDEX canary_running ON canary (state) WHERE state = 'running'",
        """CREATE TABLE canary_move (
            canary {integer} NOT NULL REFERENCES canary,
            number {integer} NOT NULL,
            at {real} NOT NULL,
            state TEXT NOT NULL,
            percent {integer} NOT NULL,
            reason TEXT NOT NULL,
            PRIMARY KEY (canary, number)
        ) {strict}""",
        *append_only("canary_move"),
        # usd_square: the sum of the squares of what tasks cost, in USD: a figure of statistics, not of money
        """CREATE TABLE canary_sums (
            canary {integer} NOT NULL REFERENCES canary,
            number {integer} NOT NULL,
            side TEXT NOT NULL CHECK (side IN ('old', 'new')),
            calls {integer} NOT NULL,
            ok {integer} NOT NULL,
            limited {integer} NOT NULL,
            tasks {integer} NOT NULL,
            unpriced {integer} NOT NULL,
            usd_pico {integer} NOT NULL,
            usd_square {real} NOT NULL,
            PRIMARY KEY (canary, number, side)
        ) {strict}""",
        """CREATE TABLE canary_seconds (
            canary {integer} NOT NULL REFERENCES canary,
            number {integer} NOT NULL,
            side TEXT NOT NULL CHECK (side IN ('old', 'new')),
            slot {integer} NOT NULL,
            calls {integer} NOT NULL,
            PRIMARY KEY (canary, number, side, slot)
        ) {strict}""",
    ),
)


_ADD_SUMS = f"""INSERT INTO canary_sums (canary, number, side, {", ".join(SUMS)})
    VALUES (:canary, :number, :side, {", ".join(f":{name}" for name in SUMS)}) ON CONFLICT (canary, number, side)
    DO UPDATE SET {", ".join(f"{name} = canary_sums.{name} + excluded.{name}" for name in SUMS)}"""  # noqa: S608
_ADD_SECONDS = """INSERT INTO canary_seconds (canary, number, side, slot, calls)
    VALUES (:canary, :number, :side, :slot, :calls) ON CONFLICT (canary, number, side, slot)
    DO UPDATE SET calls = canary_seconds.calls + excluded.calls"""
_START = """INSERT INTO canary (old, new, salt, stages, window_seconds, min_samples, bounds,
    state, stage, number, tries, reference, began_at, reason)
    VALUES (:old, :new, :salt, :stages, :window_seconds, :min_samples, :bounds,
    'running', 0, 1, 0, 0, {now}, 'started') RETURNING *"""
_MOVE = """UPDATE canary SET state = :state, stage = :stage, tries = :tries, reason = :reason, number = number + 1,
    reference = CASE :state WHEN 'running' THEN :reference ELSE reference END, began_at = {now}
    WHERE id = :id AND number = :number RETURNING *"""
_SHOWN = "SELECT COALESCE(MAX(number), 0) AS number FROM canary_sums WHERE canary = :id AND side = 'new'"
_LOG = """INSERT INTO canary_move (canary, number, at, state, percent, reason)
    VALUES (:canary, :number, :at, :state, :percent, :reason)"""


class Canaries:
    """The canaries in a database opened with MIGRATIONS, which stays the caller's to close. Raises: StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def start(self, plan: Plan) -> Canary:
        """A new canary, at its first stage. Raises: InputError while another one is not at its end."""

        def start(tx: Transaction) -> Canary:
            last = tx.row("SELECT * FROM canary ORDER BY id DESC LIMIT 1")
            if last is not None and last["state"] in ("running", "promoted"):
                raise _not_over(last["state"])
            values = msgspec.to_builtins(plan)
            values |= {name: msgspec.json.encode(values[name]).decode() for name in ("stages", "bounds")}
            (row,) = tx.rows(_START, **values)
            return _logged(tx, row)

        try:
            return await self._database.run(start)
        except Conflict:  # somebody else was quicker
            raise _not_over("running") from None

    async def look(self, added: Mapping[tuple[int, int, Side], Numbers] | None = None) -> Seen:
        """Add what has been seen, by canary, window and side, and read how all stands, at once."""

        def look(tx: Transaction) -> Seen:
            for (canary, number, side), numbers in sorted((added or {}).items(), key=lambda item: item[0]):
                where = {"canary": canary, "number": number, "side": side}
                tx.change(_ADD_SUMS, **where, **{name: getattr(numbers, name) for name in SUMS})
                for slot, calls in sorted(numbers.slots.items()):
                    tx.change(_ADD_SECONDS, **where, slot=slot, calls=calls)
            (clock,) = tx.rows("SELECT {now} AS now")
            canaries = tuple(_canary(row) for row in tx.rows("SELECT * FROM canary ORDER BY id"))
            if not canaries:
                return Seen(now=clock["now"])
            last = canaries[-1]
            number = last.number if last.state == "running" else tx.rows(_SHOWN, id=last.id)[0]["number"]
            return Seen(
                now=clock["now"],
                canaries=canaries,
                old=_numbers(tx, last.id, last.reference or number, "old"),
                new=_numbers(tx, last.id, number, "new"),
            )

        return await self._database.run(look)

    async def move(self, canary: Canary, move: Move) -> Canary | None:
        """Move it, unless somebody has moved it since `canary` was read: then None."""

        def step(tx: Transaction) -> Canary | None:
            row = tx.row(_MOVE, id=canary.id, number=canary.number, **msgspec.to_builtins(move))
            return None if row is None else _logged(tx, row)

        return await self._database.run(step)

    async def moves(self, id: int) -> list[Moved]:
        """Every move of a canary, in order; the first is its start."""
        sql = "SELECT number, at, state, percent, reason FROM canary_move WHERE canary = :id ORDER BY number"
        return [Moved(**row) for row in await self._database.run(lambda tx: tx.rows(sql, id=id))]


def _not_over(state: str) -> InputError:
    if state == "running":
        return InputError("a canary is running: see siafu canary status; promote or roll it back first")
    return InputError("the last canary's old side still stands in for the new one: siafu canary retire comes first")


def _logged(tx: Transaction, row: Mapping[str, Any]) -> Canary:
    canary = _canary(row)
    tx.change(
        _LOG,
        canary=canary.id, number=canary.number, at=canary.began_at, state=canary.state, percent=canary.percent,
        reason=canary.reason,
    )  # fmt: skip
    return canary


def _canary(row: Mapping[str, Any]) -> Canary:
    given = dict(row)
    given |= {name: msgspec.json.decode(given[name]) for name in ("stages", "bounds")}
    plan = msgspec.convert({name: given[name] for name in Plan.__struct_fields__}, Plan)
    return Canary(plan=plan, **{name: row[name] for name in Canary.__struct_fields__ if name != "plan"})


def _numbers(tx: Transaction, canary: int, number: int, side: Side) -> Numbers:
    where = {"canary": canary, "number": number, "side": side}
    which = "WHERE canary = :canary AND number = :number AND side = :side"
    sums = tx.row(f"SELECT {', '.join(SUMS)} FROM canary_sums {which}", **where)  # noqa: S608
    slots = tx.rows(f"SELECT slot, calls FROM canary_seconds {which}", **where)  # noqa: S608
    return Numbers(**(sums or {}), slots={row["slot"]: row["calls"] for row in slots})
