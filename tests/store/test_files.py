"""Files that cannot be used: each gets a clear StoreError, and what is not ours stays as it was."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from siafu.errors import StoreError
from siafu.store import schema
from siafu.store.database import Database
from siafu.store.lock import Lock
from siafu.store.report import Report
from siafu.store.sqlite import SqliteStore

from .rows import entry, item


async def refused(path: Path, words: str) -> None:
    """`path` is refused with `words`, and all files are as before; SQLite may have left an empty log."""
    before = contents(path)
    with pytest.raises(StoreError, match=words) as raised:
        await SqliteStore(path).run("r").begin("w")
    assert str(path) in str(raised.value)
    after = contents(path)
    assert not after.pop(path.with_name(path.name + "-wal"), b"")
    after.pop(path.with_name(path.name + "-shm"), b"")
    assert after == before


def contents(path: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in path.parent.glob("*") if p.is_file()}


def ran(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


async def made(path: Path) -> None:
    run = SqliteStore(path).run("r")
    await run.begin("w")
    await run.record(item("a"))
    await run.aclose()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_is_taken_away_in_use_is_told_of(tmp_path: Path, replaced: bool) -> None:
    path, store = tmp_path / "run.db", SqliteStore(tmp_path / "run.db")
    run = store.run("r")
    await run.begin("w")
    path.rename(tmp_path / "elsewhere.db")
    if replaced:
        shutil.copy(tmp_path / "elsewhere.db", path)
    await run.record(item("a"))
    with pytest.raises(StoreError, match=r"run\.db was deleted or replaced while it was in use"):
        await run.aclose()
    await store.run("r").begin("w")  # all was closed nevertheless
    await asyncio.to_thread(store.close)


async def test_a_folder(tmp_path: Path) -> None:
    await refused(tmp_path, "is a folder")


async def test_a_pipe_or_a_device_keeps_its_place(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    await refused(tmp_path / "pipe", "no regular file")
    with pytest.raises(StoreError, match=r"tasks .* is no regular file"):
        Database(tmp_path / "pipe", [], what="the database of tasks", schema="s")
    assert (tmp_path / "pipe").is_fifo()


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("내 메모 " * 1000, encoding="utf-8")
    await refused(tmp_path / "notes.txt", "not an SQLite database.*choose another path")


async def test_a_database_of_another_program(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("CREATE TABLE mine (x)")
    db.close()
    await refused(tmp_path / "other.db", "another program.*untouched")


async def test_a_database_of_another_program_that_was_killed(tmp_path: Path) -> None:
    """Its write-ahead log still holds rows: looking at the file must not fold them in."""
    script = (
        "import os, signal, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('PRAGMA journal_mode = WAL'); db.execute('CREATE TABLE mine (x)');"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert ran(script, tmp_path / "other.db").returncode == -signal.SIGKILL
    log = (tmp_path / "other.db-wal").read_bytes()
    file = (tmp_path / "other.db").read_bytes()
    with pytest.raises(StoreError, match="another program"):
        await SqliteStore(tmp_path / "other.db").run("r").begin("w")
    assert ((tmp_path / "other.db-wal").read_bytes(), (tmp_path / "other.db").read_bytes()) == (log, file)


async def test_a_damaged_header(tmp_path: Path) -> None:
    await made(tmp_path / "run.db")
    with (tmp_path / "run.db").open("r+b") as file:
        file.write(b"\0" * 40)
    await refused(tmp_path / "run.db", "not an SQLite database")


async def test_a_damaged_page(tmp_path: Path) -> None:
    await made(tmp_path / "run.db")
    with (tmp_path / "run.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 40960)
    with pytest.raises(StoreError, match=r"damaged.*keep a copy"):
        await made(tmp_path / "run.db")
    Lock(tmp_path / "run.db").release()  # a failed begin holds nothing


async def test_a_database_of_a_newer_siafu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE later (x TEXT) STRICT"))
    await made(tmp_path / "run.db")
    monkeypatch.undo()
    await refused(tmp_path / "run.db", "newer siafu.*update siafu")
    with pytest.raises(StoreError, match="newer siafu"):
        Report(tmp_path / "run.db")


async def test_an_older_database_is_brought_forward_and_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(tmp_path / "run.db")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "ALTER TABLE item ADD COLUMN later TEXT"))
    with pytest.raises(StoreError, match=r"older siafu.*resume"):
        Report(tmp_path / "run.db")
    run = SqliteStore(tmp_path / "run.db").run("r")
    assert (await run.begin("w")).finished == 1
    await run.aclose()
    Report(tmp_path / "run.db").close()


async def test_a_step_that_fails_leaves_the_older_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await made(tmp_path / "run.db")
    broken = "ALTER TABLE item ADD COLUMN later TEXT; CREATE TABLE item (x TEXT) STRICT"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
    with pytest.raises(StoreError):
        await made(tmp_path / "run.db")
    monkeypatch.undo()
    await made(tmp_path / "run.db")


@pytest.mark.parametrize("content", [None, b""])
async def test_an_empty_file_and_the_rest_of_a_broken_creation_are_used(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "run.db.new").write_bytes(b"half a database")
    if content is not None:
        (tmp_path / "run.db").write_bytes(content)
    await made(tmp_path / "run.db")
    assert {p.name for p in contents(tmp_path / "run.db")} == {"run.db", "run.db.lock"}


async def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    run = SqliteStore(tmp_path / "run.db").run("r")
    await run.begin("w")
    modes = {p.suffix: p.stat().st_mode & 0o777 for p in contents(tmp_path / "run.db")}
    await run.aclose()
    assert modes == {".db": 0o600, ".db-wal": 0o600, ".db-shm": 0o600, ".lock": 0o644}


async def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    await refused(tmp_path / "file" / "run.db", "folder cannot be used")


async def test_two_names_of_one_file_share_the_lock(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "run.db")
    await made(tmp_path / "link.db")
    assert (tmp_path / "link.db").is_symlink()
    lock = Lock(tmp_path / "run.db")
    with pytest.raises(StoreError, match="already open in this process"):
        await made(tmp_path / "link.db")
    lock.release()


FORKING = """
import os, sys
from pathlib import Path
from siafu.store.lock import Lock

