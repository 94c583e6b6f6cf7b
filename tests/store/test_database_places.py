"""The SQL door where it meets the world: processes that die, servers that stop, files and addresses that are wrong."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from services import PASSWORD, Postgres, Server, free_port, redis_command, running_redis
from siafu.errors import ConfigError, StoreError, StoreLocked
from siafu.store import database as door
from siafu.store.database import ATTEMPTS, Database, Transaction
from store.database_child import TABLES
from store.test_database import add, in_threads, names, opened, row, rows

CHILD = Path(__file__).with_name("database_child.py")


@contextmanager
def child(url: str, name: str, count: int, mode: str = "") -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(CHILD), url, name, str(count), mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def begin(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


# -- several processes, and their end --------------------------------------------------------------------------------


def test_processes_that_open_a_new_database_at_once_make_it_once(sql_url: str) -> None:
    with ExitStack() as started:
        processes = [started.enter_context(child(sql_url, f"p{n}", 5)) for n in range(4)]
        for process in processes:
            begin(process)
        for process in processes:
            assert process.wait(60) == 0
    with opened(sql_url) as database:
        assert sorted(names(database)) == sorted(["첫째", *(f"p{n}-{i}" for n in range(4) for i in range(5))])


@pytest.mark.kill
def test_what_was_confirmed_is_there_after_kill_9(sql_url: str) -> None:
    with child(sql_url, "p", 10**9) as process:
        begin(process)
        said = [line(process) for _ in range(30)]
        process.kill()
        assert process.stdout is not None
        said += process.stdout.read().decode().split()
        assert process.wait(20) == -signal.SIGKILL
    assert said[0] == "opened"
    with opened(sql_url) as database:
        kept = names(database)[1:]
    assert kept[: len(said) - 1] == said[1:]
    assert len(kept) <= len(said)  # and at most one more, which was not confirmed in time


@pytest.mark.kill
def test_the_check_can_fail(sql_url: str) -> None:
    with child(sql_url, "p", 1, "early") as process:
        begin(process)
        assert [line(process) for _ in range(2)] == ["opened", "p-0"]
        process.kill()
    with opened(sql_url) as database:
        assert names(database) == ["첫째"]


# -- PostgreSQL ------------------------------------------------------------------------------------------------------


@pytest.mark.kill
def test_a_server_that_is_killed_and_started_again(postgres: Postgres, postgres_url: str) -> None:
    with opened(postgres_url) as database:
        add(database, "before")

        def cut(tx: Transaction) -> None:
            tx.change("INSERT INTO thing (name) VALUES ('cut')")
            postgres.kill()
            tx.change("INSERT INTO thing (name) VALUES ('cut too')")

        try:
            with pytest.raises(StoreError, match="PostgreSQL"):
                database.transact(cut)
            with pytest.raises(StoreError, match="cannot be reached: check that PostgreSQL runs there"):
                names(database)
        finally:
            postgres.start()
        assert names(database) == ["첫째", "before"]
        in_threads(8, lambda n: add(database, f"after {n}"))
        assert len(names(database)) == 10


@pytest.mark.parametrize("patience", [None, 1.0])
def test_connections_that_were_lost_since_are_replaced_unseen(
    postgres: Postgres, postgres_url: str, patience: float | None
) -> None:
    def cut() -> None:
        with postgres.connect() as connection:
            mine = "datname = %s AND application_name = 'siafu'"
            connection.execute(
                f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {mine}",
                [database._engine.url.database],
            )

    def cut_within(tx: Transaction) -> None:
        tx.change("INSERT INTO thing (name) VALUES ('cut')")
        cut()
        tx.change("INSERT INTO thing (name) VALUES ('cut too')")

    with opened(postgres_url) as database:
        together = threading.Barrier(3)
        in_threads(3, lambda n: database.transact(lambda tx: (tx.rows("SELECT 1 AS one"), together.wait(30))))
        cut()
        until = None if patience is None else time.monotonic() + patience
        database.transact(lambda tx: tx.change("INSERT INTO thing (name) VALUES ('after')"), until=until)
        assert names(database) == ["첫째", "after"]
        with pytest.raises(StoreError, match="PostgreSQL"):
            database.transact(cut_within)  # what has begun is not done again
        assert names(database) == ["첫째", "after"]


def test_transactions_that_wait_for_each_other_are_repeated(postgres_url: str) -> None:
    with opened(postgres_url) as database:
        add(database, "a", "b")
        both = threading.Barrier(2)
        calls: list[int] = []

        def cross(own: int) -> None:
            def work(tx: Transaction) -> None:
                calls.append(own)
                tx.change("UPDATE thing SET amount = amount + 1 WHERE id = :id", id=own)
                if len(calls) <= 2:
                    both.wait(30)
                tx.change("UPDATE thing SET amount = amount + 1 WHERE id = :id", id=5 - own)

            database.transact(work)

        in_threads(2, lambda n: cross(n + 2))
        assert len(calls) == 3
        assert rows(database, "SELECT amount FROM thing ORDER BY id") == [{"amount": 0}, {"amount": 2}, {"amount": 2}]


@pytest.mark.parametrize(("code", "calls"), [("40001", ATTEMPTS), ("40P01", ATTEMPTS), ("22012", 1)])
def test_repeating_has_an_end(postgres_url: str, code: str, calls: int) -> None:
    called: list[int] = []

    def work(tx: Transaction) -> None:
        called.append(1)
        tx.change(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{code}'; END $$")

    with opened(postgres_url) as database, pytest.raises(StoreError, match="again"):
        database.transact(work)
    assert len(called) == calls


def test_locked_rows_are_skipped_or_waited_for_with_an_end(postgres_url: str) -> None:
    with opened(postgres_url) as database:
        add(database, "a")

        def hold(tx: Transaction) -> None:
            tx.rows("SELECT id FROM thing WHERE name = 'a' {for_update}")
            assert rows(database, "SELECT name FROM thing ORDER BY id {for_update} {skip_locked}") == [{"name": "첫째"}]

            def impatient(other: Transaction) -> None:
                other.rows("SELECT set_config('lock_timeout', '50ms', true)")
                other.rows("SELECT id FROM thing {for_update}")

            with pytest.raises(StoreError, match="another transaction held a row for too long"):
                database.transact(impatient)

        database.transact(hold)
        assert row(database, "SELECT current_setting('lock_timeout') AS limit") == {"limit": "10s"}


def test_a_commit_is_durable_whatever_the_server_prefers(postgres: Postgres, postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    sql = "SELECT current_setting('synchronous_commit') AS sync, current_setting('transaction_isolation') AS isolation"
    for preferred, used in (("off", "on"), ("local", "local"), ("on", "on")):
        with postgres.connect() as connection:
            connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = {preferred}')
            connection.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
        with opened(postgres_url) as database:
            assert row(database, sql) == {"sync": used, "isolation": "read committed"}


def test_a_database_that_cannot_hold_every_text_is_refused(postgres: Postgres, postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2] + "latin"
    with postgres.connect() as connection:
        connection.execute(f"CREATE DATABASE \"{name}\" ENCODING 'LATIN1' TEMPLATE template0")
        with pytest.raises(ConfigError, match="keeps text as LATIN1: create it anew"), opened(postgres.url(name)):
            pass
        connection.execute(f'DROP DATABASE "{name}"')


def test_a_user_without_rights_can_use_what_is_there_but_not_make_it(postgres: Postgres, postgres_url: str) -> None:
    user = "u" + postgres_url.rpartition("/")[2]
    weak = postgres_url.replace("tester", user)
    with postgres.connect(postgres_url.rpartition("/")[2]) as connection:
        connection.execute(f"CREATE USER {user} PASSWORD '{PASSWORD}'")
        try:
            with pytest.raises(StoreError, match="the user lacks a right"), opened(weak):
                pass
            with opened(postgres_url):
                connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}")
            with opened(weak) as database:
                assert names(database) == ["첫째"]
        finally:
            connection.execute(f"DROP OWNED BY {user}; DROP USER {user}")


def everything(error: BaseException) -> str:
    """What a log could show of `error` and of all that led to it."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.__cause__)


