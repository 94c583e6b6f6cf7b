"""What one task has already decided: its journal, consulted before anything is asked or done again.

A step is looked up by its place and what was asked (fingerprint). When the code has changed, or strands began in
another order, a step may stand elsewhere; so an entry of the same path with the same fingerprint serves too. An entry
that nobody asks for any more is discarded and counted, never used for another question.

Kinds of entries: `model`, `tool`, `value`: an outcome. `fault`: the error that a call ended with. For tools with an
effect: `intent`: about to be called; `effect`: its outcome; `unclear`: the error after which it may have happened.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Container, Iterable
from typing import NamedTuple

import msgspec

from siafu.agents.strands import Place, Strands, parse
from siafu.store.records import Journal, JournalEntry

EFFECTS = ("intent", "effect", "unclear")


class Open(NamedTuple):
    """An effect that has neither happened nor been refused for good: its agent's path, tool and entry, and why."""

    path: str
    tool: str
    entry: JournalEntry
    code: str


class Mark(msgspec.Struct):
    """What the outcome of a tool's entry says: the key of its effect, the code of its result or error, and whether that
    is a result after which it may be done later.
    """

    effect_key: str = ""
    code: str = ""
    later: bool = False


def mark(entry: JournalEntry) -> Mark:
    """Of an entry that has an outcome."""
    return msgspec.json.decode(entry.outcome, type=Mark)


def failed(entry: JournalEntry) -> bool:
    """Whether a call that had no effect came to nothing, and may come to more when it is made anew."""
    return entry.kind == "fault" or (entry.kind == "tool" and mark(entry).later)


class Replay:
    """The journal of one task while it runs. `journal` None = nothing is kept (every look-up misses)."""

    def __init__(self, task: str, journal: Journal | None, entries: Iterable[JournalEntry]) -> None:
        self.place = Strands().place  # of the next step on a path. Call it before the first await of the step
        self.kept = journal is not None
        self._task = task
        self._journal = journal
        self._new: dict[str, int] = defaultdict(int)
        self.open: dict[str, Open] = {}  # effects of this run of the task that are not settled, by key
        self._left = {parse(e.path, e.seq): e for e in entries}
        self._seated = set(self._left)
        self._same: dict[tuple[str, str], list[Place]] = defaultdict(list)
        for place in sorted(self._left):
            entry = self._left[place]
            # The clock and chance are asked for in the same words everywhere: they only serve their own strand.
            path = entry.path if entry.kind == "value" else place.path
            self._same[path, entry.fingerprint].append(place)

    def take(self, place: Place, kinds: Container[str], fingerprint: str) -> JournalEntry | None:
        """The journaled outcome of this step, None when it must run. An entry is given out once.

        `kinds`: all that the outcome may be. They are looked for together: a call that failed and was made again later,
        in the same words, must find its fault first and its success later.
        """
        if not self._left:
            return None
        entry = self._left.get(place)
        if entry is None or entry.kind not in kinds or entry.fingerprint != fingerprint:
            path = place.strand if "value" in kinds else place.path
            same = self._same.get((path, fingerprint), ())
            same = [p for p in same if p in self._left and self._left[p].kind in kinds]
            if not same:
                return None
            place = next((p for p in same if p.order[:-1] == place.order[:-1]), same[0])
        return self._left.pop(place)

    def seat(self, place: Place, kind: str) -> Place:
        """Where to write a new entry: `place`, or one behind it when an entry of another step sits there."""
        while place in self._seated:
            place = Place(place.path, (*place.order[:-1], place.seq + 1))
        self._seated.add(place)
        self._new[kind] += 1
        return place

    def strayed(self, place: Place) -> bool:
        """True when this task has had an effect in this strand, or before it on this path, that it did not ask for
        this time: its prompt, code or answers changed. Another effect could then be the same one in other words.
        (Unchanged, a strand that asks for something new has asked for all its entries before.)
        """
        effects = (p for p, e in self._left.items() if e.kind in EFFECTS and p.path == place.path)
        return any(p.order[:-1] == place.order[:-1] or p < place for p in effects)

    def append(self, entry: JournalEntry) -> Awaitable[None]:
        """Make `entry` durable; returns at once without a journal."""
        return _nowhere() if self._journal is None else self._journal.append(self._task, entry)

    def discarded(self) -> list[JournalEntry]:
        """After the task's last step: the entries in whose stead new ones of their kind were made, the latest first.

        Others that nobody asked for, such as the answers to an even older prompt, stay for the day it comes back.
        """
        new, found = self._new.copy(), []
        for place in sorted(self._left, reverse=True):
            entry = self._left[place]
            if new[entry.kind] > 0:
                new[entry.kind] -= 1
                found.append(entry)
        return found


async def _nowhere() -> None:
    """Where entries go that nobody keeps."""
