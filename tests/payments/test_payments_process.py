"""The payment simulator as a process: kill -9, a full disk, its parent, its command line."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from here import command
from paysim import Payments, running_payments
from processes import alive, wait_until
from sim import SRC

from .asking import RESET, SILENCE, Json, body, refund

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SRC)}


def siafu(*words: str) -> subprocess.CompletedProcess[str]:
    return command(Path(), *words, environment=ENVIRONMENT)


def wrongs(answers: list[tuple[str, Any]], effects: list[Json], reported: list[Json]) -> list[str]:
    """What a ledger's promise was broken by. answers: key and the refund answered. effects: as the file has them."""
    ids = {effect["id"] for effect in reported}
    found = [f"{key} was answered and is not reported" for key, paid in answers if paid["id"] not in ids]
    found += [f"{effect['id']} is on disk and not reported" for effect in effects if effect["id"] not in ids]
    keys = [effect["key"] for effect in reported]
    return found + [f"{key} was paid twice" for key in set(keys) if keys.count(key) > 1]


def on_disk(ledger: Path) -> list[Json]:
    """The effects in the file, read without the simulator's own code."""
    whole = ledger.read_bytes().rpartition(b"\n")[0]
    return [line for line in map(json.loads, whole.split(b"\n")) if line["line"] == "paid"]


async def until_killed(payments: Payments, name: str, after: int, delay: float) -> tuple[dict[str, Any], list[str]]:
    """Eight callers ask for refunds until the simulator is killed, `delay` seconds after `after` answers.

    Returns what was answered, by key, and the keys whose requests were cut off.
    """
    numbers, answered, cut = itertools.count(), {}, []
    loop = asyncio.get_running_loop()

    async def ask_on() -> None:
        while True:
            key = f"{name}-{next(numbers)}"
            status, paid, _ = await refund(payments, body(key), key=key)
            if status != 200:
                cut.append(key)
                return
            answered[key] = paid
            if len(answered) == after:
                loop.call_later(delay, os.kill, payments.pid, signal.SIGKILL)

    await asyncio.gather(*(ask_on() for _ in range(8)))
    return answered, cut


@pytest.mark.kill
async def test_what_was_answered_or_written_survives_kill_9(tmp_path: Path) -> None:
    ledger, chance = tmp_path / "장부.jsonl", random.Random(3)
    answers: list[tuple[str, Any]] = []
    for round_ in range(6):
        with running_payments(ledger, slow=round_ % 3) as payments:
            answered, cut = await until_killed(payments, f"k-{round_}", chance.randint(5, 30), chance.uniform(0, 0.01))
            assert len(cut) == 8  # the kill met work in flight
        answers += answered.items()
        effects = on_disk(ledger)
        with ledger.open("ab") as file:
            file.write(b'{"line":"paid","n":9999,"id":"re_to')  # as if the kill had torn a line
        with running_payments(ledger) as payments:
            assert wrongs(answers, effects, payments.effects()) == []
            for key in [*answered, *cut]:  # every caller asks again with its key: the same answer, and one effect
                status, paid, _ = await refund(payments, body(key), key=key)
                assert status == 200 and paid == answered.get(key, paid)
                answers += [(key, paid)] if key in cut else []
            reported = payments.effects()
            assert wrongs(answers, effects, reported) == []
            assert len(reported) == len(answers) and payments.stats()["duplicates"] == 0


def test_the_check_of_that_can_fail() -> None:
    one, two = {"id": "re_1", "key": "k-1"}, {"id": "re_2", "key": "k-1"}
    assert wrongs([("k-1", one)], [one], [one]) == []
    assert wrongs([("k-1", one)], [], []) == ["k-1 was answered and is not reported"]
    assert wrongs([], [one], []) == ["re_1 is on disk and not reported"]
    assert wrongs([], [], [one, two]) == ["k-1 was paid twice"]


