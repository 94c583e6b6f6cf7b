"""Effects to ask for in tests, and a store on one of the databases."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from siafu.store.database import Database
from siafu.store.effect_people import EffectPeople
from siafu.store.effect_records import Dispatch, Effect, EffectAsk, Ending, Verdict
from siafu.store.effect_schema import MIGRATIONS
from siafu.store.effects import EffectStore

DEFINITION = '{"name":"환불"}'


def ask(key: str = "k1", arguments: dict[str, Any] | None = None, **changed: Any) -> EffectAsk:
    """An ask for one effect; what is asked for is told apart by the arguments."""
    text = json.dumps(arguments or {"order_id": "1001"}, ensure_ascii=False, sort_keys=True)
    print_ = hashlib.sha256(text.encode()).hexdigest()
    values: dict[str, Any] = {
        "tool": "shop.refund",
        "definition": DEFINITION,
        "requester": "kim",
        "customer": "kim",
        "owner": "test:1",
        "lease_seconds": 60.0,
    }
    return EffectAsk(key=key, arguments=text, arguments_sha256=print_, fingerprint=print_, **{**values, **changed})


class House:
    """A store, its people's side, and a look at the rows themselves."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, MIGRATIONS, what="the test's effects", schema="effects")
        self.store = EffectStore(self.database)
        self.people = EffectPeople(self.database)

    async def sent(self, given: EffectAsk) -> Dispatch:
        verdict = await self.store.claim(given)
        assert isinstance(verdict, Dispatch), verdict
        return verdict

    async def done(
        self, given: EffectAsk, ending: Ending = "succeeded", result: str | None = '{"text":"done"}'
    ) -> Verdict:
        dispatch = await self.sent(given)
        return await self.store.finish(dispatch.effect, dispatch.epoch, ending, result)

    def lapse(self, seconds: float = 1e6, column: str = "lease_until", table: str = "effect") -> None:
        """So many seconds pass, as far as `column` is concerned."""
        sql = f"UPDATE {table} SET {column} = {column} - :seconds WHERE {column} IS NOT NULL"
        self.database.transact(lambda transaction: transaction.change(sql, seconds=float(seconds)))

    def effect(self, key: str = "k1") -> Effect:
        row = self.database.transact(lambda transaction: transaction.row("SELECT * FROM effect WHERE key = :k", k=key))
        return msgspec.convert(row, Effect)

    def day(self) -> tuple[int, int]:
        """Calls and total of all days."""
        sql = "SELECT COALESCE(SUM(calls), 0) AS calls, COALESCE(SUM(total), 0) AS total FROM effect_day"
        row = self.database.transact(lambda transaction: transaction.row(sql))
        assert row is not None
        return row["calls"], row["total"]

    async def kinds(self) -> list[str]:
        return [line.kind for line in await self.people.history()]
