"""The SQL door: one contract over SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from siafu.errors import Conflict
from siafu.store.database import Database, Transaction, append_only

TABLES = (
    (
        "CREATE TABLE thing (id {serial}, name TEXT NOT NULL UNIQUE, amount {integer} NOT NULL DEFAULT 0, "
        "at {real} NOT NULL DEFAULT {now}, body {bytes}, CONSTRAINT amount_fits CHECK (amount >= 0)) {strict}",
        "CREATE TABLE note (id {serial}, thing {integer} NOT NULL REFERENCES thing) {strict}",
        *append_only("note"),
    ),
)


@pytest.fixture
def database(sql_url: str) -> Iterator[Database]:
    opened = Database(sql_url, TABLES, what="the test's database", schema="test")
    yield opened
    opened.close()


def test_what_is_written_is_read(database: Database) -> None:
    def work(tx: Transaction) -> list[Mapping[str, Any]]:
        sql = "INSERT INTO thing (name, amount, body) VALUES (:name, :amount, :body)"
        assert tx.change(sql, name="한글 100% :x", amount=2**62, body=b"\0\xff") == 1
        return tx.rows("SELECT * FROM thing")

    (row,) = database.transact(work)
    assert (row["name"], row["amount"], row["body"]) == ("한글 100% :x", 2**62, b"\0\xff")
    again = {"sql": "INSERT INTO thing (name) VALUES (:name)", "name": "한글 100% :x"}
    with pytest.raises(Conflict):
        database.transact(lambda tx: tx.change(again["sql"], name=again["name"]))