async def test_declines_attempts_and_the_open_end_survive_too(tmp_path: Path) -> None:
    with running_payments(tmp_path / "l") as payments:
        payments.set_faults({"kind": "decline"}, {"kind": "hang_before"})
        assert (await refund(payments, key="k-1"))[0] == 402
        assert (await refund(payments, key="k-2", seconds=0.5))[0] == SILENCE
        payments.set_faults({"kind": "slow", "wait": 60})
        cut = asyncio.create_task(refund(payments, key="k-3"))
        assert await asyncio.to_thread(wait_until, lambda: len(payments.requests()) == 3)
        os.kill(payments.pid, signal.SIGKILL)
        assert (await cut)[0] == RESET
    with running_payments(tmp_path / "l") as payments:
        assert [request["status"] for request in payments.requests()] == [402, 0, None]
        assert payments.stats()["unanswered"] == 1 and payments.stats()["effects"] == 0
        status, _, headers = await refund(payments, key="k-1")
        assert status == 402 and headers["Idempotent-Replayed"] == "true"
        assert (await refund(payments, key="k-3"))[0] == 200  # was never begun, so it is free
        assert [request["attempt"] for request in payments.requests()] == [1, 2, 3, 4, 5]


async def test_a_full_disk_pays_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    ledger = tmp_path / "l"
    with running_payments(ledger) as payments:
        assert (await refund(payments, body("r-1")))[0] == 200
        size = ledger.stat().st_size
        for room in (0, 20, 600):  # not even the request; half of it; the request, and half of the effect
            limit = ledger.stat().st_size + room
            resource.prlimit(payments.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            status, answer, _ = await refund(payments, body(f"r-{room}", metadata={"x": "y" * 200}))
            assert status == 500 and answer["error"]["code"] == "ledger" and "nothing was paid" in str(answer)
            assert [effect["reference"] for effect in payments.effects()] == ["r-1"]
        resource.prlimit(payments.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert (await refund(payments, body("r-2")))[0] == 200 and ledger.stat().st_size > size
    with running_payments(ledger) as payments:
        assert [effect["reference"] for effect in payments.effects()] == ["r-1", "r-2"]


def test_ready_file_plain_line_and_what_is_shown(tmp_path: Path) -> None:
    ready, ledger = tmp_path / "준비.json", tmp_path / "장부.jsonl"
    words = [sys.executable, "-m", "siafu", "payments", "serve", "--ledger", str(ledger), "--ready-file", str(ready)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True) as process:
        assert process.stdout
        try:
            line = process.stdout.readline()
            found = json.loads(ready.read_text(encoding="utf-8"))
            assert line.startswith(found["url"]) and "SIMULATED" in line and "whatever it is told" in line
            assert found["pid"] == process.pid and found["control"] == found["url"] + "/_payments"
            payments = Payments(found["url"], process.pid)
            for _ in range(2):
                assert asyncio.run(refund(payments, body("환불-1\x1b[2J")))[0] == 200
            done = siafu("payments", "show", str(ledger))  # while it is being served
            assert done.returncode == 0 and "환불-1" in done.stdout and "\x1b" not in done.stdout
            assert (
                done.stdout.splitlines()[-1]
                == "2 refunds paid, 1 of them under a reference paid before; paid back: 1400 KRW"
            )
            busy = siafu("payments", "serve", "--ledger", str(ledger))
            assert busy.returncode == 2 and "another process serves the ledger" in busy.stderr
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    told = json.loads(siafu("payments", "show", str(ledger), "--json").stdout)
    assert told["stats"]["duplicates"] == 1 and len(told["effects"]) == 2


def test_wrong_use_says_what_to_do(tmp_path: Path) -> None:
    ledger = str(tmp_path / "l")
    for words, said in (
        (["serve"], "--ledger"),
        (["serve", "--ledger", str(tmp_path)], "choose another"),
        (["serve", "--ledger", ledger, "--mode", "oops"], "neither"),
        (["serve", "--ledger", ledger, "--faults", "oops"], "lost:5%"),
        (["serve", "--ledger", ledger, "--faults", "none.json"], "cannot read"),
        (["show", str(tmp_path / "none")], "cannot read"),
    ):
        done = siafu("payments", *words)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with running_payments(tmp_path / "l", parent_pid=parent.pid) as payments:
        assert alive(payments.pid)
        parent.kill()
        parent.wait()
        assert wait_until(lambda: not alive(payments.pid))
    assert parent.stdin
    parent.stdin.close()
