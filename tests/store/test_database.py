"""The SQL door: one contract over SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from siafu.errors import Conflict, InputError, StoreError
from siafu.store.append_only import append_only
from siafu.store.database import POSTGRESQL_THREADS, Database, Transaction, Value, Values
from store.database_child import TABLES


@contextmanager
def opened(url: str, migrations: Sequence[Sequence[str]] = TABLES, *, schema: str = "test") -> Iterator[Database]:
    database = Database(url, migrations, what="the test's database", schema=schema)
    try:
        yield database
    finally:
        database.close()


@pytest.fixture
def database(sql_url: str) -> Iterator[Database]:
    """With one thing in it, "첫째"."""
    with opened(sql_url) as found:
        yield found


def add(database: Database, *names: str) -> None:
    for name in names:
        database.transact(lambda tx, name=name: tx.change("INSERT INTO thing (name) VALUES (:name)", name=name))  # type: ignore[misc]


def names(database: Database) -> list[str]:
    return [row["name"] for row in rows(database, "SELECT name FROM thing ORDER BY id")]


def rows(database: Database, sql: str, **values: Values) -> list[Mapping[str, Any]]:
    return database.transact(lambda tx: tx.rows(sql, **values))


def row(database: Database, sql: str, **values: Value) -> Mapping[str, Any] | None:
    return database.transact(lambda tx: tx.row(sql, **values))


# -- values and words ------------------------------------------------------------------------------------------------

VALUES: list[tuple[str, int, float | None, bytes | None]] = [
    ("한글 100% \\ ' \" :name {now} ::text %s %(x)s 🐜 \n\t", 2**63 - 1, 0.1, b"\0\xff%:'"),
    ("", 0, -1e300, b""),
    ("None", True, None, None),
]


@pytest.mark.parametrize(("name", "amount", "price", "body"), VALUES, ids=["odd", "empty", "none"])
def test_a_value_comes_back_as_it_was(
    database: Database, name: str, amount: int, price: float | None, body: bytes | None
) -> None:
    values: dict[str, Value] = {"name": name, "amount": amount, "price": price, "body": body}
    sql = "INSERT INTO thing (name, amount, price, body) VALUES (:name, :amount, :price, :body)"
    assert database.transact(lambda tx: tx.change(sql, **values)) == 1
    found = row(database, "SELECT name, amount, price, body FROM thing WHERE name = :name", name=name)
    assert found == values
    assert [type(value) for value in (found or {}).values()] == [str, int, type(price), type(body)]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a\0b", "NUL or half a character"),
        ("\ud800", "NUL or half a character"),
        (2**63, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        (float("nan"), "not a number"),
    ],
)
def test_a_value_that_not_every_database_keeps_is_refused(database: Database, value: Value, told: str) -> None:
    with pytest.raises(StoreError, match=f"the test's database.*value .*{told}"):
        row(database, "SELECT :value AS x", value=value)


def test_a_value_may_be_null_wherever_it_stands(database: Database) -> None:
    sql = "SELECT name FROM thing WHERE :name IS NULL OR name = :name"
    assert rows(database, sql, name=None) == [{"name": "첫째"}]
    assert rows(database, sql, name="둘째") == []


def test_rows_are_given_as_json(database: Database) -> None:
    told = [(text, number) for (text, *_), number in zip(VALUES, (1.5, None, 3.0), strict=True)]
    given = json.dumps([{"n": n, "a": text, "b": number} for n, (text, number) in enumerate(told)])
    sql = "SELECT {given.a} AS a, CAST({given.b} AS {real}) AS b FROM {given} ORDER BY CAST({given.n} AS {integer})"
    assert [(each["a"], each["b"]) for each in rows(database, sql, given=given)] == told


def test_a_list_stands_behind_in(database: Database) -> None:
    add(database, "둘째", "셋째")
    sql = "SELECT name FROM thing WHERE name IN :names AND amount IN :amounts ORDER BY id"
    found = rows(database, sql, names=["셋째", "첫째", "없다"], amounts=(0, 7))
    assert [each["name"] for each in found] == ["첫째", "셋째"]
    with pytest.raises(StoreError, match="names holds a NUL"):
        rows(database, sql, names=["첫째", "\0"], amounts=[0])


def test_integers_are_summed_to_an_integer(database: Database) -> None:
    database.transact(lambda tx: tx.change("INSERT INTO thing (name, amount) VALUES ('a', :n), ('b', :n)", n=2**61))
    found = row(database, "SELECT sum(amount) AS total, avg(amount * 0 + id) AS middle FROM thing") or {}
    assert found == {"total": 2**62, "middle": 2.0}
    assert isinstance(found["total"], int)


def test_small_numbers_do_not_overflow(database: Database) -> None:
    assert row(database, "SELECT :a + :b AS sum", a=32_767, b=32_767) == {"sum": 65_534}


def test_the_clock_is_the_databases_and_goes_on(database: Database) -> None:
    def work(tx: Transaction) -> tuple[float, float]:
        before = (tx.row("SELECT {now} AS now") or {})["now"]
        time.sleep(0.005)  # its resolution is a millisecond
        return before, (tx.row("SELECT {now} AS now") or {})["now"]

    before, after = database.transact(work)
    assert isinstance(before, float)
    assert before < after
    assert abs(after - time.time()) < 60
    kept = row(database, "SELECT at FROM thing")
    assert kept is not None
    assert abs(kept["at"] - after) < 60


def test_what_was_changed_is_counted(database: Database) -> None:
    def work(tx: Transaction) -> list[int]:
        return [
            tx.change("INSERT INTO thing (name) VALUES ('a'), ('b')"),
            tx.change("INSERT INTO thing (name) VALUES ('a') ON CONFLICT (name) DO NOTHING"),
            tx.change("UPDATE thing SET amount = 1 WHERE name <> 'a'"),
            tx.change("UPDATE thing SET amount = 2 RETURNING id"),
            tx.change("DELETE FROM thing WHERE name = 'nobody'"),
        ]

    assert database.transact(work) == [2, 0, 2, 3, 0]


def test_returning_gives_rows(database: Database) -> None:
    sql = "INSERT INTO thing (name) VALUES ('a'), ('b') RETURNING id, name"
    assert rows(database, sql) == [{"id": 2, "name": "a"}, {"id": 3, "name": "b"}]
    assert row(database, "UPDATE thing SET amount = 7 WHERE name = 'b' RETURNING amount") == {"amount": 7}
    assert row(database, "DELETE FROM thing WHERE name = 'c' RETURNING id") is None
    assert names(database) == ["첫째", "a", "b"]


def test_a_number_is_given_out_once(database: Database) -> None:
    add(database, "a")
    database.transact(lambda tx: tx.change("DELETE FROM thing WHERE name = 'a'"))
    add(database, "b")
    assert row(database, "SELECT id FROM thing WHERE name = 'b'") == {"id": 3}


# -- what a transaction keeps ----------------------------------------------------------------------------------------

CONFLICTS = [  # statement, what the constraint is called: in SQLite, in PostgreSQL
    ("INSERT INTO thing (name) VALUES ('첫째')", "thing.name", "thing_name_key"),
    ("UPDATE thing SET amount = -1", "amount_fits", "amount_fits"),
    ("UPDATE thing SET name = NULL", "thing.name", "name"),
    ("INSERT INTO note (thing) VALUES (99)", "FOREIGN KEY", "note_thing_fkey"),
    ("UPDATE note SET thing = 1", "note is append-only", "note is append-only"),
    ("DELETE FROM note", "note is append-only", "note is append-only"),
]


@pytest.mark.parametrize(("sql", "sqlite", "postgresql"), CONFLICTS)
def test_work_goes_on_after_a_conflict_that_it_caught(
    database: Database, sql: str, sqlite: str, postgresql: str
) -> None:
    def work(tx: Transaction) -> Conflict:
        tx.change("INSERT INTO note (thing) VALUES (1)")
        with pytest.raises(Conflict) as caught:
            tx.change(sql)
        tx.change("INSERT INTO thing (name) VALUES ('after')")
        return caught.value

    conflict = database.transact(work)
    assert (sqlite if database.dialect == "sqlite" else postgresql) in conflict.constraint
    assert "첫째" not in conflict.message
    assert names(database) == ["첫째", "after"]
    assert len(rows(database, "SELECT 1 AS x FROM note")) == 1


def test_nothing_is_kept_after_a_conflict_that_work_did_not_catch(database: Database) -> None:
    def work(tx: Transaction) -> None:
        tx.change("INSERT INTO thing (name) VALUES ('before')")
        tx.change("INSERT INTO thing (name) VALUES ('첫째')")

    with pytest.raises(Conflict):
        database.transact(work)
    assert names(database) == ["첫째"]


def test_a_statement_that_conflicts_leaves_nothing(database: Database) -> None:
    def work(tx: Transaction) -> None:
        with pytest.raises(Conflict):
            tx.change("INSERT INTO thing (name) VALUES ('a'), ('첫째')")

    database.transact(work)
    assert names(database) == ["첫째"]


ERRORS = [
    "SELECT nothing_of_this FROM thing",
    "NONSENSE",
    "SELECT :missing AS x",
    "INSERT INTO thing (name, amount) VALUES ('a', 'a word')",
    "UPDATE thing SET id = 'a word'",
]


@pytest.mark.parametrize("sql", ERRORS)
def test_an_error_that_work_swallows_is_told_and_nothing_is_kept(database: Database, sql: str) -> None:
    def work(tx: Transaction) -> None:
        tx.change("INSERT INTO thing (name) VALUES ('before')")
        with pytest.raises(StoreError, match="the test's database") as caught:
            tx.rows(sql)
        assert not isinstance(caught.value, Conflict)
        with pytest.raises(StoreError):
            tx.change("INSERT INTO thing (name) VALUES ('after')")

    with pytest.raises(StoreError, match="the test's database"):
        database.transact(work)
    assert names(database) == ["첫째"]


def test_no_conflict_is_caught_in_a_transaction_that_is_a_whole(database: Database) -> None:
    def work(tx: Transaction) -> None:
        with pytest.raises(Conflict):
            tx.change("INSERT INTO thing (name) VALUES ('첫째')")
        with pytest.raises(Conflict):
            tx.change("INSERT INTO thing (name) VALUES ('after')")

    with pytest.raises(Conflict):
        database.transact(work, whole=True)
    assert names(database) == ["첫째"]


def test_what_work_raises_comes_through_and_nothing_is_kept(database: Database) -> None:
    error = InputError("no")

    def work(tx: Transaction) -> None:
        tx.change("INSERT INTO thing (name) VALUES ('a')")
        raise error

    with pytest.raises(InputError) as caught:
        database.transact(work)
    assert caught.value is error
    assert names(database) == ["첫째"]


# -- migrations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
def test_what_is_removed_is_not_left_in_the_file(tmp_path: Path, plain: bool) -> None:
    """plain: the control, a connection of a build of SQLite that leaves it there."""
    path = tmp_path / "a.db"
    with opened(str(path)) as database:
        add(database, *("비밀" * n for n in range(1, 200)))
    if plain:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("PRAGMA secure_delete = OFF")
            db.execute("DELETE FROM thing")
    else:
        with opened(str(path)) as database:
            database.transact(lambda tx: tx.change("DELETE FROM thing"))
    assert ("비밀".encode() in path.read_bytes()) == plain


def test_a_database_takes_the_steps_it_lacks_once(sql_url: str) -> None:
    for steps, expected in ((TABLES[:1], []), (TABLES, ["첫째"]), (TABLES, ["첫째"])):
        with opened(sql_url, steps) as database:
            assert names(database) == expected
    more = (*TABLES, ("ALTER TABLE thing ADD COLUMN note TEXT", "UPDATE thing SET note = '100% \\:note'"))
    with opened(sql_url, more) as database:
        assert rows(database, "SELECT note FROM thing") == [{"note": "100% :note"}]


def test_a_database_of_a_newer_version_is_refused(sql_url: str) -> None:
    with opened(sql_url):
        pass
    with pytest.raises(StoreError, match=r"the test's database.*newer"), opened(sql_url, TABLES[:1]):
        pass


@pytest.mark.parametrize("wrong", ["CREATE TABLE thing (x TEXT)", "NONSENSE"])
def test_a_step_that_fails_leaves_no_part_of_itself(sql_url: str, wrong: str) -> None:
    with opened(sql_url):
        pass
    with pytest.raises(StoreError), opened(sql_url, (*TABLES, ("CREATE TABLE other (x TEXT)", wrong))):
        pass
    with opened(sql_url, (*TABLES, ("CREATE TABLE other (x TEXT)",))) as database:
        assert rows(database, "SELECT * FROM other") == []


def test_two_schemas_share_a_database(sql_url: str) -> None:
    with opened(sql_url) as one, opened(sql_url, [["CREATE TABLE other (x TEXT)"]], schema="다른") as other:
        add(one, "a")
        assert names(other) == ["첫째", "a"]
        versions = rows(other, "SELECT version FROM siafu_schema ORDER BY version")
    assert versions == [{"version": 1}, {"version": 2}]


def test_rows_of_an_append_only_table_stay(database: Database) -> None:
    database.transact(lambda tx: tx.change("INSERT INTO note (thing) VALUES (1), (1)"))
    other = {
        "sqlite": "INSERT OR REPLACE INTO note (id, thing) VALUES (1, 1)",
        "postgresql": "TRUNCATE note",
    }[database.dialect]
    for sql in ("UPDATE note SET thing = 1 WHERE id = 2", "DELETE FROM note WHERE id = 2", other):
        with pytest.raises(Conflict, match="note is append-only"):
            database.transact(lambda tx, sql=sql: tx.change(sql))  # type: ignore[misc]
    assert rows(database, "SELECT id FROM note ORDER BY id") == [{"id": 1}, {"id": 2}]


def test_append_only_is_what_keeps_them(sql_url: str) -> None:
    plain = [[statement for statement in TABLES[0] if statement not in append_only("note")], TABLES[1]]
    with opened(sql_url, plain) as database:
        database.transact(lambda tx: tx.change("INSERT INTO note (thing) VALUES (1)"))
        assert database.transact(lambda tx: tx.change("DELETE FROM note")) == 1


# -- many at once ----------------------------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count), timeout=60))


def test_no_change_of_many_threads_is_lost(database: Database) -> None:
    def more(tx: Transaction) -> None:
        found = tx.row("SELECT amount FROM thing {for_update}")
        assert found is not None
        tx.change("UPDATE thing SET amount = :amount", amount=found["amount"] + 1)

    in_threads(12, lambda _: [database.transact(more) for _ in range(5)])
    assert row(database, "SELECT amount FROM thing") == {"amount": 60}


def test_one_of_many_makes_the_row(database: Database) -> None:
    sql = "INSERT INTO thing (name) VALUES ('하나') ON CONFLICT (name) DO NOTHING"
    made: list[int] = []
    in_threads(12, lambda _: made.append(database.transact(lambda tx: tx.change(sql))))
    assert sorted(made) == [0] * 11 + [1]


async def test_run_does_not_hold_the_event_loop(database: Database) -> None:
    begun, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work(tx: Transaction) -> str:
        loop.call_soon_threadsafe(begun.set)
        assert go.wait(30)
        tx.change("INSERT INTO thing (name) VALUES ('a')")
        return threading.current_thread().name

    running = asyncio.create_task(database.run(work))
    await asyncio.wait_for(begun.wait(), 30)
    go.set()
    assert (await running).startswith("siafu-database")
    many = [database.run(lambda tx: tx.change("UPDATE thing SET amount = amount + 1")) for _ in range(50)]
    assert await asyncio.gather(*many) == [2] * 50
    assert await database.run(lambda tx: tx.row("SELECT min(amount) AS least FROM thing")) == {"least": 50}


async def test_a_cancelled_run_ends_if_it_has_begun_and_else_never_begins(database: Database, sql_url: str) -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    def holding(tx: Transaction) -> None:
        begun.release()
        assert go.wait(30)

    def adding(tx: Transaction) -> None:
        holding(tx)
        tx.change("INSERT INTO thing (name) VALUES ('begun')")

    threads = 1 if database.dialect == "sqlite" else POSTGRESQL_THREADS
    held = [asyncio.create_task(database.run(adding if n == 0 else holding)) for n in range(threads)]
    for _ in held:
        assert await asyncio.to_thread(begun.acquire, timeout=30)
    queued = asyncio.create_task(database.run(lambda tx: tx.change("INSERT INTO thing (name) VALUES ('queued')")))
    await asyncio.sleep(0)
    queued.cancel()
    held[0].cancel()
    await asyncio.wait([queued, held[0]])
    go.set()
    await database.aclose()
    await asyncio.gather(*held[1:])
    with opened(sql_url) as again:
        assert names(again) == ["첫째", "begun"]


async def test_a_closed_database_says_so(database: Database) -> None:
    assert await database.run(lambda tx: tx.row("SELECT 1 AS x")) == {"x": 1}
    await database.aclose()
    await database.aclose()
    database.close()
    with pytest.raises(StoreError, match=r"the test's database.* is closed"):
        await database.run(lambda tx: tx.row("SELECT 1 AS x"))
    with pytest.raises(StoreError, match=r"the test's database.* is closed"):
        database.transact(lambda tx: tx.row("SELECT 1 AS x"))
