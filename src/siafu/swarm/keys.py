"""Which item is which, from one session to the next.

An item is named by the caller's `key`; else by its place in the input ("0", "1", ...); else, with a store, where a name
must hold when the input is sorted anew, by its own `id` or `custom_id`, or by what it is: the first 16 hex digits of
its fingerprint, and "-2", "-3", ... for further items that are equal to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from siafu.border.canonical import fingerprint
from siafu.border.text import clean
from siafu.errors import InputError, NotJson
from siafu.store.records import ItemRecord

MAX_KEY = 512
REMEMBERED = 100_000


class Name(msgspec.Struct, frozen=True):
    """`key` of an item. `by_content`: it was made from what the item is, so equal items share it."""

    key: str
    input_print: str = ""
    by_content: bool = False


def name_item(item: Any, index: int, chosen: Callable[[Any], Any] | None, *, durable: bool) -> Name:
    """The name of an item; with its fingerprint when `durable`, i.e. when there is a store.

    Raises: InputError when the key is no text or whole number, or a durable item is no JSON value.
    """
    input_print = _print(item) if durable else ""
    key = chosen(item) if chosen is not None else _own_id(item) if durable else index
    if key is None and chosen is None:
        return copy_name(input_print, 1)
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InputError(f"the key of an item must be text or a whole number, not {type(key).__name__}")
    text = clean(str(key))
    if not 0 < len(text) <= MAX_KEY:
        raise InputError(f"the key of an item must have 1 to {MAX_KEY} characters; this has {len(text)}")
    return Name(text, input_print)


def copy_name(input_print: str, number: int) -> Name:
    """The name, by content, of the `number`-th item (from 1) that is equal to others."""
    key = input_print[:16]
    return Name(key if number == 1 else f"{key}-{number}", input_print, by_content=True)


def _own_id(item: Any) -> str | int | None:
    found = [item.get(n) for n in ("id", "custom_id")] if isinstance(item, Mapping) else [getattr(item, "id", None)]
    return next((i for i in found if isinstance(i, str | int) and not isinstance(i, bool) and i != ""), None)


def _print(item: Any) -> str:
    try:
        return fingerprint(item)
    except NotJson as error:
        raise InputError(
            f"the item cannot be kept in a journal ({error.message}); use dicts, text, dataclasses or Structs"
        ) from None


class Recent:
    """Which keys have been seen, as far as the last 100,000 go: for runs without a store, which would know them all."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._keys: set[str] = set()
        self._order: deque[str] = deque()

    def repeats(self, key: str) -> bool:
        """True when `key` has been seen; from now on it has."""
        if key in self._keys:
            return True
        if len(self._order) == self._limit:
            self._keys.remove(self._order.popleft())
        self._keys.add(key)
        self._order.append(key)
        return False


def changed(record: ItemRecord, work_print: str) -> bool:
    """True when the result was made by other work than this. Work without a fingerprint counts as the same."""
    return bool(work_print and record.work_print and record.work_print != work_print)