def test_no_message_holds_the_password(postgres: Postgres, postgres_url: str) -> None:
    secret = "비밀p@ss:wörd/12345"
    name = postgres_url.rpartition("/")[2]
    right = quote(PASSWORD, safe="")
    closed = f"127.0.0.1:{free_port()}"
    wrong: dict[str, type[Exception]] = {
        postgres_url.replace(right, quote(secret, safe="")): StoreError,  # refused by the server
        postgres_url.replace(right, secret): ConfigError,  # not written as an address has to
        postgres_url.replace(right, "12345@" + quote(secret)): ConfigError,
        f"postgresql://tester:{quote(secret, safe='')}@{closed}/{name}": StoreError,
        f"postgresql://tester:{quote(secret, safe='')}@{closed}/{name}?nonsense=1": StoreError,
        f"postgresql://tester:{quote(secret, safe='')}@127.0.0.1:port/{name}": ConfigError,
        f"postgresql://tester@{closed}/{name}?password={quote(secret, safe='')}": StoreError,
        f"mysql://tester:{secret}@{closed}/{name}": ConfigError,
        f"sqlite://tester:{secret}@{closed}/{name}": ConfigError,
        postgres_url + "_missing": StoreError,
    }
    for url, kind in wrong.items():
        with pytest.raises(kind, match="the test's database") as caught, opened(url):
            pass
        told = everything(caught.value)
        for part in (secret, quote(secret, safe=""), "비밀", "12345", PASSWORD, right):
            assert part not in told, url
    with opened(postgres_url) as database:
        assert PASSWORD not in repr(vars(database))


