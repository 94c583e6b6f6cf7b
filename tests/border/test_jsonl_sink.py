"""The file of records: whole records only, torn tails mended, nothing of others overwritten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.jsonl import JsonlSink, checked_out, mend, sift
from siafu.errors import InputError, StoreBusy, StoreError

STARTS = b'{"id":"'


def ours(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line)["id"], str)
    except (ValueError, KeyError, TypeError):
        return False


def record(number: int) -> dict[str, Any]:
    return {"id": f"r{number}", "text": "배송은 언제\u2028😀" * number}


def write(path: Path, *numbers: int) -> bytes:
    sink = JsonlSink(path)
    for number in numbers:
        sink.append(record(number))
    sink.close()
    return path.read_bytes()


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_bytes().splitlines()]


def test_records_are_lines_for_every_reader(tmp_path: Path) -> None:
    data = write(tmp_path / "out.jsonl", 1, 2)
    assert len(data.decode().splitlines()) == 2  # splits at U+2028, too: it is escaped
    assert [json.loads(line) for line in data.splitlines()] == [record(1), record(2)]


def test_f45_a_file_cut_at_any_byte_is_mended(tmp_path: Path) -> None:
    path, torn = tmp_path / "out.jsonl", tmp_path / "out.jsonl.torn"
    whole = write(path, 1, 2, 3)
    ends = [at for at, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        torn.unlink(missing_ok=True)
        removed = mend(path, ours, STARTS)
        kept = sum(cut >= end for end in ends)  # a record without its line end is whole
        assert ids(path) == ["r1", "r2", "r3"][:kept]
        aside = torn.read_bytes() if removed else b""
        assert path.read_bytes() + aside.removesuffix(b"\n") in (whole[:cut], whole[: cut + 1])
        write(path, *range(kept + 1, 4))
        assert path.read_bytes() == whole


def test_a_tail_of_zeros_after_a_power_cut_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(write(path, 1) + b"\0" * 5000)
    assert mend(path, ours, STARTS) == 5000
    assert ids(path) == ["r1"]


@pytest.mark.parametrize(
    "data",
    [b"my notes", b"my notes\n", b'{"id":"r1"}\nnotes\n{"id":"r2"}\n', b"id,text\n1,a\n", b'{"id":7}\n', b"\x00\x01"],
)
def test_a_file_of_others_is_refused_and_left_as_it_is(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match="nothing was written"):
        mend(path, ours, STARTS)
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_or_empty_file_and_blank_lines_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert mend(path, ours, STARTS) == 0
    assert not path.exists()
    for data in (b"", b"\n", b'{"id":"r1"}\n\n  \n'):
        path.write_bytes(data)
        assert mend(path, ours, STARTS) == 0


def test_no_place_for_records(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, "no regular file"),
        (Path("/dev/null"), "no regular file"),
        (tmp_path / "none" / "out.jsonl", "create it first"),
        (tmp_path / ("x" * 300), "too long"),
    ):
        with pytest.raises(InputError, match=words):
            checked_out(path)
    checked_out(tmp_path / "fine.jsonl")


@given(st.sets(st.integers(0, 9)), st.integers(0, 10))
def test_sift_drops_what_is_refused_and_keeps_the_rest(tmp_path_factory: Any, drop: set[int], count: int) -> None:
    path = tmp_path_factory.mktemp("sift") / "out.jsonl"
    write(path, *range(count))
    inode = path.stat().st_ino
    dropped = sift(path, lambda line: int(json.loads(line)["id"][1:]) not in drop)
    assert ids(path) == [f"r{n}" for n in range(count) if n not in drop]
    assert dropped == len(drop & set(range(count)))
    assert (path.stat().st_ino == inode) is (dropped == 0)
    assert list(path.parent.iterdir()) == [path]


FULL = """
import resource, signal, sys
from pathlib import Path
from siafu.border.jsonl import JsonlSink
from siafu.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sink = JsonlSink(Path(sys.argv[1]))
try:
    for number in range(100):
        sink.append({"id": f"r{number}", "text": "x" * 50})
except StoreError as error:
    sys.exit(error.message)
"""


def test_no_room_leaves_whole_records_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    ended = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "run the command again" in ended.stderr
    assert path.read_bytes().endswith(b'"}\n')
    assert 5 < len(ids(path)) < 100
    assert mend(path, ours, STARTS) == 0


def test_an_unwritable_file_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonlSink(tmp_path / "out.jsonl")

    def fail(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", fail)
        with pytest.raises(StoreError, match="No space left"):
            sink.append({"id": "r1"})
    sink.append({"id": "r1"})  # once there is room again
    sink.close()
    assert ids(sink.path) == ["r1"]


def test_one_sink_holds_a_file_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    sink = JsonlSink(path)
    with pytest.raises(StoreBusy, match="another process writes"):
        JsonlSink(path)
    with pytest.raises(StoreBusy, match="another process writes"):
        mend(path, ours, STARTS)
    sink.append(record(1))
    sink.close()
    write(path, 2)
    assert mend(path, ours, STARTS) == 0
    assert ids(path) == ["r1", "r2"]


@pytest.mark.parametrize(
    "meddle",
    [Path.unlink, lambda path: path.rename(path.with_name("moved")), lambda path: path.with_name("new").replace(path)],
)
def test_a_file_that_was_moved_or_deleted_is_noticed(tmp_path: Path, meddle: Callable[[Path], Any]) -> None:
    path = tmp_path / "out.jsonl"
    path.with_name("new").touch()
    sink = JsonlSink(path)
    sink.append(record(1))
    sink.sync()
    meddle(path)
    with pytest.raises(StoreError, match="moved or deleted by another program"):
        sink.close()


@pytest.mark.parametrize("size", [0, 9, 900])
def test_nothing_is_appended_to_a_file_that_was_cut_or_written_to(tmp_path: Path, size: int) -> None:
    path = tmp_path / "out.jsonl"
    sink = JsonlSink(path)
    sink.append(record(1))
    os.truncate(path, size)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="changed"):
        sink.append(record(2))
    with pytest.raises(StoreError, match="changed"):
        sink.close()
    assert path.read_bytes() == before


def test_f46_a_byte_order_mark_that_an_editor_added_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + write(path, 1, 2).replace(b"\n", b"\r\n"))
    assert mend(path, ours, STARTS) == 0
    assert sift(path, lambda line: b"r1" not in line) == 1
    assert ids(path) == ["r2"]
