"""What stops a tool: a switch that people turn off, and caps on what one day may bring.

Both are read in the transaction of the effect itself, so they hold for a call from the moment they are set. A tool or
tenant of `*` stands for every one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from siafu.apps.support.shop.refusal import Refusal
from siafu.store.database import Transaction

EVERY = "*"
CAPPED = ("process_refund", "reserve_stock", "open_ticket")  # giving back is never held up
DAY = 86_400  # seconds; days begin at midnight UTC
Unit = Literal["calls", "KRW", "USD"]


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """What was last decided about a tool and tenant. `at`: seconds since 1970."""

    tool: str
    tenant_id: str
    state: Literal["on", "off"]
    by_whom: str
    reason: str
    at: float


class Cap(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a tool may do a day. unit: calls, or minor units of a currency. used: today, since it was set."""

    tool: str
    tenant_id: str
    unit: Unit
    most: int
    used: int


_LATEST = """SELECT tool, tenant_id, state, by_whom, reason, at FROM switch_event AS event WHERE seq = (SELECT max(seq)
    FROM switch_event WHERE tool = event.tool AND tenant_id = event.tenant_id)"""


def switches(tx: Transaction) -> list[Switch]:
    """Everything that was ever switched, as it stands now."""
    return [Switch(**row) for row in tx.rows(f"{_LATEST} ORDER BY tool, tenant_id")]


def switch(tx: Transaction, state: Literal["on", "off"], tool: str, tenant: str, *, by: str, reason: str) -> None:
    """Turn a tool on or off for a tenant, for every call that begins from now on."""
    tx.change(
        """INSERT INTO switch_event (tool, tenant_id, seq, state, by_whom, reason, at)
           SELECT :tool, :tenant, coalesce(max(seq), 0) + 1, :state, :by, :reason, {now} FROM switch_event
           WHERE tool = :tool AND tenant_id = :tenant""",
        tool=tool,
        tenant=tenant,
        state=state,
        by=by,
        reason=reason,
    )


def stopped(tx: Transaction, tool: str, tenant: str) -> Refusal | None:
    """The refusal of a tool that is switched off; None when it may go on."""
    found = tx.row(
        f"""SELECT 1 FROM ({_LATEST}) AS latest WHERE state = 'off' AND tool IN (:tool, '*')
            AND tenant_id IN (:tenant, '*')""",  # noqa: S608 - the text is this module's own
        tool=tool,
        tenant=tenant,
    )
    if found is None:
        return None
    message = f"The shop has switched {tool} off for now. Hand over to a person."
    return Refusal(code="tool_disabled", message=message, retryable=True)


def caps(tx: Transaction) -> list[Cap]:
    """Every cap, with what today has used of it."""
    rows = tx.rows(
        """SELECT cap.tool, cap.tenant_id, cap.unit, most, coalesce(used, 0) AS used FROM daily_cap AS cap
           LEFT JOIN daily_use AS today ON today.tool = cap.tool AND today.tenant_id = cap.tenant_id
               AND today.unit = cap.unit AND day = :day
           ORDER BY 1, 2, 3""",
        day=_today(tx),
    )
    return [Cap(**row) for row in rows]


def cap(tx: Transaction, tool: str, tenant: str, unit: Unit, most: int | None) -> None:
    """Set the most that a tool may do a day, or lift the cap (None). What is used counts from when it is first set."""
    where = {"tool": tool, "tenant": tenant, "unit": unit}
    if most is None:
        tx.change("DELETE FROM daily_cap WHERE tool = :tool AND tenant_id = :tenant AND unit = :unit", **where)
        return
    tx.change(
        """INSERT INTO daily_cap (tool, tenant_id, unit, most) VALUES (:tool, :tenant, :unit, :most)
           ON CONFLICT (tool, tenant_id, unit) DO UPDATE SET most = excluded.most""",
        **where,
        most=most,
    )


def take(tx: Transaction, tool: str, tenant: str, wanted: Mapping[Unit, int]) -> Refusal | None:
    """Count a new effect against the day's caps: all of `wanted`, or nothing and a refusal; also of a tool that is
    switched off.

    Call it in the transaction that makes the effect certain, and not for a repetition. What comes to nothing later is
    not given back: a cap bounds what was tried.
    """
    if refusal := stopped(tx, tool, tenant):
        return refusal
    day = _today(tx)
    where: dict[str, str | int] = {"tool": tool, "tenant": tenant, "day": day}
    tx.change(
        """INSERT INTO daily_use (tool, tenant_id, unit, day, used) SELECT tool, tenant_id, unit, :day, 0 FROM daily_cap
           WHERE tool = :tool AND tenant_id IN (:tenant, '*') ON CONFLICT DO NOTHING""",
        **where,
    )
    rows = tx.rows(
        """SELECT tenant_id, unit, used, most FROM daily_use JOIN daily_cap USING (tool, tenant_id, unit)
           WHERE tool = :tool AND tenant_id IN (:tenant, '*') AND day = :day ORDER BY 1, 2 {for_update}""",
        **where,
    )
    if any(row["used"] + wanted.get(row["unit"], 0) > row["most"] for row in rows):
        return Refusal(
            code="daily_limit",
            message=f"The shop's limit for {tool} is reached for today. Tell the customer, or hand over to a person.",
            retryable=True,
        )
    for row in rows:
        tx.change(
            """UPDATE daily_use SET used = used + :more
               WHERE tool = :tool AND tenant_id = :of AND unit = :unit AND day = :day""",
            tool=tool,
            of=row["tenant_id"],
            unit=row["unit"],
            day=day,
            more=wanted.get(row["unit"], 0),
        )
    return None


def _today(tx: Transaction) -> int:
    return int(tx.rows("SELECT {now} AS now")[0]["now"] // DAY)
