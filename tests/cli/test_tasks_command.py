"""`siafu submit`, `worker`, `tasks` and `dead`, from a file of requests to its answers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from siafu.cli.main import main
from siafu.store.database import Database
from siafu.store.task_schema import MIGRATIONS
from sim import Sim, running_sim
from support.commands import MODELS, environment, examples, until, write

Run = Callable[..., "tuple[int, str, str]"]
REQUESTS = examples(6)


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with running_sim(seed=3, latency="none") as sim:
        yield sim


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sim: Sim) -> Run:
    """Runs a command in an empty folder; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    for name, value in {**MODELS, "SIAFU_BASE_URL": sim.url}.items():
        monkeypatch.setenv(name, value)

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def told(run: Run, *words: str, code: int = 0) -> Any:
    """The JSON that a command prints."""
    ended, out, err = run(*words, "--json")
    assert ended == code, err
    return json.loads(out)


def database(folder: Path) -> Database:
    return Database(folder / ".siafu" / "tasks.db", MIGRATIONS, what="the test's tasks", schema="tasks")


def change(folder: Path, sql: str) -> None:
    db = database(folder)
    db.transact(lambda tx: tx.change(sql))
    db.close()


def test_from_a_file_of_requests_to_answers(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "문의.jsonl", REQUESTS)
    with (tmp_path / "문의.jsonl").open("ab") as file:
        file.write(b'{"id": "x"}\n')
    code, out, err = run("submit", "support", "문의.jsonl", "--run", "월요일")
    assert (code, out) == (1, "6 tasks accepted in the run 월요일\n")
    assert "line 7: the field 'customer'" in err
    again = told(run, "submit", "support", "문의.jsonl", "--run", "월요일", code=1)
    assert (again["accepted"], again["there"], [bad["line"] for bad in again["refused"]]) == (0, 6, [7])

    done = told(run, "worker", "--until-empty", "--slots", "4", "--poll", "0.05")
    assert (done["claimed"], done["fenced"], done["stopped"]) == (6, 0, None)
    code, out, _ = run("tasks", "watch", "--run", "월요일", "--json")
    ended = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and all(task["state"] == "succeeded" for task in ended)
    assert len(ended) == done["left"]["succeeded"]
    answers = {task["result"]["id"]: task["result"] for task in ended}
    assert all(answer["status"] == "ok" and answer["answer"] for answer in answers.values())
    listed = told(run, "tasks", "list")
    assert [task["once"] for task in listed] == [f"월요일/{request.id}" for request in REQUESTS]
    shown = told(run, "tasks", "show", ended[0]["id"][:20])
    assert shown["request"]["text"] in {request.text for request in REQUESTS}
    assert [step for step in shown["steps"] if step["kind"] == "model"]
    assert (tmp_path / ".siafu" / "worker-1.db").exists()


