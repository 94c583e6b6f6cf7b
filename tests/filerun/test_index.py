"""The table of ids on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from siafu.apps.filerun.check import Bits
from siafu.apps.filerun.index import Index, Indexing

KEYS = st.lists(st.text(max_size=3), max_size=40)


def sealed(keys: list[str], content: str = "", run_rows: int = 3) -> tuple[Index, list[tuple[int, int]]]:
    indexing = Indexing(run_rows)
    for line, key in enumerate(keys, 1):
        indexing.add(key, line, (content + key).encode())
    twice: list[tuple[int, int]] = []
    return indexing.seal(lambda line, first: twice.append((line, first))), twice


@given(KEYS, st.integers(1, 7))
def test_every_id_is_found_on_its_line_and_every_repetition_is_named(keys: list[str], run_rows: int) -> None:
    index, twice = sealed(keys, run_rows=run_rows)
    first = {key: keys.index(key) + 1 for key in keys}
    assert {key: index.line(key) for key in keys} == first
    assert index.line("not there") is None
    assert index.rows == len(first)
    assert sorted(twice) == [(line, first[key]) for line, key in enumerate(keys, 1) if line > first[key]]
    index.close()


@given(st.sets(st.text(max_size=3)), st.sets(st.text(max_size=3)))
def test_a_changed_line_is_one_whose_id_stays(old_keys: set[str], more: set[str]) -> None:
    old, _ = sealed(sorted(old_keys))
    changed = {key for key in old_keys if len(key) == 1}
    keys = sorted(old_keys | more, reverse=True)
    indexing = Indexing(3)
    for line, key in enumerate(keys, 1):
        indexing.add(key, line, (("new" if key in changed else "") + key).encode())
    new = indexing.seal(lambda line, first: None)
    assert sorted(new.changed_since(old)) == sorted(keys.index(key) + 1 for key in changed)
    assert list(new.changed_since(new)) == []
    old.close()
    new.close()


def test_a_saved_table_is_the_same(tmp_path: Path) -> None:
    index, _ = sealed(["주문", "b", "c", "d"])
    index.save(tmp_path / "x.input")
    again = Index((tmp_path / "x.input").open("rb"))
    assert list(again) == list(index)
    assert again.line("주문") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.input"]
    index.close()
    again.close()


@given(st.sets(st.integers(0, 50)), st.sets(st.integers(0, 50)))
def test_bits_are_a_set(one: set[int], other: set[int]) -> None:
    def bits(numbers: set[int]) -> Bits:
        made = Bits(50)
        for number in numbers:
            made.add(number)
        return made

    def members(made: Any) -> set[int]:
        return {number for number in range(51) if number in made}

    assert members(bits(one)) == one
    assert len(bits(one)) == len(one)
    assert members(bits(one) | bits(other)) == one | other
    assert members(bits(one) - bits(other)) == one - other
