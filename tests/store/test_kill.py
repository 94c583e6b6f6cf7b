"""kill -9 while it writes: whatever was confirmed is there, nothing is half there, and the next process goes on.

A killed process leaves its writes with the kernel, so this shows the order of commit and confirmation, not the fsync;
that commits are synchronous is checked in test_writer.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from siafu.errors import StoreBusy
from siafu.store.sqlite import SqliteStore

CHILD = Path(__file__).with_name("child.py")
pytestmark = pytest.mark.kill


@contextmanager
def child(path: Path, mode: str, crash_at: str = "") -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "SIAFU_CRASH_AT": crash_at}
    command = [sys.executable, str(CHILD), str(path), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def killed(path: Path, mode: str, after: int) -> list[list[str]]:
    """Kill a child once it has said `after` lines; everything that it said."""
    with child(path, mode) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(after)]
        process.kill()
        said += process.stdout.readlines()
        assert process.wait(20) == -signal.SIGKILL
    return [line.split() for line in said]


def crashed(path: Path, crash_at: str) -> list[list[str]]:
    """Let a child die at a crash point; everything that it said."""
    with child(path, "write", crash_at) as process:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    return [line.split() for line in said.splitlines()]


def check(path: Path, said: list[list[str]]) -> int:
    """Everything that was confirmed is there, and nothing is half there. Returns the attempts left in flight."""
    db = sqlite3.connect(path)
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        sessions = {str(n) for (n,) in db.execute("SELECT session FROM session")}
        results = dict(db.execute("SELECT key, value FROM item"))
        entries = dict(db.execute("SELECT task, outcome FROM journal"))
        attempts = dict(db.execute("SELECT attempt, outcome FROM attempt"))
    finally:
        db.close()
    for what, *keys in said:
        if what == "began":
            assert keys[0] in sessions
        elif what == "claimed":
            assert results.keys() >= set(keys)
        elif what == "opened":
            assert keys[0] in attempts
        elif what == "appended":
            assert entries[keys[0]] == body(keys[0])
            assert attempts[keys[0]] == "ok", "the settled line was queued before the entry"
        else:
            assert results[keys[0]] == body(keys[0])
    assert len(results) % 3 == 0, "three items are claimed in one transaction"
    assert all(entries[key] == body(key) for key in entries)
    assert all(value in (None, body(key)) for key, value in results.items())
    return sum(outcome is None for outcome in attempts.values())


def body(key: str) -> bytes:
    return f"{key} 답변 ".encode() * 50


async def test_twenty_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    path, chance = tmp_path / "run.db", random.Random(2026)
    said: list[list[str]] = []
    in_flight = 0
    for cycle in range(1, 21):
        said += killed(path, "write", chance.randint(2, 400))
        assert ["began", str(cycle)] in said
        in_flight += check(path, said)
    assert in_flight > 20, "the kills must hit work in flight"
    assert sum(what == "recorded" for what, *_ in said) > 200

    run = SqliteStore(path).run("r")
    state = await run.begin("w")
    await run.aclose()
    recorded = {key for what, key, *_ in said if what == "recorded"}
    assert state.session == 21
    assert state.finished >= len(recorded)
    assert check(path, said) == 0, "what was in flight is settled by the next session"


async def sessions(path: Path) -> int:
    run = SqliteStore(path).run("r")
    state = await run.begin("w")
    await run.aclose()
    return state.session


def test_kills_while_the_file_is_made_leave_nothing_in_the_way(tmp_path: Path) -> None:
    chance = random.Random(2026)
    found: set[str] = set()
    wait = 0.012  # seconds at most until the kill; follows what the machine needs now
    for n in range(100):
        folder = tmp_path / str(n)
        folder.mkdir()
        with child(folder / "run.db", "hold") as process:
            while not any(folder.iterdir()) and process.poll() is None:
                pass
            time.sleep(chance.random() * wait)
        left = {path.name for path in folder.iterdir()}
        wait *= 0.8 if "run.db" in left else 1.3
        found |= left
        assert asyncio.run(sessions(folder / "run.db")) in (1, 2)
        if n >= 10 and {"run.db.new", "run.db"} <= found:
            return
    pytest.fail(f"no kill hit the creation: {found}")


@pytest.mark.parametrize("point", ["before_commit", "after_commit", "after_open", "after_append", "after_record"])
@pytest.mark.parametrize("nth", [3, 40])
def test_a_kill_at_each_crash_point_loses_nothing(tmp_path: Path, point: str, nth: int) -> None:
    path = tmp_path / "run.db"
    said = crashed(path, f"{point}:{nth}")
    check(path, said)
    said += killed(path, "write", 50)
    check(path, said)


def test_a_kill_after_commit_keeps_what_nobody_was_told_of(tmp_path: Path) -> None:
    said = crashed(tmp_path / "run.db", "after_commit:2")  # the first is the session, the second the first claims
    assert said == [["began", "1"]]
    db = sqlite3.connect(tmp_path / "run.db")
    assert db.execute("SELECT COUNT(*) FROM item").fetchone()[0] >= 3
    db.close()


def test_a_kill_before_commit_keeps_nothing_of_the_batch(tmp_path: Path) -> None:
    assert crashed(tmp_path / "run.db", "before_commit:2") == [["began", "1"]]
    db = sqlite3.connect(tmp_path / "run.db")
    assert db.execute("SELECT COUNT(*) FROM item").fetchone()[0] == 0
    db.close()


def test_the_check_notices_a_writer_that_does_not_commit(tmp_path: Path) -> None:
    said = killed(tmp_path / "run.db", "forget", 100)
    assert ["began", "1"] in said and any(what == "recorded" for what, *_ in said)
    with pytest.raises(AssertionError):
        check(tmp_path / "run.db", said)


async def test_another_process_is_busy_with_its_pid_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run = SqliteStore(path).run("r")
    with child(path, "hold") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began 1\n"
        with pytest.raises(StoreBusy, match=f"process {process.pid}.*wait.*kill {process.pid}"):
            await run.begin("w")
        process.kill()
        process.wait(20)
    assert (await run.begin("w")).session == 2
    await run.aclose()


async def test_a_holder_is_named_to_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run = SqliteStore(path).run("r")
    await run.begin("w")
    command = [sys.executable, str(CHILD), str(path), "hold"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60)
    await run.aclose()
    assert f"StoreBusy: {path} is in use by process {os.getpid()}".encode() in done.stderr
