"""`siafu db`: which databases there are, bringing them up to date, and copies that can be restored."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from services import PASSWORD, Postgres, new_database
from siafu.cli.main import main
from siafu.config import databases
from siafu.config.databases import kept
from siafu.config.settings import Settings
from siafu.store import schema, upkeep
from siafu.store.database import Database
from siafu.store.lock import Lock
from siafu.store.schema import MIGRATIONS, open_file
from siafu.store.task_schema import MIGRATIONS as TASKS
from support.commands import until, write

Run = Callable[..., "tuple[int, str, str]"]
KOREAN = [{"id": f"r{n}", "customer": "김", "text": f"주문 {n}?"} for n in range(3)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in a folder of its own; returns its exit code, stdout and stderr."""
    (tmp_path / "일").mkdir()
    monkeypatch.chdir(tmp_path / "일")
    write(tmp_path / "일" / "a.jsonl", KOREAN)

    def call(*words: str, home: str = ".siafu") -> tuple[int, str, str]:
        monkeypatch.setenv("SIAFU_HOME", home)
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def lines(run: Run, *words: str, code: int = 0, **more: str) -> list[dict[str, Any]]:
    ended, out, err = run(*words, "--json", **more)
    assert ended == code, err
    return [json.loads(line) for line in out.splitlines()]


def older(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal of the version before this one."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", MIGRATIONS[:-1])
        open_file(path).close()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[threading.Thread]:
    """Writes pairs of rows into the database of tasks all the time, both or none of a pair."""
    over = threading.Event()

    def write_on() -> None:
        database = Database(tmp_path / "일" / ".siafu" / "tasks.db", TASKS, what="it", schema="tasks")
        sql = "INSERT INTO task_turn (kind, priority, tenant, last) VALUES (:kind, 1, '', 1)"
        for number in range(100_000):
            if over.is_set():
                break
            database.transact(lambda tx, n=number: [tx.change(sql, kind=f"{side}{n}") for side in "ab"])  # type: ignore[misc]
        database.close()

    thread = threading.Thread(target=write_on)
    yield thread
    over.set()
    thread.join()


def test_a_copy_that_is_made_in_use_is_whole_and_can_be_restored(
    run: Run, tmp_path: Path, writer: threading.Thread
) -> None:
    assert run("submit", "support", "a.jsonl")[0] == 0
    before = lines(run, "tasks", "list")
    older_run = tmp_path / "일" / ".siafu" / "runs" / "실행.db"
    older_run.parent.mkdir()
    open_file(older_run).close()
    writer.start()
    with closing(sqlite3.connect(tmp_path / "일" / ".siafu" / "tasks.db")) as db:
        until(lambda: db.execute("SELECT COUNT(*) FROM task_turn").fetchone()[0] > 10, "nothing is written")
    written = lines(run, "db", "backup", "사본")
    assert [Path(each["file"]).name for each in written] == ["실행.db", "tasks.db"]
    assert all(each["bytes"] > 0 for each in written)
    with closing(sqlite3.connect(tmp_path / "일" / "사본" / "tasks.db")) as copy:
        kinds = {kind for (kind,) in copy.execute("SELECT kind FROM task_turn WHERE kind GLOB '[ab][0-9]*'")}
    assert len(kinds) >= 10
    assert {kind[1:] for kind in kinds if kind[0] == "a"} == {kind[1:] for kind in kinds if kind[0] == "b"}
    folder = tmp_path / "일" / "사본"
    assert [path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".db"] == []
    assert folder.stat().st_mode & 0o77 == 0 and (folder / "tasks.db").stat().st_mode & 0o77 == 0
    shutil.copytree(folder, tmp_path / "new home")
    assert lines(run, "tasks", "list", home=str(tmp_path / "new home")) == before


