"""A process that shares a database with others, and may be killed: adds rows, and says on stdout what was confirmed.

    python database_child.py URL NAME ROWS [early]

It begins when its input closes. `early` says so before the commit, to show that the check would notice.
"""

from __future__ import annotations

import os
import sys

from siafu.store.append_only import append_only
from siafu.store.database import Database, Transaction

TABLES = (
    (
        "CREATE TABLE thing (id {serial}, name TEXT NOT NULL UNIQUE, amount {integer} NOT NULL DEFAULT 0, "
        "price {real}, at {real} NOT NULL DEFAULT {now}, body {bytes}, "
        "CONSTRAINT amount_fits CHECK (amount >= 0)) {strict}",
        "CREATE TABLE note (id {serial}, thing {integer} NOT NULL REFERENCES thing) {strict}",
        "CREATE INDEX note_of_thing ON note (thing)",
        *append_only("note"),
    ),
    ("INSERT INTO thing (name) VALUES ('첫째')", "{sqlite} ANALYZE", "{postgresql} ANALYZE thing"),
)


def say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def main(url: str, name: str, rows: str, mode: str = "") -> None:
    sys.stdin.read()
    database = Database(url, TABLES, what="the test's database", schema="test")
    say("opened")
    for n in range(int(rows)):
        row = f"{name}-{n}"

        def add(transaction: Transaction, row: str = row) -> None:
            transaction.change("INSERT INTO thing (name) VALUES (:row)", row=row)
            if mode == "early":
                say(row)
                sys.stdout.close()
                os.read(os.pipe()[0], 1)  # for ever

        database.transact(add)
        say(row)
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
