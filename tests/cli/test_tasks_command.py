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
from siafu.cli.waits import waits_text
from siafu.cli.worker import _next_step, _show
from siafu.store.database import Database
from siafu.store.task_records import BOUND
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


def lines(run: Run, *words: str, code: int = 0) -> list[Any]:
    """What a command prints as JSON: one object a line."""
    ended, out, err = run(*words, "--json")
    assert ended == code, err
    found = [json.loads(line) for line in out.splitlines()]
    assert all(isinstance(each, dict) for each in found)
    return found


def told(run: Run, *words: str, code: int = 0) -> Any:
    """The one object that a command prints."""
    (found,) = lines(run, *words, code=code)
    return found


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
    assert (done["tasks"], done["claimed"], done["fenced"], done["stopped"]) == (6, 6, 0, None)
    ended = lines(run, "tasks", "watch", "--run", "월요일")
    assert all(task["state"] == "succeeded" for task in ended)
    assert len(ended) == done["left"]["succeeded"]
    answers = {task["result"]["id"]: task["result"] for task in ended}
    assert all(answer["status"] == "ok" and answer["answer"] for answer in answers.values())
    listed = lines(run, "tasks", "list")
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
    again = told(run, "submit", "support", "a.jsonl", "--no-wait", code=1)
    assert (again["accepted"], again["there"], again["waited"]) == (0, 3, False)
    write(tmp_path / "rest.jsonl", [{"id": f"r{n}", "customer": "kim", "text": "주문 1001?"} for n in (3, 4)])

    def ends_one(over: int, pace: float | None) -> float:
        change(
            tmp_path,
            "UPDATE task SET state = 'cancelled', ended_at = {now} "
            "WHERE id IN (SELECT id FROM task WHERE ended_at IS NULL LIMIT 1)",
        )
        return 0.2

    monkeypatch.setattr("siafu.store.task_backlog.wait", ends_one)
    again = told(run, "submit", "support", "rest.jsonl")
    assert (again["accepted"], again["there"], again["waited"], again["full"]) == (2, 0, True, "")


