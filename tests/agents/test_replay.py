"""Where a journaled step is found again, and where a new one is written."""

from __future__ import annotations

import asyncio
import itertools

from hypothesis import given
from hypothesis import strategies as st

from agents.ant_farm import DictJournal
from siafu.agents.replay import Replay
from siafu.agents.strands import Place, Strands, parse
from siafu.store.records import JournalEntry


def entry(seq: int, asked: str, kind: str = "model", path: str = "") -> JournalEntry:
    return JournalEntry(path=path, seq=seq, kind=kind, fingerprint=asked, outcome=f'"{asked}@{seq}"'.encode())


def at(*order: int, path: str = "") -> Place:
    return Place(path, (0, *order))


def replay(*entries: JournalEntry) -> Replay:
    return Replay("t", DictJournal(), entries)


def test_a_step_is_found_at_its_place_and_given_out_once() -> None:
    again = replay(entry(0, "a"), entry(1, "a"))
    assert again.take(at(1), ["model"], "a") == entry(1, "a")
    assert again.take(at(0), ["model"], "a") == entry(0, "a")
    assert again.take(at(2), ["model"], "a") is None


def test_a_step_that_moved_is_found_by_what_was_asked_first_in_its_own_strand() -> None:
    again = replay(entry(0, "b"), entry(1, "a"), entry(0, "b", path=">2"))
    assert again.take(at(0), ["model"], "a") == entry(1, "a")
    assert again.take(at(2, 7), ["model"], "b") == entry(0, "b", path=">2")
    assert again.take(at(2, 7), ["model"], "b") == entry(0, "b")


def test_the_clock_of_another_strand_does_not_serve() -> None:
    again = replay(entry(0, "now", "value", ">1"), entry(3, "now", "value", ">2"))
    assert again.take(at(3, 0), ["value"], "now") is None
    assert again.take(at(2, 0), ["value"], "now") == entry(3, "now", "value", ">2")


def test_neither_another_question_nor_another_kind_nor_another_path_serves() -> None:
    again = replay(entry(0, "a"), entry(0, "a", path="/x"), entry(1, "b", kind="tool"))
    assert again.take(at(0), ["model"], "b") is None
    assert again.take(at(1), ["model"], "b") is None
    assert again.take(at(0, path="/y"), ["model"], "a") is None
    assert again.discarded() == []


def test_what_was_made_anew_takes_the_place_of_the_latest_of_its_kind() -> None:
    again = replay(entry(0, "a"), entry(1, "b", kind="tool"), entry(2, "c"), entry(3, "d"))
    assert again.take(at(0), ["model"], "a") is not None
    again.seat(at(1), "model")
    assert again.discarded() == [entry(3, "d")]
    again.seat(at(2), "model")
    again.seat(at(3), "model")
    assert again.discarded() == [entry(3, "d"), entry(2, "c")]


def test_a_hole_is_filled_and_a_stale_entry_is_not_overwritten() -> None:
    again = replay(entry(0, "a"), entry(2, "c"))
    assert again.seat(at(1), "model") == at(1)  # in flight at the crash
    assert again.take(at(2), ["model"], "changed") is None
    assert again.seat(at(2), "model") == at(3)  # "c" may still be asked for
    assert again.seat(at(3), "model") == at(4)


def test_which_effects_were_left_behind() -> None:
    again = replay(entry(0, "a"), entry(5, "pay", "effect", ">1"), entry(0, "pay", "intent", "/x"))
    assert not again.strayed(at(0))
    assert again.strayed(at(2))  # after the strand in which it acted
    assert again.strayed(at(1, 3))  # in that strand, whatever its place
    assert not again.strayed(at(0, 3))
    assert again.strayed(at(9, path="/x"))
    assert again.take(at(1, 5), ["effect"], "pay") is not None
    assert not again.strayed(at(9))


@given(path=st.sampled_from(["", "/anna", "/a~b>c/"]), order=st.lists(st.integers(0, 99), min_size=2, max_size=5))
def test_a_place_survives_the_journal(path: str, order: list[int]) -> None:
    place = Place(path, tuple(order))
    assert parse(place.strand, place.seq) == place


async def test_strands_are_numbered_by_the_program_not_by_who_is_quick() -> None:
    for waits in itertools.permutations([0, 3, 6]):
        strands = Strands()
        first = strands.place("")

        async def branch(wait: int, strands: Strands = strands) -> list[str]:
            places = [strands.place("")]
            for _ in range(wait):
                await asyncio.sleep(0)
            return [f"{p.strand}#{p.seq}" for p in [*places, strands.place("")]]

        found = await asyncio.gather(*map(branch, waits))
        assert found == [[">1#0", ">1#1"], [">2#0", ">2#1"], [">3#0", ">3#1"]]
        last = strands.place("")
        assert first == at(0)
        assert last == at(4)


@given(
    old=st.lists(st.tuples(st.integers(0, 8), st.sampled_from("abc")), max_size=8, unique_by=lambda pair: pair[0]),
    asked=st.lists(st.sampled_from("abcd"), max_size=10),
    order=st.randoms(use_true_random=False),
)
def test_no_seat_is_given_twice_and_every_fitting_entry_is_used(
    old: list[tuple[int, str]], asked: list[str], order: object
) -> None:
    again = replay(*(entry(seq, text) for seq, text in old))
    steps = [(at(seq), text) for seq, text in enumerate(asked)]
    order.shuffle(steps)  # type: ignore[attr-defined]
    seats, used = {seq for seq, _ in old}, []
    for place, text in steps:
        found = again.take(place, ["model"], text)
        if found is None:
            seat = again.seat(place, "model").seq
            assert seat not in seats
            seats.add(seat)
        else:
            assert found.fingerprint == text
            used.append(found.seq)
    assert len(used) == len(set(used))
    for text in "abc":
        had, wanted = [t for _, t in old].count(text), asked.count(text)
        assert len([s for s in used if dict(old)[s] == text]) == min(had, wanted)