def test_the_search_for_passwords_can_find_one() -> None:
    try:
        raise StoreError("a") from ValueError("postgresql://u:12345@host")
    except StoreError as error:
        assert "12345" in everything(error)


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'siafu\[postgres\]'"), opened("postgresql://u:p@127.0.0.1/x"):
        pass


# -- SQLite ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "새 폴더" / "가게 100%?#.db"


def test_a_file_is_named_as_a_path_or_an_address(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("HOME", str(path.parent))
    places: list[str | Path] = [path, str(path), path.name, f"sqlite:///{path.name}", f"sqlite:///{path}"]
    places += [f"~/{path.name}", f"sqlite:///~/{path.name}"]
    for n, place in enumerate(places):
        with closing(Database(place, TABLES, what="the test's database", schema="test")) as database:
            add(database, str(n))
            assert len(names(database)) == n + 2
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///", "sqlite:", "postgres:x", "http://127.0.0.1/x", "u:pw@h/d"]
)
def test_an_address_that_means_nothing_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="address of the test's database cannot be used: write a path"), opened(url):
        pass
    assert list(tmp_path.iterdir()) == []


def test_commits_are_synchronous_and_constraints_hold(path: Path) -> None:
    with opened(str(path)) as database:
        for pragma, value in (("synchronous", 2), ("foreign_keys", 1), ("recursive_triggers", 1), ("fullfsync", 1)):
            assert row(database, f"PRAGMA {pragma}") == {pragma: value}
        assert row(database, "PRAGMA journal_mode") == {"journal_mode": "wal"}


def test_one_statement_is_one_statement(path: Path) -> None:
    with opened(str(path)) as database:
        with pytest.raises(StoreError):
            database.transact(lambda tx: tx.change("DELETE FROM thing; DELETE FROM thing"))
        assert names(database) == ["첫째"]


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")


