"""SEC11: what is no valid call is refused before anything is done, over the real wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from siafu.apps.support.shop.calling import schema
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.tools import TOOLS

from .test_stdio import HELLO, call, talk
from .test_tools import GOOD

# As they stand in the message: some are no JSON, and Python's reader takes them all the same.
NEVER = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    '"\\ud800"',
    "[]",
    "{}",
    "true",
    '""',
    "-5",
    "0",
    "1e99",
    "10.0",
    '"10"',
)
EFFECTS = ("stock_reservation", "ticket", "refund_intent")


# Texts and numbers that mean something in their place.
FINE = {
    *((tool, name, raw) for tool, name in (("search_products", "query"),) for raw in ('"\\ud800"', '"10"')),
    *(("open_ticket", name, raw) for name in ("subject", "summary") for raw in ('"\\ud800"', '"10"')),
}


def bent() -> Iterator[bytes]:
    """Calls of every tool, each with one thing wrong."""
    for tool, good in GOOD.items():
        for name in schema(TOOLS[tool].takes)["properties"]:
            others = {key: value for key, value in good.items() if key != name}
            for raw in NEVER:
                if (tool, name, raw) in FINE:
                    continue
                yield line(tool, {**others, name: "@"}).replace(b'"@"', raw.encode())
        twice = json.dumps(good)[1:-1]
        for extra in ('"customer": "lee"', '"tenant": ""', '"refund_request_id": "r"', '"_meta": {}', '"": 1', twice):
            yield line(tool, "@").replace(b'"@"', b"{" + extra.encode() + b", " + twice.encode() + b"}")
        for name in good:
            yield line(tool, {key: value for key, value in good.items() if key != name})
        for whole in ([], "x", 5, None, [good]):
            yield line(tool, whole)


def line(tool: str, arguments: Any) -> bytes:
    return json.dumps(call(0, arguments, tool)).encode()


def test_sec11_every_tool_refuses_what_is_bent(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    with closing(ShopDatabase(database)) as shop:
        before = shop.products()
    sent = [raw.replace(b'"id": 0', b'"id": %d' % number) for number, raw in enumerate(bent(), 1)]
    replies = {reply["id"]: reply for reply in talk(database, json.dumps(HELLO).encode(), *sent)}
    assert len(sent) > 200 and set(replies) == set(range(len(sent) + 1))
    for number, raw in enumerate(sent, 1):
        reply = replies[number]
        refused = "error" in reply or reply["result"]["structuredContent"]["code"] == "invalid_arguments"
        assert refused, (raw, reply)
    assert effects(database, before) == 0

    good = [call(n, GOOD[tool], tool) for n, tool in enumerate(("reserve_stock", "open_ticket"), 1)]
    talk(database, *(json.dumps(message).encode() for message in (HELLO, *good)))
    assert effects(database, before) == 3, "the same calls, straight, do something"


def effects(database: Path, before: list[Any]) -> int:
    with closing(ShopDatabase(database)) as shop:
        made = shop.transact(lambda tx: sum(len(tx.rows(f"SELECT 1 FROM {table}")) for table in EFFECTS))
        changed = sum(1 for now, then in zip(shop.products(), before, strict=True) if now != then)
    return made + changed