def test_the_bytes_of_files_and_batches_are_copied_and_what_ends_meanwhile_is_passed_over(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("submit", "support", "a.jsonl")[0] == 0
    home = tmp_path / "일" / ".siafu"
    for name in ("files/file-1", "files/file-2.part", "batches/batch_1/input.jsonl"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(name.encode())
    (home / "files" / "file-3").symlink_to("/etc/passwd")
    journal = home / "batches" / "batch_1" / "batch_1.db"
    open_file(journal).close()

    def ending(source: Path, target: Path) -> None:
        if source == journal:
            source.unlink()
        upkeep.copy_file(source, target)

    monkeypatch.setattr(databases, "copy_file", ending)
    written = {Path(each["file"]).name for each in lines(run, "db", "backup", "사본")}
    assert written == {"tasks.db", "file-1", "input.jsonl"}
    copied = tmp_path / "일" / "사본" / "files" / "file-1"
    assert (copied.read_bytes(), copied.stat().st_mode & 0o77) == (b"files/file-1", 0)


def test_files_outside_the_home_are_copied_too_and_none_takes_the_place_of_another(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("submit", "support", "a.jsonl")
    for name, folder in (("SIAFU_DATABASE_URL", "a"), ("SIAFU_SHOP_DATABASE_URL", "b")):
        monkeypatch.setenv(name, str(tmp_path / folder / "tasks.db"))
    run("submit", "support", "a.jsonl", "--run", "other")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    written = lines(run, "db", "backup", "사본")
    inside = [Path(each["file"]).relative_to(tmp_path / "일" / "사본").as_posix() for each in written]
    assert inside == ["tasks.db", "elsewhere/tasks.db", "elsewhere/elsewhere/tasks.db"]


def test_nothing_is_overwritten_and_half_a_copy_is_none(run: Run, tmp_path: Path) -> None:
    run("submit", "support", "a.jsonl")
    (tmp_path / "일" / "사본").mkdir()
    code, out, err = run("db", "backup", "사본")
    assert (code, out) == (1, "") and "nothing is overwritten" in err
    with (tmp_path / "일" / ".siafu" / "tasks.db").open("r+b") as file:  # a page in its middle
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 4)
    code, out, err = run("db", "backup", "other")
    assert (code, out) == (1, "") and ("not whole" in err or "damaged" in err)
    assert sorted(path.name for path in (tmp_path / "일").iterdir()) == [".siafu", "a.jsonl", "사본"]
    code, _, err = run("db", "backup", ".siafu/사본")
    assert code == 2 and "within SIAFU_HOME" in err


def test_without_anything_to_copy_it_says_so(run: Run) -> None:
    code, out, err = run("db", "backup", "사본")
    assert (code, out) == (1, "") and "nothing to back up" in err and not Path("사본").exists()


def test_what_is_older_is_seen_and_brought_up_to_date(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "일" / ".siafu"
    Database(home / "tasks.db", TASKS[:1], what="it", schema="tasks").close()
    for name in ("worker-1.db", "worker-2.db"):
        older(home / name, monkeypatch)
    states = {each["name"]: each["state"] for each in lines(run, "db", "status")}
    assert (states["tasks"], states["effects"], states["worker-1"]) == ("older", "new", "older")
    busy = Lock(home / "worker-2.db")
    try:
        states = {each["name"]: each["state"] for each in lines(run, "db", "upgrade")}
    finally:
        busy.release()
    assert (states["tasks"], states["effects"]) == ("current", "new")
    assert (states["worker-1"], states["worker-2"]) == ("current", "in use")
    code, _, err = run("db", "upgrade")
    steps = f"worker-2: {len(MIGRATIONS) - 1} -> {len(MIGRATIONS)}"
    assert code == 0 and steps in err and "1 brought up to date" in err
    assert run("db", "upgrade")[2].endswith("siafu: all are up to date\n")


def test_what_a_newer_siafu_wrote_is_told_and_left(run: Run, tmp_path: Path) -> None:
    run("submit", "support", "a.jsonl")
    file = tmp_path / "일" / ".siafu" / "tasks.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE siafu_schema SET version = 99")
        db.commit()
    code, out, err = run("db", "status")
    assert code == 1 and "newer version: update siafu" in err and "effects" in out
    assert run("db", "upgrade")[0] == 1


def test_in_postgresql(
    run: Run, tmp_path: Path, postgres: Postgres, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIAFU_DATABASE_URL", postgres_url)
    assert {each["state"] for each in lines(run, "db", "status")} == {"new"}
    states = {each["name"]: each["state"] for each in lines(run, "db", "upgrade")}
    on_this_machine = {states.pop(name) for name in ("shop", "shop's money", "batches")}
    assert on_this_machine == {"new"} and set(states.values()) == {"current"}
    assert run("submit", "support", "a.jsonl")[0] == 0
    before = lines(run, "tasks", "list")
    (written,) = lines(run, "db", "backup", "사본")
    assert Path(written["file"]).name == "siafu.dump"
    with new_database(postgres) as name:
        restored, address = postgres.url(name), ["-h", "127.0.0.1", "-p", str(postgres.port), "-U", "tester"]
        words = ["pg_restore", "--no-owner", *address, "-d", name, written["file"]]
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        subprocess.run(words, env=environment, check=True, capture_output=True)
        monkeypatch.setenv("SIAFU_DATABASE_URL", restored)
        assert lines(run, "tasks", "list") == before
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SIAFU_DATABASE_URL", postgres_url)
    code, out, err = run("db", "backup", "다른 사본")
    assert (code, out) == (2, "") and "pg_dump is not on the PATH" in err and "postgresql-client" in err
    assert not list((tmp_path / "일").glob("다른 사본*"))


def test_no_password_is_told_or_stands_on_a_command_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIAFU_DATABASE_URL", "postgresql://siafu:geheim@127.0.0.1:9/x?connect_timeout=1")
    seen: list[Any] = []

    def failing(words: list[str], **more: Any) -> Any:
        seen.append((words, more["env"]["PGPASSWORD"]))
        return subprocess.CompletedProcess(words, 1, "", "connection refused")

    monkeypatch.setattr("siafu.store.upkeep.subprocess.run", failing)
    monkeypatch.setattr("siafu.store.upkeep.shutil.which", lambda name: name)
    code, out, err = run("db", "backup", "사본")
    assert code == 1 and "pg_dump failed" in err and "geheim" not in out + err
    ((words, password),) = seen
    assert password == "geheim" and "geheim" not in " ".join(words)
    assert "--dbname=postgresql://siafu@127.0.0.1:9/x?connect_timeout=1" in words
    code, out, err = run("db", "status")
    assert code == 1 and "geheim" not in out + err and err.count("cannot be reached") == 1


async def test_every_schema_that_the_program_makes_is_known_here(tmp_path: Path) -> None:
    """The catalogue is complete: whatever opens a database of ours is in it."""
    from siafu.apps.support.shop.database import ShopDatabase  # noqa: PLC0415
    from siafu.config.batches import batch_desk  # noqa: PLC0415
    from siafu.config.canary import canaries  # noqa: PLC0415
    from siafu.config.client_keys import client_keys  # noqa: PLC0415
    from siafu.config.effects import open_effects  # noqa: PLC0415
    from siafu.config.tasks import task_store  # noqa: PLC0415
    from siafu.config.threads import support_threads  # noqa: PLC0415
    from siafu.gateway.scripted import Scripted  # noqa: PLC0415
    from siafu.pace.clock import SystemClock  # noqa: PLC0415

    everything = tmp_path / "all.db"
    settings = Settings.model_validate({"home": str(tmp_path), "database_url": str(everything)})
    open_effects(settings).close()
    ShopDatabase(everything).close()
    for opened in (task_store(settings), support_threads(settings), client_keys(settings), canaries(everything)):
        async with opened:
            pass
    with closing(sqlite3.connect(everything)) as db:
        made = dict(db.execute("SELECT name, version FROM siafu_schema"))
    known = {one.schema: len(one.steps) for one in kept(settings, str(everything))}
    assert made == {name: known[name] for name in made} and set(known) - set(made) == {"budgets", "batches"}
    async with batch_desk(settings, Scripted([]), SystemClock()):
        (files,) = (one for one in kept(settings, None) if one.schema == "batches")
    with closing(sqlite3.connect(files.place)) as db:  # in the home folder, whatever the settings say
        assert dict(db.execute("SELECT name, version FROM siafu_schema")) == {"batches": len(files.steps)}
