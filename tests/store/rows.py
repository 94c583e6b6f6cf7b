"""Rows to write, with everything a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from siafu.store.records import AttemptOpened, AttemptSettled, ItemRecord, JournalEntry


def opened(attempt: str, **fields: Any) -> AttemptOpened:
    usual: dict[str, Any] = {
        "run": "r", "task": "t1", "step": "#0", "agent": "a", "role": "writer", "upstream": "u", "model": "m",
        "opened_at": 1000.0, "reserved_pico": 500,
    }  # fmt: skip
    return AttemptOpened(attempt=attempt, **{**usual, **fields})


def settled(attempt: str, **fields: Any) -> AttemptSettled:
    usual: dict[str, Any] = {"outcome": "ok", "settled_at": 1001.5, "usage_known": True, "usd_pico": 40}
    return AttemptSettled(attempt=attempt, **{**usual, **fields})


def entry(seq: int = 0, path: str = "", **fields: Any) -> JournalEntry:
    usual: dict[str, Any] = {"kind": "model", "fingerprint": "f" * 64, "outcome": b'"\xeb\x8b\xb5"', "usd_pico": 40}
    return JournalEntry(path=path, seq=seq, **{**usual, **fields})


def item(key: str, **fields: Any) -> ItemRecord:
    usual: dict[str, Any] = {"status": "ok", "input_print": "in", "work_print": "work", "value": b'{"n":1}'}
    return ItemRecord(key=key, **{**usual, **fields})
