"""The ledger's file: what is read again after a kill at any byte, and whose files it leaves alone."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.bench.payments.book import Book
from siafu.bench.payments.ledger import Ledger, read_ledger
from siafu.bench.payments.lines import Body, Declined, Line, Paid, Request
from siafu.errors import ConfigError, StoreBusy, StoreError

BODY = Body(payment="pay_1", amount=700, currency="KRW", reference="환불-1", metadata={"이유": "\u2028\n"})


def arrived(number: int, **known: Any) -> Request:
    return Request(n=number, at=1.0, what="refund", reference=BODY.reference, key="k-1", body=BODY, **known)


def paid(number: int, request: int) -> Paid:
    return Paid(
        n=number,
        id=f"re_{number}",
        at=2.0,
        request=request,
        key="k-1",
        payment=BODY.payment,
        amount=BODY.amount,
        currency=BODY.currency,
        reference=BODY.reference,
    )


LINES: list[Line] = [
    arrived(1),
    paid(1, 1),
    arrived(1, status=200, ids=["re_1"]),
    arrived(2),
    paid(2, 2),
    arrived(3),
    Declined(at=3.0, request=3),
]


def known(book: Book) -> Any:
    return msgspec.to_builtins([book.requests, book.effects, book.keys, book.stats()])


def after(lines: list[Line]) -> Any:
    book = Book()
    for line in lines:
        book.apply(line)
    return known(book)


def written(path: Path) -> list[int]:
    """A ledger of LINES at `path`; returns its length after the head and after each line."""
    path.unlink(missing_ok=True)
    ledger = Ledger(path)
    lengths = [path.stat().st_size]
    for line in LINES:
        ledger.write(line)
        lengths.append(path.stat().st_size)
    ledger.close()
    return lengths


@given(cut=st.integers(min_value=0))
def test_a_ledger_cut_at_any_byte_tells_its_whole_lines(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    lengths = written(path)
    cut %= lengths[-1] + 1
    os.truncate(path, cut)
    whole = sum(length <= cut for length in lengths[1:])
    ledger = Ledger(path)
    assert known(ledger.book) == known(read_ledger(path)) == after(LINES[:whole])
    for line in LINES[whole:]:
        ledger.write(line)  # and it goes on from there
    ledger.close()
    assert known(read_ledger(path)) == after(LINES) and path.stat().st_size == lengths[-1]


def test_what_the_lines_say() -> None:
    book = Book()
    for line in LINES:
        book.apply(line)
    assert [effect.id for effect in book.paid("환불-1")] == ["re_1", "re_2"] and book.paid("r-2") == []
    assert book.keys["k-1"].paid == LINES[1]  # the first outcome of a key is its outcome
    stats = book.stats()
    assert stats["duplicates"] == 1 and stats["unanswered"] == 2 and stats["by_status"] == {"200": 1}
    assert book.attempts("refund", "환불-1") == 3 and book.attempts("lookup", "환불-1") == 0


@pytest.mark.parametrize("content", [b"{}\n", b"my notes", b"\x00\x01\n", b'{"line":"siafu-payments","version":2}\n'])
def test_a_file_that_is_no_ledger_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    for opened in (Ledger, read_ledger):
        with pytest.raises(ConfigError, match="not a ledger"):
            opened(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"oops\n", "line 9"),
        (msgspec.json.encode(paid(2, 1)) + b"\n", "effect 2 is out of order"),
        (msgspec.json.encode(paid(3, 4)) + b"\n", "request 4 is not known"),
        (msgspec.json.encode(arrived(9)) + b"\n", "request 9 is out of order"),
    ],
)
def test_a_ledger_that_was_changed_is_told(tmp_path: Path, line: bytes, word: str) -> None:
    path = tmp_path / "l"
    written(path)
    content = path.read_bytes() + line
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=word):
        Ledger(path)
    assert path.read_bytes() == content


def test_places_where_no_ledger_can_be(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "l", Path("/dev/null")):
        with pytest.raises(ConfigError, match=r"choose another --ledger"):
            Ledger(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_ledger(tmp_path / "none")


def test_a_ledger_has_one_writer_and_is_private(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    with pytest.raises(StoreBusy, match="another process serves the ledger"):
        Ledger(tmp_path / "l")
    ledger.close()
    Ledger(tmp_path / "l").close()
    assert stat.S_IMODE((tmp_path / "l").stat().st_mode) == 0o600


async def test_settled_means_synced_and_one_sync_serves_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, path = Ledger(tmp_path / "l"), tmp_path / "l"
    go, sizes = threading.Event(), []

    def fsync(_: int) -> None:
        size = path.stat().st_size
        assert go.wait(10)
        sizes.append(size)

    monkeypatch.setattr(os, "fsync", fsync)
    waiting = []
    for number in range(1, 11):
        ledger.write(arrived(number))
        waiting.append(asyncio.create_task(ledger.settle()))
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    go.set()
    await asyncio.gather(*waiting)
    assert sizes[-1] == path.stat().st_size and len(sizes) <= 2
    await ledger.settle()
    assert len(sizes) <= 2  # nothing new, nothing to do
    ledger.close()


async def test_a_disk_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(5, "Input/output error")

    ledger = Ledger(tmp_path / "l")
    ledger.write(arrived(1))
    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):  # and it does not pass for synced the next time
        with pytest.raises(StoreError, match="Input/output error"):
            await ledger.settle()
    ledger.close()