@pytest.mark.kill
def test_p1_a_submission_that_was_killed_goes_on(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": f"r{n}", "customer": "kim", "text": "주문 1001?"} for n in range(250)])
    words = [sys.executable, "-m", "siafu", "submit", "support", "a.jsonl"]
    killed = subprocess.run(words, cwd=tmp_path, env=environment(SIAFU_CRASH_AT="task_accepted:2"), check=False)
    assert killed.returncode == -signal.SIGKILL
    again = told(run, "submit", "support", "a.jsonl")
    assert (again["accepted"], again["there"]) == (50, 200)
    listed = lines(run, "tasks", "list", "--limit", "1000")
    assert [task["once"] for task in listed] == [f"support/r{n}" for n in range(250)]


def test_strict_takes_a_file_whole_or_not_at_all(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [REQUESTS[0], {"id": "", "customer": "kim", "text": "?"}])
    code, _, err = run("submit", "support", "a.jsonl", "--strict")
    assert code == 2 and "nothing was submitted" in err
    kim = {"customer": "kim", "text": "?"}
    rows = [kim | {"id": "a"}, kim | {"id": "b", "needs": ["a"]}, kim | {"id": "a", "text": "!"}]
    write(tmp_path / "b.jsonl", [*rows, kim | {"id": "c", "needs": ["nobody"]}])
    code, _, err = run("submit", "support", "b.jsonl", "--strict")
    assert code == 2 and "2 lines cannot be used" in err and "line 3: the id 'a'" in err and "line 4: it needs" in err
    assert lines(run, "tasks", "list") == []
    write(tmp_path / "c.jsonl", rows[:2])
    assert [told(run, "submit", "support", "c.jsonl", "--strict")["accepted"] for _ in range(2)] == [2, 0]
    write(tmp_path / "d.jsonl", [kim | {"id": "d"}, rows[2]])
    assert run("submit", "support", "d.jsonl", "--strict")[0] == 2
    assert len(lines(run, "tasks", "list")) == 2
    told(run, "tasks", "cancel", "--run", "support")
    write(tmp_path / "e.jsonl", [*rows[:2], kim | {"id": "e", "needs": ["a"]}])  # "b" was there before "a" failed
    code, _, err = run("submit", "support", "e.jsonl", "--strict")
    assert code == 2 and "1 line cannot be used" in err and "line 3: it needs the task" in err
    write(tmp_path / "f.jsonl", [kim | {"id": "f"}])
    code, _, err = run("submit", "support", "f.jsonl", "--strict", "--needs", "a")
    assert code == 2 and "which did not succeed" in err
    told(run, "tasks", "retry", "support/a")
    assert told(run, "submit", "support", "e.jsonl", "--strict")["accepted"] == 1


def test_what_people_do_about_tasks(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": f"r{n}", "customer": f"c{n}", "text": "주문 1001?"} for n in range(5)])
    submitted = told(run, "submit", "support", "a.jsonl", "--deadline", "2h", "--priority", "1")
    ids = [task["id"] for task in submitted["tasks"]]
    assert told(run, "tasks", "cancel", ids[0]) == {"cancelled": 1, "stopping": 0, "left": []}
    left = [{"id": ids[0], "state": "cancelled"}]
    assert told(run, "tasks", "cancel", ids[0], code=1) == {"cancelled": 0, "stopping": 0, "left": left}
    assert f"{ids[0][:12]} has ended already: cancelled" in run("tasks", "cancel", ids[0])[2]
    change(tmp_path, "UPDATE task SET state = 'dead_letter', ended_at = {now}, code = 'worker_lost', deliveries = 3 "
           f"WHERE id IN ('{ids[1]}', '{ids[2]}')")  # fmt: skip
    assert [task["id"] for task in lines(run, "dead", "list")] == ids[1:3]
    assert told(run, "dead", "show", ids[1])["code"] == "worker_lost"
    code, out, _ = run("dead", "list")
    assert code == 0 and out.count("worker_lost") == 2
    assert told(run, "dead", "retry", ids[1])["retried"] == 1
    assert told(run, "dead", "retry", ids[0], code=1) == {"retried": 0, "need_failed": 0, "left": left}  # not dead
    assert told(run, "dead", "retry", "--all")["retried"] == 1
    assert told(run, "tasks", "retry", ids[0])["retried"] == 1
    code, out, err = run("tasks", "retry", ids[0])
    assert (code, out) == (1, "0 begin again\n") and f"{ids[0][:12]} stays as it is: ready" in err
    assert {task["state"] for task in lines(run, "tasks", "list")} == {"ready"}
    assert told(run, "tasks", "purge", "--customer", "c4") == {"purged": 1, "other_tenants": {}}
    for _ in range(2):  # of a whole run those are meant that are open
        found = told(run, "tasks", "cancel", "--run", "support")
    assert found == {"cancelled": 0, "stopping": 0, "left": []}
    code, out, _ = run("tasks", "watch")
    assert code == 1 and out.count("cancelled") >= 4
    for older in ("1h", "90d"):
        assert told(run, "tasks", "purge", "--older", older) == {"purged": 0}
    assert told(run, "tasks", "purge", "--older", "0s") == {"purged": 4}
    assert "there is no such task" in run("tasks", "watch", "--run", "x")[2]
    assert run("tasks", "list") == (0, "", "siafu: no task is there: siafu submit support FILE\n")
    assert run("tasks", "list", "--run", "x") == (0, "", "siafu: no such task\n")


def test_lines_that_need_others_begin_when_these_have_succeeded(run: Run, tmp_path: Path) -> None:
    rows = [{"id": id, "customer": "kim", "text": f"주문 1001? {id}"} for id in ("a", "b", "c", "d", "e")]
    for row, needs in zip(rows, ([], ["a"], ["a", "b", "b"], ["later"], "a"), strict=True):
        row["needs"] = needs  # type: ignore[assignment]
    write(tmp_path / "a.jsonl", rows)
    code, out, err = run("submit", "support", "a.jsonl")
    assert (code, out) == (1, "3 tasks accepted in the run support\n")
    assert "line 4: it needs the line 'later', which was not submitted" in err and "line 5: the field 'needs'" in err
    again = told(run, "submit", "support", "a.jsonl", code=1)
    assert (again["accepted"], again["there"], [bad["line"] for bad in again["refused"]]) == (0, 3, [4, 5])
    first = lines(run, "tasks", "list")[0]["id"]
    assert told(run, "tasks", "show", "b")["needs"] == [{"id": first, "state": "ready"}]
    assert f"{first} (ready)" in run("tasks", "show", "b")[1] and "needs 2 more tasks" in run("tasks", "list")[1]
    assert [task["state"] for task in lines(run, "tasks", "list")] == ["ready", "blocked", "blocked"]
    write(tmp_path / "b.jsonl", [{"id": "z", "customer": "kim", "text": "끝?"}])
    assert told(run, "submit", "support", "b.jsonl", "--needs", first[:10])["accepted"] == 1
    done = told(run, "worker", "--until-empty", "--poll", "0.05")
    assert done["left"] == {"succeeded": 4}
    ended = sorted(lines(run, "tasks", "list"), key=lambda task: task["ended_at"])
    assert next(task["once"] for task in ended) == "support/a"
    assert [task["once"] for task in ended if task["once"] in ("support/b", "support/c")] == ["support/b", "support/c"]


def test_what_needs_a_task_that_ended_badly_is_cancelled_and_says_why(run: Run, tmp_path: Path) -> None:
    rows = [{"id": "a", "customer": "kim", "text": "?"}, {"id": "b", "customer": "kim", "text": "?", "needs": ["a"]}]
    write(tmp_path / "a.jsonl", rows)
    ids = [task["id"] for task in told(run, "submit", "support", "a.jsonl")["tasks"]]
    assert told(run, "tasks", "cancel", ids[0])["cancelled"] == 1
    code, out, _ = run("tasks", "list")
    assert code == 0 and f"it needs the task {ids[0]}" in out
    code, _, err = run("tasks", "retry", ids[1])
    assert code == 1 and "retry those first" in err
    write(tmp_path / "c.jsonl", [{"id": "c", "customer": "kim", "text": "?", "needs": ["a"]}])
    code, _, err = run("submit", "support", "c.jsonl")
    assert code == 1 and f"siafu tasks retry {ids[0]}" in err
    assert told(run, "tasks", "retry", "--run", "support")["retried"] == 2
    _, out, _ = run("tasks", "list")  # what was is not told as if it still were
    assert "before: cancelled" in out and "needs 1 more task:" in out and "need_failed" not in out


def test_a_customer_of_the_same_name_at_another_tenant_stays_and_is_named(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": "a", "customer": "김", "text": "?"}])
    for more in ([], ["--tenant", "가게"], ["--tenant", "b"]):
        told(run, "submit", "support", "a.jsonl", *more)
    code, out, err = run("tasks", "purge", "--customer", "김")
    assert (code, out) == (
        0,
        "1 purged\n",
    ) and "1 task of a customer of this name at another tenant: --tenant 가게" in err
    assert told(run, "tasks", "purge", "--customer", "김", "--tenant", "b") == {"purged": 1, "other_tenants": {}}
    assert [task["tenant"] for task in lines(run, "tasks", "list")] == ["가게"]


def test_a_name_is_told_without_what_its_key_holds_besides(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": "a/b", "customer": "kim", "text": "?"}])
    told(run, "submit", "support", "a.jsonl", "--run", "6월/1")
    change(tmp_path, f"UPDATE task SET once = once || '{BOUND}kim'")  # as it is submitted for the customer of a key
    told(run, "tasks", "cancel", "a/b")
    assert run("tasks", "watch")[1].endswith("  cancelled  6월/1/a/b  cancelled\n")
    assert told(run, "tasks", "show", "a/b")["name"] == "a/b"
    shown = run("tasks", "show", "a/b")[1]
    assert "name:              a/b\n" in shown and "once:" not in shown


def test_json_is_one_object_a_line_however_it_was_kept(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", REQUESTS[:2])
    id = told(run, "submit", "support", "a.jsonl")["tasks"][0]["id"]
    done = "state = 'succeeded', result = '[\n1\n]', ended_at = {now}"
    change(tmp_path, f"UPDATE task SET payload = '[\n\"가\"\n]', {done} WHERE id = '{id}'")
    assert told(run, "tasks", "show", id)["request"] == ["가"]
    assert [task["result"] for task in lines(run, "tasks", "list")] == [[1], None]


def test_watching_without_a_worker_says_so(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", REQUESTS[:1])
    assert told(run, "submit", "support", "a.jsonl", "--deadline", "1s")["accepted"] == 1
    words = [sys.executable, "-m", "siafu", "tasks", "watch", "--every", "0.05"]
    watching = subprocess.Popen(words, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        assert watching.stderr is not None
        assert "no worker is alive, so nothing goes on; to start one: siafu worker" in watching.stderr.readline()
    finally:
        watching.kill()
        watching.communicate()


def test_what_waits_is_named_with_what_to_do_and_is_watched_while_a_worker_is_there(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", REQUESTS[:3])
    told(run, "submit", "support", "a.jsonl")
    wait = "UPDATE task SET state = 'waiting', ready_at = {now} + 99, waits_for = "
    change(tmp_path, wait + "'pending_approval'")
    code, _, err = run("tasks", "watch")
    assert code == 0 and err.startswith("siafu: left: 3 waiting\nsiafu: 3 tasks wait: 3 for pending_approval; to")
    change(tmp_path, wait + "'payments_unavailable'")
    code, _, err = run("tasks", "watch")  # nobody is there to see them come back
    assert code == 0 and "for payments: siafu payments serve" in err
    change(tmp_path, "INSERT INTO worker VALUES ('w', 'h', 1, '', 9, 9, 9, 0, {now}, {now} + 99, 0)")
    words = [sys.executable, "-m", "siafu", "tasks", "watch", "--every", "0.05"]
    watching = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert watching.stdout is not None
        ended = "UPDATE task SET state = 'cancelled', ended_at = {now} WHERE id = (SELECT min(id) FROM task)"
        change(tmp_path, ended)
        assert "cancelled" in watching.stdout.readline()
        assert watching.poll() is None
        change(tmp_path, "DELETE FROM worker")
        assert watching.wait(30) == 1
    finally:
        watching.kill()
        watching.communicate()


def test_a_task_is_found_by_the_name_of_its_line(run: Run, tmp_path: Path) -> None:
    rows = [{"id": id, "customer": "kim", "text": "주문 1001?"} for id in ("r1", "R1", "r_1", "rx1", "문의/1", "r11")]
    write(tmp_path / "a.jsonl", rows)
    told(run, "submit", "support", "a.jsonl")
    told(run, "submit", "support", "a.jsonl", "--run", "6월/월요일")
    code, _, err = run("tasks", "show", "r1")
    assert code == 2 and "several tasks are meant by 'r1'" in err and "RUN/NAME" in err
    for named in ("r1", "r_1", "문의/1"):
        for of in ("support", "6월/월요일"):
            shown = told(run, "tasks", "show", f"{of}/{named}")
            assert (shown["run"], shown["request"]["id"]) == (of, named)
    assert told(run, "tasks", "cancel", "--run", "6월/월요일")["cancelled"] == 6
    assert told(run, "tasks", "purge", "--run", "6월/월요일", "--older", "0")["purged"] == 6
    assert told(run, "tasks", "show", "r1")["once"] == "support/r1"
    code, _, err = run("tasks", "show", "r%")
    assert code == 2 and "there is no task 'r%'" in err
    assert "문의/1" in run("tasks", "list")[1]


def test_waiting_is_told_in_words() -> None:
    assert waits_text({}) == ""
    assert waits_text({"": 1}) == "1 task waits: 1 for their next try; to see them: siafu tasks list --state waiting"
    assert waits_text({"identity_invalid": 1}).endswith("siafu doctor")
    assert waits_text({"outage": 2, "new": 1}).startswith("3 tasks wait: 1 for new, 2 for outage; to see whether")
    assert _next_step({}, {"payments_unavailable": 7}).startswith("7 tasks wait: 7 for payments_unavailable; for paym")
    assert _next_step({}, {}).startswith("nothing was there to do")


def test_a_worker_that_could_not_begin_does_not_say_that_nothing_was_there(caplog: pytest.LogCaptureFixture) -> None:
    nothing = {"tasks": 0, "claimed": 0, "left": {}, "fenced": 0, "restarts": 0}
    settings: Any = None  # nobody is asked what waits
    with caplog.at_level("INFO", "siafu"):
        _show(nothing, 2, settings, False)
    assert not caplog.messages


def test_a_worker_says_when_it_waits_for_the_endpoint_and_names_the_next_step(
    run: Run, tmp_path: Path, sim: Sim
) -> None:
    assert "siafu submit support FILE" in run("worker", "--until-empty")[2]
    write(tmp_path / "a.jsonl", REQUESTS[:2])
    (tmp_path / "siafu.toml").write_text("[patience]\nquota_probe_seconds = 0.1\n")
    told(run, "submit", "support", "a.jsonl")
    sim.set_faults({"kind": "quota", "times": 2})
    code, out, err = run("worker", "--until-empty", "--poll", "0.05", "--min", "1", "--max", "4")
    assert (code, out) == (0, "2 tasks: 2 succeeded\n")
    assert err.count("siafu: default: no credit or quota left; it is asked again now and then, until it goes on\n") == 1
    assert err.count("siafu: default answers again\n") == 1
    assert "1 to 4 slots" in err and err.endswith("to see what came of them: siafu tasks list\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tasks", "show", "t_12"), "siafu tasks list"),
        (("tasks", "cancel"), "say which tasks"),
        (("tasks", "cancel", "t_1", "--run", "x"), "say which tasks"),
        (("tasks", "cancel", "--run", "월요"), "no task of the run '월요'"),
        (("tasks", "retry", "--run", "x"), "no task of the run"),
        (("tasks", "purge"), "say what to remove"),
        (("tasks", "purge", "--older", "soon"), "is no duration"),
        (("dead", "retry"), "say which tasks"),
        (("submit", "support", "missing.jsonl"), "cannot read"),
        (("submit", "support", "-", "--run", " "), "--run is a name"),
        (("worker", "--keep", "never"), "is no duration"),
        (("worker", "--min", "8"), "--min goes with --max"),
        (("worker", "--slots", "10", "--max", "9"), "--min 8, --slots 10 and --max 9 must rise"),
        (("worker", "--min", "9", "--max", "8"), "must rise in this order"),
        (("worker", "--processes", "4", "--metrics", "8000-8001"), "such as --metrics 8000-8003"),
        (("submit", "support", "missing.jsonl", "--needs", "t_12"), "cannot read"),
    ],
)
def test_wrong_use_is_told_with_the_right_one(run: Run, words: tuple[str, ...], said: str) -> None:
    code, out, err = run(*words)
    assert code == 2 and said in err and out == ""


def test_sec30_what_stands_in_tasks_cannot_steer_a_terminal(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": "r\x1b[2J1", "customer": "k\x1b]0;x\x07", "text": "\x1b[31m?"}])
    for words, ends in (
        (("submit", "support", "a.jsonl", "--run", "x\x1b[2J"), 2),  # a run's name is the operator's, and refused
        (("submit", "support", "a.jsonl"), 0),
        (("tasks", "list"), 0),
    ):
        code, out, err = run(*words)
        assert code == ends and "\x1b" not in out + err
    shown = run("tasks", "show", lines(run, "tasks", "list")[0]["id"])
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
    assert signals == 2 or "stops; tasks under way (4) have 1 s to end, then go back" in err
    assert json.loads(out)["left"] == {"ready": 4}
    db = database(tmp_path)
    rows = db.transact(lambda tx: tx.rows("SELECT state, deliveries FROM task ORDER BY created_at"))
    db.close()
    assert [(row["state"], row["deliveries"]) for row in rows] == [("ready", 0)] * 6
