"""Runs over files: the first pass, the rule of resuming, what is refused."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from filerun.mini import Desk, MiniJob, Notes, ids, lines
from siafu.apps.filerun.check import Bits, checked, tasks
from siafu.apps.filerun.job import Task, Written
from siafu.apps.filerun.place import opened, place, run_name
from siafu.apps.filerun.prepare import FileOptions, Ready, ready
from siafu.apps.filerun.run import nothing_left
from siafu.apps.filerun.status import status
from siafu.border.jsonl import LineError
from siafu.errors import InputError, StoreBusy, StoreError
from siafu.gateway.chat import ChatRequest
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext


def test_f46_bom_crlf_and_blank_lines_make_three_requests(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + lines("a", "b").replace(b"\n", b"\r\n") + b"\r\n   \r\n" + lines("c").rstrip()
    desk = Desk(tmp_path, data)
    outcome = desk.run()
    assert (outcome.total, outcome.finished, outcome.failed, outcome.exit_code) == (3, 3, 0, 0)
    assert desk.asked == ["a", "b", "c"]
    assert desk.written() == (["a", "b", "c"], [])


def test_a_bad_line_is_told_before_the_run_and_becomes_an_error(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a") + b'{"id":\n' + lines("b") + b'{"id":7}\n')
    outcome = desk.run()
    assert "2 of 4 lines cannot be used" in desk.notes.notes[0]
    assert "line 2 is not valid JSON" in desk.notes.notes[0]
    assert (outcome.finished, outcome.failed, outcome.left, outcome.exit_code) == (2, 2, 0, 1)
    good, bad = desk.written()
    assert (good, len(bad)) == (["a", "b"], 2)
    desk.run()
    assert desk.written() == (good, bad)  # not once more
    desk.source.write_bytes(lines("a") + lines("x") + lines("b"))
    assert desk.run().exit_code == 0
    assert desk.written() == (["a", "b", "x"], [])  # mended lines lose their errors


def test_strict_refuses_a_bad_line_before_anything_happens(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a") + b"no\n")
    with pytest.raises(InputError, match="line 2 is not valid JSON"):
        desk.run(strict=True)
    assert desk.asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_f47_the_first_line_of_an_id_runs_and_later_ones_become_errors(tmp_path: Path) -> None:
    other = b'{"id": "q1", "text": "other"}\n'
    desk = Desk(tmp_path, lines("q1", "q2") + b"\n" + other + lines("q2") + other)
    for asked in (["q1", "q2"], []):  # and once more, which adds nothing
        outcome = desk.run()
        assert "line 4 has the id of line 1" in desk.notes.notes[0]
        assert (outcome.total, outcome.finished, outcome.failed, outcome.exit_code) == (5, 2, 3, 1)
        assert desk.asked == asked
        good, bad = desk.written()
        assert good == ["q1", "q2"]
        assert [why.split(";")[0] for why in bad] == [
            "line 4 has the id of line 1",
            "line 5 has the id of line 2",
            "line 6 has the id of line 1",
        ]
    assert status(MiniJob(), desk.where).bad == 3
    with pytest.raises(InputError, match="line 4 has the id of line 1"):
        desk.run(strict=True)


def test_f47_a_record_bears_no_id_that_is_another_lines() -> None:
    file = io.BytesIO(b'{"id":"a"}\n{"id":"a"}\n{"id":5}\n')
    found = checked(MiniJob(), file)
    seen = list(tasks(MiniJob(), file, lines=found.lines, skip=Bits(found.lines), index=found.index))
    assert [(line.code, line.value) for line in seen if isinstance(line, LineError)] == [
        ("duplicate_id", None),
        ("input", {"id": 5}),
    ]
    found.index.close()


class Claims(MiniJob):
    """A line without a text cannot be used; its record bears the id that it has."""

    def parse(self, value: Any) -> Task:
        if "text" not in value:
            raise InputError("it has no text")
        return super().parse(value)

    def claims(self, value: Any) -> str | None:
        return None if value is None else value["id"]

    def refusal(self, error: LineError) -> Any:
        return {"id": self.claims(error.value), "status": "error", "text": error.message, "line": error.line}

    def read_back(self, line: bytes) -> Written | None:
        return Written(None, False) if "line" in json.loads(line) else super().read_back(line)


def test_f47_a_bad_line_bears_no_id_of_a_good_one_nor_of_another_bad_one(tmp_path: Path) -> None:
    desk = Desk(tmp_path, b'{"id":"a"}\n{"id":"b"}\n' + lines("a", "c") + b'{"id":"b"}\n')
    desk.job = Claims()
    for _ in range(2):  # the second rewrites what bad lines became
        assert (desk.run().finished, *desk.written()[0]) == (2, "a", "c")
        assert desk.written()[1] == ["b", "line 1: it has no text", "line 5: it has no text"]
    desk.source.write_bytes(b'{"id":"a"}\n' + lines("c"))  # what has a record from when its line was good
    assert desk.run().finished == 1
    assert desk.written() == (["a", "c"], ["line 1: it has no text"])


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_an_empty_input_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match="no line with a request"):
        Desk(tmp_path, data).run()


def test_an_input_without_a_usable_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 of 2 lines cannot be used"):
        Desk(tmp_path, b"custom_id,text\n1,a\n").run()


@pytest.mark.parametrize("errors", [True, False])
def test_failed_lines_stay_failed_until_they_are_retried(tmp_path: Path, errors: bool) -> None:
    desk = Desk(tmp_path, lines("a", "b", "c", text=lambda name: "fail" if name == "b" else name), errors=errors)
    assert desk.run().exit_code == 1
    first = desk.written()
    assert first == ((["a", "c"], ["b"]) if errors else (["a", "b", "c"], []))
    assert desk.run().failed == 1
    assert desk.asked == []
    assert desk.written() == first
    works = Scripted(["ok"])
    outcome = desk.run(works, retry_failed=True)
    assert (outcome.finished, outcome.failed, len(works.requests)) == (3, 0, 1)
    assert desk.written() == (["a", "b", "c"], [])
    assert {json.loads(line)["status"] for line in desk.out.read_bytes().splitlines()} == {"ok"}


def test_a_failed_line_may_be_mended_and_retried(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "fail"))
    desk.run()
    desk.source.write_bytes(lines("a", "fail", text=lambda name: "mended" if name == "fail" else name))
    with pytest.raises(InputError, match="input changed since"):
        desk.run()
    assert desk.run(retry_failed=True).exit_code == 0
    assert desk.asked == ["mended"]
    assert desk.written() == (["a", "fail"], [])


def test_a_retry_that_was_killed_early_leaves_the_failure(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "fail"))
    desk.run()
    with ready(MiniJob(), desk.where, FileOptions(retry_failed=True), Notes()):
        assert desk.written() == (["a"], [])
    desk.run()
    assert desk.asked == []
    assert desk.written() == (["a"], ["fail"])


def test_f45_a_result_file_cut_at_any_byte_is_completed_without_a_call(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("주문", "b", "fail"))
    desk.run()
    expected = desk.written()
    for path in (desk.out, desk.errors):
        assert path is not None
        whole = path.read_bytes()
        for cut in range(len(whole)):
            path.write_bytes(whole[:cut])
            desk.run()
            assert desk.written() == expected, cut
            assert desk.asked == [], cut


def test_a_lost_journal_repeats_only_what_has_no_record(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "b", "c", "fail"))
    desk.run()
    for path in desk.where.folder.iterdir():
        path.unlink()
    kept = desk.out.read_bytes().splitlines(keepends=True)
    desk.out.write_bytes(kept[0] + kept[1][:-9])
    desk.run()
    lost = json.loads(kept[1])["id"], json.loads(kept[2])["id"]
    assert desk.asked == sorted(lost)
    assert desk.written() == (["a", "b", "c"], ["fail"])


def test_new_lines_are_done_and_removed_ones_stay(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "b"))
    desk.run()
    desk.source.write_bytes(lines("b", "c"))
    assert desk.run().finished == 2
    assert desk.asked == ["c"]
    assert any("1 records" in note for note in desk.notes.notes)
    assert desk.written() == (["a", "b", "c"], [])


def test_changed_input_is_refused_and_spelling_is_no_change(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "b", "c"))
    desk.run()
    before = desk.out.read_bytes()
    desk.source.write_bytes(b' { "text":"a" , "id":"a" }\r\n' + lines("b", "c"))
    desk.run()
    desk.source.write_bytes(lines("a", "b", "c", text=lambda name: "other" if name == "b" else name))
    with pytest.raises(InputError, match=r"1 line of the input changed .* \(line 2\)"):
        desk.run()
    assert desk.asked == []
    assert desk.out.read_bytes() == before


def test_fresh_starts_over_and_keeps_what_was_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "fail"))
    desk.run()
    before = desk.out.read_bytes()
    for number in (1, 2):
        assert desk.run(fresh=True).finished == 1
        assert desk.asked == ["a", "fail"]
        assert (tmp_path / f"out.jsonl.bak-{number}").read_bytes() == before
        assert ids(tmp_path / f"out.errors.jsonl.bak-{number}") == ["fail"]
        assert (desk.where.folder / f"{desk.where.run}.bak-{number}.db").exists()
    assert desk.written() == (["a"], ["fail"])


def test_limit_does_the_first_lines_and_the_rest_later(tmp_path: Path) -> None:
    desk = Desk(tmp_path, b"\n" + lines("a", "b", "c"))
    assert desk.run(limit=2).total == 2
    assert desk.asked == ["a", "b"]
    assert desk.run().total == 3
    assert desk.asked == ["c"]


def test_what_a_line_asked_is_remembered_while_it_is_out_of_sight(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "b", "c"))
    desk.run()
    desk.run(limit=1)
    assert status(MiniJob(), desk.where).left == 0
    desk.source.write_bytes(lines("a", "b", "c", text=lambda name: name + "!" * (name == "c")))
    with pytest.raises(InputError, match=r"1 line of the input changed .* \(line 3\)"):
        desk.run()
    desk.source.write_bytes(lines("a", "b", "c"))
    assert desk.run().finished == 3


def test_results_of_another_input_are_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a"))
    desk.run()
    before = desk.out.read_bytes()
    desk.source.write_bytes(lines("z"))
    with pytest.raises(InputError, match="none of the ids"):
        desk.run()
    assert desk.out.read_bytes() == before


def test_a_repeated_record_stays_and_its_first_counts(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "b"))
    desk.run()
    desk.out.write_bytes(desk.out.read_bytes() * 2)
    assert desk.run().finished == 2
    assert any("repeat an id" in note for note in desk.notes.notes)


def test_a_file_of_others_is_left_alone(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a"))
    desk.out.write_bytes(b"dear diary\n")
    with pytest.raises(InputError, match="not a record of this command"):
        desk.run()
    assert desk.asked == []
    assert desk.out.read_bytes() == b"dear diary\n"


def test_files_must_differ(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines("a"))
    (tmp_path / "link").symlink_to(source)
    out = tmp_path / "out.jsonl"
    for one, two, three in ((source, source, None), (source, tmp_path / "link", None), (source, out, out)):
        with pytest.raises(InputError, match="same file"):
            place(one, two, three, tmp_path)
    with pytest.raises(InputError, match="no regular file"):
        place(source, tmp_path, None, tmp_path)
    with pytest.raises(InputError, match="cannot read"), opened(tmp_path / "none"):
        pass
    with pytest.raises(InputError, match="cannot read"), opened(tmp_path):
        pass


def test_a_link_to_the_results_stays_a_link(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "fail"), errors=False)
    target = tmp_path / "target.jsonl"
    target.touch()
    desk.out.symlink_to(target)
    desk.run()
    desk.run(Scripted(["ok"]), retry_failed=True)
    assert desk.out.is_symlink()
    assert ids(target) == ["a", "fail"]


def test_a_home_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a"))
    (tmp_path / "home").write_text("a file")
    with pytest.raises(StoreError, match="run the command again"):
        desk.run()
    assert desk.asked == []


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a"))
    with ready(MiniJob(), desk.where, FileOptions(), Notes()), pytest.raises(StoreBusy):
        desk.run()
    assert desk.run().finished == 1


def test_two_processes_with_homes_of_their_own_do_not_write_one_file_either(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "b"))
    other = Desk(tmp_path, lines("a", "b"))
    other.where = place(other.source, other.out, other.errors, tmp_path / "other home")

    def second(request: ChatRequest, context: CallContext) -> str:
        with pytest.raises(StoreBusy, match="another process writes"):
            other.run()
        return "ok"

    async def first(request: ChatRequest, context: CallContext) -> str:
        if request.messages[-1]["content"] != "a":  # one of the two is enough, and they would meet each other
            return "ok"
        return await asyncio.to_thread(second, request, context)

    assert desk.run(Scripted(first)).finished == 2
    assert desk.written() == (["a", "b"], [])


def test_run_names_are_one_a_file_and_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_name(Path("out.jsonl")) == run_name(tmp_path / "out.jsonl") != run_name(tmp_path / "a" / "out.jsonl")
    assert run_name(Path("주문 결과.jsonl")).startswith("주문_결과-")
    broken = Path(os.fsdecode(b"\xff\xfe.jsonl"))
    assert run_name(broken).startswith("__-")
    assert len(run_name(Path("x" * 200)).encode()) < 100


def test_f48_a_file_name_that_is_no_utf8_works(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a"))
    out = tmp_path / os.fsdecode(b"out-\xff.jsonl")
    desk.where = place(desk.source, out, None, tmp_path / "home")
    assert desk.run().finished == 1
    assert ids(out) == ["a"]


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from siafu.apps.filerun.place import opened\n"
        "with opened(Path('-')) as f: print(len(f.read()), f.seek(0), len(f.read()))"
    )
    data = lines(*map(str, range(5000)))
    ended = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True)
    assert ended.stdout.split() == [str(len(data)).encode(), b"0", str(len(data)).encode()]


def test_cancelling_keeps_what_is_done(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines(*"abcdefgh"))
    full = asyncio.Event()

    async def stuck(request: ChatRequest, context: CallContext) -> str:
        if request.messages[-1]["content"] not in "abc":
            while len(desk.notes.results) < 3:
                await asyncio.sleep(0)
            full.set()
            await asyncio.Event().wait()
        return "ok"

    async def go(prepared: Ready) -> None:
        task = asyncio.create_task(desk.work(prepared, slow, concurrency=4))
        await full.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    slow = Scripted(stuck)
    with ready(MiniJob(), desk.where, FileOptions(), desk.notes) as prepared:
        asyncio.run(go(prepared))
    desk.run()
    assert len(desk.asked) == 5
    assert desk.written() == (sorted("abcdefgh"), [])


@pytest.mark.parametrize(
    ("now", "whole"),
    [
        (lines("new", "a", "b", "c"), False),  # every line has moved on: b stands where c was, which is done
        (lines("a", "b", "c", text=lambda name: name + "!"), False),
        (lines("a"), False),
        (b"", False),
        (lines("a", "b", "c", "new"), True),  # is for the next run
    ],
)
def test_an_input_that_is_rewritten_while_it_is_read_is_noticed(tmp_path: Path, now: bytes, whole: bool) -> None:
    desk = Desk(tmp_path, lines("b"))
    desk.run()
    desk.source.write_bytes(lines("a", "b", "c"))
    with ready(MiniJob(), desk.where, FileOptions(), desk.notes) as prepared:
        desk.source.write_bytes(now)  # the same file, not another of the same name
        if whole:
            asyncio.run(desk.work(prepared, desk.endpoint, concurrency=4))
        else:
            with pytest.raises(InputError, match="has changed while it was read"):
                asyncio.run(desk.work(prepared, desk.endpoint, concurrency=4))
    desk.source.write_bytes(lines("a", "b", "c"))
    desk.run()
    assert desk.written() == (["a", "b", "c"], [])


@pytest.mark.parametrize("begun", [2, 1])
def test_a_run_that_was_told_to_stop_when_all_had_begun_ends_as_any_other(tmp_path: Path, begun: int) -> None:
    desk, stop, flying = Desk(tmp_path, lines("a", "b") + b"no\n"), asyncio.Event(), 0

    async def slow(request: ChatRequest, context: CallContext) -> str:
        nonlocal flying
        flying += 1
        if flying == begun:
            stop.set()
        await asyncio.sleep(0.01)
        return "ok"

    outcome = desk.run(Scripted(slow), concurrency=begun, stop=stop)
    whole = begun == 2
    assert (outcome.session.stopped, outcome.left) == (("", 0) if whole else ("interrupted", 1))
    assert (outcome.finished, outcome.failed) == (begun, 1)
    if whole:
        assert outcome.exit_code == 1 and len(desk.written()[1]) == 1  # a line that cannot be used is no less told


def test_when_nothing_is_left_no_endpoint_is_needed(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "b") + b"no\n")
    desk.run()
    with ready(MiniJob(), desk.where, FileOptions(), desk.notes) as prepared:
        assert prepared.plan.todo == 0
        outcome = nothing_left(prepared, desk.notes)
    assert (outcome.finished, outcome.failed, outcome.left) == (2, 1, 0)
    assert len(desk.written()[1]) == 1


def test_status_counts_records_and_cost(tmp_path: Path) -> None:
    desk = Desk(tmp_path, lines("a", "b", "fail") + b"no\n")
    with pytest.raises(InputError, match="no run has written"):
        status(MiniJob(), desk.where)
    desk.run(limit=2)
    assert status(MiniJob(), desk.where).left == 0
    desk.run()
    desk.out.write_bytes(desk.out.read_bytes()[:-9])
    found = status(MiniJob(), desk.where)
    assert (found.finished, found.failed, found.bad, found.left) == (1, 1, 1, 1)
    assert found.spent is not None
