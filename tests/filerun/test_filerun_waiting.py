"""Runs over files whose items wait for a person: at every moment one record an id, the last one there is."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from filerun.mini import Desk, MiniJob, lines
from siafu.agents.task import TaskContext
from siafu.apps.filerun.job import Written
from siafu.apps.filerun.status import status
from siafu.errors import ApprovalPending, InputError, NotNow, RequestRefused
from siafu.swarm.results import MapResult


class Waits(MiniJob):
    """Texts with "wait" in them are answered, and then wait until they are in `decided`: True ends them well."""

    def __init__(self) -> None:
        self.decided: dict[str, bool] = {}

    async def work(self, item: Any, ctx: TaskContext, /) -> Any:
        answer = await super().work(item, ctx)
        if "wait" in item and item not in self.decided:
            raise ApprovalPending("nobody has decided yet")
        if not self.decided.get(item, True):
            raise RequestRefused("no")
        return answer


class WaitingDesk(Desk):
    def __init__(self, folder: Path, *names: str, **options: Any) -> None:
        super().__init__(folder, lines(*names), **options)
        self.job: Waits = Waits()

    def records(self) -> dict[str, str]:
        """The status of each id; every id has one record, and the file holds nothing else."""
        found = [json.loads(line) for line in self.out.read_bytes().splitlines()]
        assert set(Counter(record["id"] for record in found).values()) <= {1}
        return {record["id"]: record["status"] for record in found}


@pytest.fixture(params=[True, False])
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> WaitingDesk:
    return WaitingDesk(tmp_path, "a", "wait 1", "b", "wait 2", errors=request.param)


def counts(outcome: Any) -> tuple[int, ...]:
    return outcome.finished, outcome.failed, outcome.waiting, outcome.left, outcome.exit_code


def test_what_waits_keeps_its_record_until_it_goes_on(desk: WaitingDesk) -> None:
    assert counts(desk.run()) == (2, 0, 2, 0, 0)
    assert desk.records() == {"a": "ok", "b": "ok", "wait 1": "waiting", "wait 2": "waiting"}
    told = status(desk.job, desk.where)
    assert (told.finished, told.waiting, told.failed, told.left) == (2, 2, 0, 0)
    before = desk.out.read_bytes()
    assert counts(desk.run()) == (2, 0, 2, 0, 0)
    assert (desk.out.read_bytes(), desk.asked) == (before, [])
    assert counts(desk.run(retry_failed=True)) == (2, 0, 2, 0, 0)
    assert desk.out.read_bytes() == before

    desk.job.decided = {"wait 1": True}
    assert counts(desk.run()) == (3, 0, 1, 0, 0)
    assert desk.asked == []
    after = desk.out.read_bytes().splitlines()
    assert [new for new, old in zip(after, before.splitlines(), strict=True) if new != old] == [
        line for line in after if b'"wait 1"' in line
    ]
    desk.job.decided["wait 2"] = False
    assert counts(desk.run()) == (3, 1, 0, 0, 1)
    assert desk.records() == {"a": "ok", "b": "ok", "wait 1": "ok", "wait 2": "error"}
    assert counts(desk.run()) == (3, 1, 0, 0, 1)
    desk.job.decided["wait 2"] = True
    assert counts(desk.run(retry_failed=True)) == (4, 0, 0, 0, 0)
    assert set(desk.records().values()) == {"ok"}


class Tells(Waits):
    """Waiting records say what for, as it is now; `word` is that."""

    word = "closed"

    async def work(self, item: Any, ctx: TaskContext, /) -> Any:
        if item in self.decided:
            return "done"
        raise NotNow(self.word, reason=self.word)

    def record(self, result: MapResult) -> Any:
        text = result.value if result.error is None else result.error.message
        return {"id": result.item.key, "status": result.status, "text": text, "seconds": result.seconds}

    def read_back(self, line: bytes) -> Written | None:
        written = super().read_back(line)
        if written is None or not written.waits:
            return written
        text = json.loads(line)["text"]
        return Written(written.key, written.ok, waits=True, reason=text, tells=text)


def test_a_record_that_waits_changes_when_what_it_tells_does(desk: WaitingDesk) -> None:
    desk.job = job = Tells()
    outcome = desk.run()
    assert (outcome.waits, outcome.waiting, outcome.exit_code) == ({"closed": 4}, 4, 0)
    before = desk.out.read_bytes()
    assert desk.run().waits == {"closed": 4}
    assert desk.out.read_bytes() == before  # although it took another time
    job.word = "off"
    assert desk.run().waits == {"off": 4}
    assert b"closed" not in desk.out.read_bytes()
    assert set(desk.records().values()) == {"waiting"}
    job.decided = {"a": True, "b": True}
    assert counts(desk.run()) == (2, 0, 2, 0, 0)


def test_a_record_that_a_crash_kept_from_its_place_comes_from_the_journal(desk: WaitingDesk) -> None:
    desk.run()
    before = desk.out.read_bytes()
    desk.job.decided = {"wait 1": True, "wait 2": False}
    desk.run()
    after = desk.records()
    desk.out.write_bytes(before)  # killed after the journal had it, before the file was made anew
    desk.out.with_name("out.jsonl.new").write_bytes(before[:30])  # or while
    desk.job.decided = {}
    desk.run()
    assert (desk.records(), desk.asked) == (after, [])
    assert not desk.out.with_name("out.jsonl.new").exists()


def test_a_result_file_with_waiting_records_cut_at_any_byte_is_completed(desk: WaitingDesk) -> None:
    desk.run()
    whole, expected = desk.out.read_bytes(), desk.records()
    for cut in range(0, len(whole), 3):
        desk.out.write_bytes(whole[:cut])
        assert counts(desk.run()) == (2, 0, 2, 0, 0)
        assert (desk.records(), desk.asked) == (expected, []), cut


def test_a_lost_journal_loses_no_record_that_waits(desk: WaitingDesk) -> None:
    desk.run()
    for path in desk.where.folder.glob("*.db*"):
        path.unlink()
    assert counts(desk.run()) == (2, 0, 2, 0, 0)
    assert desk.asked == ["wait 1", "wait 2"]
    assert desk.records()["wait 1"] == "waiting"


def test_a_line_that_waits_must_stay_as_it_was(desk: WaitingDesk) -> None:
    desk.run()
    other = lines("a", "wait 1", "b", "wait 2", text=lambda name: "other" if name == "wait 2" else name)
    desk.source.write_bytes(other)
    with pytest.raises(InputError, match="line 4"):
        desk.run(retry_failed=True)


def test_records_of_one_id_that_repeat_by_hand_become_one(desk: WaitingDesk) -> None:
    desk.run()
    data = desk.out.read_bytes()
    desk.out.write_bytes(data + data)
    desk.job.decided = {"wait 1": True}
    desk.run()
    kept = [line for line in desk.out.read_bytes().splitlines() if b'"wait 1"' in line]
    assert [json.loads(line)["status"] for line in kept] == ["ok"]


def test_a_run_that_waits_replaces_records_while_a_reader_looks(tmp_path: Path) -> None:
    names = [f"wait {n}" for n in range(40)]
    desk = WaitingDesk(tmp_path, *names, "a")
    seen: list[Counter[str]] = []
    wrong: list[str] = []
    over = threading.Event()

    def read() -> None:
        """Looks all the time; decides the first half once all wait, and the rest when that has been seen."""
        while not over.is_set():
            if not desk.out.exists():
                continue
            data = desk.out.read_bytes()
            found = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
            ids = Counter(record["id"] for record in found)
            if max(ids.values(), default=0) > 1 or (seen and sum(seen[-1].values()) > len(found)):
                wrong.append(str(ids))
            now = Counter(record["status"] for record in found)
            if not seen or now != seen[-1]:
                seen.append(now)
            if now == {"waiting": 40, "ok": 1}:
                desk.job.decided = dict.fromkeys(names[:20], True)
            if now == {"waiting": 20, "ok": 21}:
                desk.job.decided = dict.fromkeys(names, True)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        outcome = desk.run(wait=30.0, concurrency=3)
    finally:
        over.set()
        reader.join()
    assert counts(outcome) == (41, 0, 0, 0, 0)
    assert not wrong
    assert {"waiting": 40, "ok": 1} in seen
    assert {"waiting": 20, "ok": 21} in seen  # seen while the run went on
    assert set(desk.records().values()) == {"ok"}
    assert outcome.session.waiting == 0