def _torn(path: Path) -> None:
    with opened(str(path)):
        pass
    content = bytearray(path.read_bytes())
    content[100:4000] = b"\xff" * 3900
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (_foreign, "database of another program, so it was left untouched"),
        (lambda path: path.write_bytes(b"no database" * 500), "not an SQLite database, so it was left untouched"),
        (_torn, "damaged"),
        (Path.mkdir, "is a folder"),
    ],
    ids=["foreign", "no database", "torn", "folder"],
)
def test_a_file_that_is_not_ours_is_left_as_it_is(path: Path, make: Callable[[Path], None], told: str) -> None:
    path.parent.mkdir()
    make(path)
    before = path.is_file() and path.read_bytes()
    with pytest.raises(StoreError, match=f"the test's database .*{path.name[:2]}.*{told}"), opened(str(path)):
        pass
    assert (path.is_file() and path.read_bytes()) == before


def test_a_folder_that_cannot_be_made(path: Path) -> None:
    path.parent.write_text("a file")
    with pytest.raises(StoreError, match="cannot be opened: check that its folder exists"), opened(str(path)):
        pass
    with pytest.raises(StoreError, match="cannot be made"), opened(str(path.parent / "folder" / path.name)):
        pass


def test_a_database_locked_by_another_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "WAIT_SECONDS", 0.1)
    with opened(str(path)) as database, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another program has locked it"):
            add(database, "a")
        other.execute("ROLLBACK")
        add(database, "b")
        assert names(database) == ["첫째", "b"]


@contextmanager
def standing_still(path: Path) -> Iterator[Callable[[], None]]:
    """A process that was stopped within a transaction; what is yielded lets it go on, and end."""
    code = (
        f"import sqlite3, sys; db = sqlite3.connect({str(path)!r}, isolation_level=None); "
        "db.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read(); db.execute('ROLLBACK')"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def go_on() -> None:
            process.send_signal(signal.SIGCONT)
            process.communicate(timeout=20)

        try:
            assert line(process) == "held"
            process.send_signal(signal.SIGSTOP)
            yield go_on
        finally:
            process.kill()


@pytest.mark.kill
async def test_a_process_that_stands_still_in_a_transaction_holds_others_up_only_so_long(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that wait for their turn behind others; and once it goes on, so do they."""
    monkeypatch.setattr(door, "WAIT_SECONDS", 0.6)
    with opened(str(path)) as database, standing_still(path) as go_on:
        began = time.monotonic()
        ends = await asyncio.gather(*(database.run(adding(str(n))) for n in range(40)), return_exceptions=True)
        assert [type(end) for end in ends] == [StoreLocked] * 40
        assert all(end.retryable and "stopped" in str(end) for end in ends)  # type: ignore[union-attr]
        assert 0.5 < time.monotonic() - began < 20 * 0.6  # and not one wait after another
        began = time.monotonic()
        monkeypatch.setattr(door, "WAIT_SECONDS", 30.0)
        with pytest.raises(StoreLocked):
            await database.run(adding("g"), seconds=0.3)
        assert time.monotonic() - began < 20
        go_on()
        await database.run(adding("h"), seconds=5.0)
        assert names(database) == ["첫째", "h"]


def adding(name: str) -> Callable[[Transaction], int]:
    return lambda tx: tx.change("INSERT INTO thing (name) VALUES (:name)", name=name)


def test_a_transaction_inside_a_transaction_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "WAIT_SECONDS", 0.1)
    with opened(str(path)) as database:
        with pytest.raises(StoreError, match="begin another in itself"):
            database.transact(lambda tx: names(database))
        assert names(database) == ["첫째"]


# -- the servers of the tests ----------------------------------------------------------------------------------------


def test_redis_answers_and_is_empty(redis_url: str, _redis: Server) -> None:
    assert redis_url == f"redis://127.0.0.1:{_redis.port}/0"
    assert redis_command(_redis.port, "SET", "k", "v") == b"+OK\r\n"
    assert redis_command(_redis.port, "DBSIZE") == b":1\r\n"


@pytest.mark.kill
def test_a_server_ends_with_its_block_and_starts_again_where_it_was() -> None:
    with running_redis() as server:
        port, first = server.port, server.pid
        server.kill()
        server.start()
        assert server.port == port
        assert server.pid != first
        assert redis_command(port, "PING") == b"+PONG\r\n"
        second = server.pid
    assert not Path(f"/proc/{second}").exists()
    server.stop()