lock = Lock(Path(sys.argv[1]))
if os.fork() == 0:
    lock.release()  # the parent's, so nothing happens
    print("forked", flush=True)
sys.stdin.read()
"""


def test_a_process_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING, str(tmp_path / "run.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"forked\n"
        with pytest.raises(StoreError, match=f"in use by process {parent.pid}"):
            Lock(tmp_path / "run.db")
        parent.kill()
        parent.wait()
        Lock(tmp_path / "run.db").release()  # the child lives until its stdin is closed


READ_ONLY = """
import asyncio, os, sys
from siafu.errors import StoreError
from siafu.store.sqlite import SqliteStore
import concurrent.futures.thread, encodings.idna, stringprep
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)  # permissions do not bind root
for path in sys.argv[1:]:
    try:
        asyncio.run(SqliteStore(path).run("r").begin("w"))
    except StoreError as error:
        print(error)
"""


def test_files_and_folders_that_may_not_be_written() -> None:
    folder = Path(tempfile.mkdtemp())  # not tmp_path: its parents are closed to other users
    try:
        (folder / "open").mkdir()
        (folder / "closed").mkdir()
        for path in (folder / "open" / "run.db", folder / "closed" / "run.db"):
            asyncio.run(made(path))
            path.chmod(0o444)
        (folder / "open").chmod(0o777)
        (folder / "open" / "run.db.lock").chmod(0o666)
        (folder / "closed").chmod(0o555)
        folder.chmod(0o755)
        paths = [folder / "open" / "run.db", folder / "closed" / "run.db", folder / "closed" / "new.db"]
        done = ran(READ_ONLY, *paths)
        said = done.stdout.splitlines()
        assert done.stderr == "" and len(said) == 3
        assert all("is read-only: make the file and its folder writable" in line for line in said[:2])
        assert "(Permission denied): check that you may write there" in said[2]
    finally:
        (folder / "closed").chmod(0o755)
        shutil.rmtree(folder)


SMALL_DISK = """
import asyncio, resource, sys
from siafu.errors import StoreError
from siafu.store.records import JournalEntry
from siafu.store.sqlite import SqliteStore
async def main():
    run = SqliteStore(sys.argv[1]).run("r")
    await run.begin("w")
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # the kernel refuses to let any file grow beyond it
    done = 0
    async def one(n):
        nonlocal done
        step = JournalEntry(path="", seq=n, kind="model", fingerprint="f", outcome=bytes(9000))
        await run.journal.append("t", step)
        done += 1
    try:
        for first in range(0, 3000, 10):
            await asyncio.gather(*map(one, range(first, first + 10)))
    except StoreError as error:
        print(done, error)
    await asyncio.wait_for(run.aclose(), 30)
asyncio.run(main())
"""


@pytest.mark.parametrize("limit", [400_000, 1_500_000, 6_000_000])
async def test_a_write_that_the_kernel_refuses(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "run.db"
    done = ran(SMALL_DISK, path, limit)
    confirmed, _, message = done.stdout.partition(" ")
    assert done.stderr == "" and "run the same command again" in message and int(confirmed) > 10
    run = SqliteStore(path).run("r")
    await run.begin("w")
    assert len(await run.journal.entries("t")) >= int(confirmed)
    await run.journal.append("t", entry(5000))
    await run.aclose()