def test_one_id_with_another_text_is_told_and_not_added(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": "r1", "customer": "kim", "text": "주문 1001 어디쯤인가요?"}])
    write(tmp_path / "b.jsonl", [{"id": "r1", "customer": "kim", "text": "환불해 주세요"}])
    assert run("submit", "support", "a.jsonl")[0] == 0
    code, out, err = run("submit", "support", "b.jsonl")
    assert (code, out) == (1, "0 tasks accepted in the run support\n")
    assert "another request of this run, task t_" in err and "--run" in err
    assert run("submit", "support", "b.jsonl", "--run", "other")[0] == 0


def test_p5_a_submission_waits_for_room_in_the_backlog_or_ends(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "siafu.toml").write_text("[tasks]\nbacklog = 3\n", encoding="utf-8")
    write(tmp_path / "a.jsonl", [{"id": f"r{n}", "customer": "kim", "text": "주문 1001?"} for n in range(5)])
    code, out, err = run("submit", "support", "a.jsonl", "--no-wait")
    assert (code, out) == (1, "3 tasks accepted in the run support\n")
    assert "siafu: 3 tasks are open, of 3 that may be (tasks.backlog)" in err and "siafu worker" in err

    def ends_one(over: int, pace: float | None) -> float:
        change(
            tmp_path,
            "UPDATE task SET state = 'cancelled', ended_at = {now} "
            "WHERE id IN (SELECT id FROM task WHERE ended_at IS NULL LIMIT 1)",
        )
        return 0.2

    monkeypatch.setattr("siafu.store.task_backlog.wait", ends_one)
    again = told(run, "submit", "support", "a.jsonl")
    assert (again["accepted"], again["there"], again["waited"], again["full"]) == (2, 3, True, "")


@pytest.mark.kill
def test_p1_a_submission_that_was_killed_goes_on(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": f"r{n}", "customer": "kim", "text": "주문 1001?"} for n in range(250)])
    words = [sys.executable, "-m", "siafu", "submit", "support", "a.jsonl"]
    killed = subprocess.run(words, cwd=tmp_path, env=environment(SIAFU_CRASH_AT="task_accepted:2"), check=False)
    assert killed.returncode == -signal.SIGKILL
    again = told(run, "submit", "support", "a.jsonl")
    assert (again["accepted"], again["there"]) == (50, 200)
    listed = told(run, "tasks", "list", "--limit", "1000")
    assert [task["once"] for task in listed] == [f"support/r{n}" for n in range(250)]


def test_strict_takes_a_file_whole_or_not_at_all(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [REQUESTS[0], {"id": "", "customer": "kim", "text": "?"}])
    code, _, err = run("submit", "support", "a.jsonl", "--strict")
    assert code == 2 and "nothing was submitted" in err
    assert told(run, "tasks", "list") == []


def test_what_people_do_about_tasks(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": f"r{n}", "customer": f"c{n}", "text": "주문 1001?"} for n in range(5)])
    submitted = told(run, "submit", "support", "a.jsonl", "--deadline", "2h", "--priority", "1")
    ids = [task["id"] for task in submitted["tasks"]]
    assert told(run, "tasks", "cancel", ids[0]) == {"cancelled": 1, "stopping": 0}
    change(tmp_path, "UPDATE task SET state = 'dead_letter', ended_at = {now}, code = 'worker_lost', deliveries = 3 "
           f"WHERE id IN ('{ids[1]}', '{ids[2]}')")  # fmt: skip
    assert [task["id"] for task in told(run, "dead", "list")] == ids[1:3]
    assert told(run, "dead", "show", ids[1])["code"] == "worker_lost"
    code, out, _ = run("dead", "list")
    assert code == 0 and out.count("worker_lost") == 2
    assert told(run, "dead", "retry", ids[1]) == {"retried": 1}
    assert told(run, "dead", "retry", ids[0]) == {"retried": 0}  # it is not dead
    assert told(run, "dead", "retry", "--all") == {"retried": 1}
    assert told(run, "tasks", "retry", ids[0]) == {"retried": 1}
    assert {task["state"] for task in told(run, "tasks", "list")} == {"ready"}
    assert told(run, "tasks", "purge", "--customer", "c4") == {"purged": 1}
    assert told(run, "tasks", "cancel", "--run", "support") == {"cancelled": 4, "stopping": 0}
    code, out, _ = run("tasks", "watch")
    assert code == 1 and out.count("cancelled") >= 4
    assert told(run, "tasks", "purge", "--older", "1h") == {"purged": 0}
    assert told(run, "tasks", "purge", "--older", "0") == {"purged": 4}
    code, _, err = run("tasks", "list")
    assert code == 0 and "there is no such task" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tasks", "show", "t_12"), "siafu tasks list"),
        (("tasks", "cancel"), "say which tasks"),
        (("tasks", "cancel", "t_1", "--run", "x"), "say which tasks"),
        (("tasks", "purge"), "say what to remove"),
        (("tasks", "purge", "--older", "soon"), "is no duration"),
        (("dead", "retry"), "say which tasks"),
        (("submit", "support", "missing.jsonl"), "cannot read"),
        (("submit", "support", "-", "--run", " "), "--run is a name"),
        (("worker", "--keep", "never"), "is no duration"),
    ],
)
def test_wrong_use_is_told_with_the_right_one(run: Run, words: tuple[str, ...], said: str) -> None:
    code, out, err = run(*words)
    assert code == 2 and said in err and out == ""


def test_sec30_what_stands_in_tasks_cannot_steer_a_terminal(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": "r\x1b[2J1", "customer": "k\x1b]0;x\x07", "text": "\x1b[31m?"}])
    for words in (("submit", "support", "a.jsonl", "--run", "x\x1b[2J"), ("tasks", "list")):
        code, out, err = run(*words)
        assert code == 0 and "\x1b" not in out + err
    shown = run("tasks", "show", told(run, "tasks", "list")[0]["id"])
    assert "\x1b" not in shown[1]


@pytest.mark.kill
@pytest.mark.parametrize("signals", [1, 2])
def test_g8_a_stopped_worker_hands_back_what_it_holds(tmp_path: Path, signals: int) -> None:
    """The first signal gives running tasks a second, here; the second does not even wait for that."""
    write(tmp_path / "a.jsonl", REQUESTS)
    with running_sim(seed=3, latency="fixed:20s") as slow:
        more = environment(SIAFU_BASE_URL=slow.url)
        siafu = [sys.executable, "-m", "siafu"]
        submit = [*siafu, "submit", "support", "a.jsonl"]
        subprocess.run(submit, cwd=tmp_path, env=more, check=True, capture_output=True)
        words = ["worker", "--slots", "4", "--grace", "1" if signals == 1 else "60", "--json"]
        worker = subprocess.Popen(
            [*siafu, *words], cwd=tmp_path, env=more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            until(lambda: slow.stats()["in_flight"] == 4, "the worker asked nothing")
            worker.send_signal(signal.SIGTERM)
            if signals == 2:
                worker.send_signal(signal.SIGINT)  # of another number, as two equal ones at once are one
            out, err = worker.communicate(timeout=30)
        finally:
            worker.kill()
            worker.wait()
    assert worker.returncode == signals - 1, err
    assert json.loads(out)["left"] == {"ready": 4}
    db = database(tmp_path)
    rows = db.transact(lambda tx: tx.rows("SELECT state, deliveries FROM task ORDER BY created_at"))
    db.close()
    assert [(row["state"], row["deliveries"]) for row in rows] == [("ready", 0)] * 6
