"""What attempts cost, added up by SQLite in the journal's own file: so a ledger of any length needs little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from siafu.store.journal_file import JournalFile
from siafu.store.records import DOUBTFUL
from siafu.store.schema import may_be_ours

# What a ledger can be divided by. The model is the one that served, else the one that was asked; the key that of the
# upstream; the client a client key of `siafu serve`, whose tasks begin with it.
DIMENSIONS: dict[str, str] = {
    "run": "run.name",
    "model": "COALESCE(NULLIF(served_model, ''), model)",
    "role": "role",
    "agent": "agent",
    "upstream": "upstream",
    "key": "attempt.key",
    "client": "CASE WHEN run.name = 'serve' AND task GLOB 'key_*/*' THEN substr(task, 1, instr(task, '/') - 1)"
    " ELSE '' END",
    "bucket": "bucket",
    "day": "strftime('%Y-%m-%d', opened_at, 'unixepoch')",
}


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts added up.

    answers: of them became the answer to a step. wasted: settled, and became nobody's answer. input_tokens holds cached
    and cache_write tokens, output_tokens the reasoning ones. usd_pico: cost of those whose usage is known. unknown:
    those whose usage is not known, as they were cut off or are still open; together they cost between 0 and
    unknown_pico, their reservations. unpriced: without a price, or of unknown usage and without a reservation, so in
    neither amount. hits: those that the prompt cache helped; saved_pico: what it saved, below 0 when writing it cost
    more. doubtful: those whose counts of it contradict each other. wasted_pico, wasted_unknown_pico: the part of either
    amount that the wasted ones make.
    """

    calls: int = 0
    answers: int = 0
    wasted: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    usd_pico: int = 0
    unknown: int = 0
    unknown_pico: int = 0
    unpriced: int = 0
    hits: int = 0
    saved_pico: int = 0
    doubtful: int = 0
    wasted_pico: int = 0
    wasted_unknown_pico: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(**{name: getattr(self, name) + getattr(other, name) for name in _FIELDS})

    @property
    def fresh_tokens(self) -> int:
        """Tokens of input that no cache gave."""
        return self.input_tokens - self.cached_tokens

    @property
    def hit_ratio(self) -> float:
        """The part of the input that the prompt cache gave, from 0 to 1."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0


_FIELDS = Sums.__struct_fields__


class Part(msgspec.Struct, frozen=True):
    """Attempts that have much in common. key: their values of the dimensions asked for. fate: answer, open (not settled
    yet), repeated (answered, and the step was answered again later), hedged (given up, as a second request was quicker,
    or the first one after all), or the outcome (refused, failed, abandoned).
    code: why, empty for most.
    """

    key: tuple[str, ...]
    fate: str
    code: str
    sums: Sums


class Measured(msgspec.Struct, frozen=True):
    """Tokens of one attempt whose usage is known."""

    model: str
    input: int
    cached: int
    cache_write: int
    output: int


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has done. tasks: items that some call was made for. seconds: in which its processes worked."""

    tasks: int
    seconds: float


# An answer counts for its step when no later one took its place; calls outside any step have no place to take.
_FATE = """CASE WHEN outcome IS NULL THEN 'open' WHEN code = 'hedge_lost' THEN 'hedged'
    WHEN outcome <> 'ok' THEN outcome
    WHEN step = '' OR attempt.id IN (SELECT MAX(id) FROM attempt WHERE outcome = 'ok' GROUP BY run, task, step)
    THEN 'answer' ELSE 'repeated' END"""
# Where the price is unknown, the amount is NULL and SUM leaves it out; `unpriced` counts it.
_SUMS = f"""COUNT(*), SUM(input_tokens), SUM(cached_tokens), SUM(cache_write_tokens), SUM(output_tokens),
    SUM(reasoning_tokens), COALESCE(SUM(usd_pico) FILTER (WHERE usage_known), 0),
    COUNT(*) FILTER (WHERE NOT usage_known),
    COALESCE(SUM(reserved_pico) FILTER (WHERE NOT usage_known), 0),
    COUNT(*) FILTER (WHERE CASE WHEN usage_known THEN usd_pico ELSE reserved_pico END IS NULL),
    COUNT(*) FILTER (WHERE cached_tokens > 0), SUM(saved_pico),
    COUNT(*) FILTER (WHERE code = '{DOUBTFUL}')"""
_WHEN = "opened_at >= ? AND opened_at < ? AND (? IS NULL OR run.name = ?)"
_FROM = f"FROM attempt JOIN run ON run.id = attempt.run WHERE {_WHEN}"
_USED = "input_tokens, cached_tokens, cache_write_tokens, output_tokens"


class Spending(JournalFile):
    """The ledger in a journal file."""

    def total(self, run: str) -> Sums:
        """All attempts of a run; zeros when there is none."""
        return sum((part.sums for part in self.parts((), run=run)), Sums())

    def parts(
        self, by: Sequence[str], *, run: str | None = None, since: float = 0.0, until: float = 1e12
    ) -> Iterator[Part]:
        """All attempts sent from `since` until before `until` (seconds since 1970), in parts, by key.

        by: names of DIMENSIONS. run: only this one.
        """
        keys = [DIMENSIONS[name] for name in by]
        numbers = ", ".join(str(number) for number in range(1, len(keys) + 3))
        columns = ", ".join([*keys, _FATE, "code", _SUMS])
        for row in self._rows(
            f"SELECT {columns} {_FROM} GROUP BY {numbers} ORDER BY {numbers}", since, until, run, run
        ):
            key, fate, code = row[: len(keys)], row[len(keys)], row[len(keys) + 1]
            yield Part(key, fate, code, _sums(fate, *row[len(keys) + 2 :]))

    def measured(self, run: str) -> Iterator[Measured]:
        """Every answer of a run that counted for its step and whose usage is known, without an order."""
        model = DIMENSIONS["model"]
        query = f"SELECT {model}, {_USED} {_FROM} AND usage_known AND {_FATE} = 'answer'"
        return (Measured(*row) for row in self._rows(query, 0.0, 1e12, run, run))

    def work(self, run: str) -> Work:
        """What a run has done, whole. A session that was killed ended with its last call."""
        tasks = f"SELECT COUNT(DISTINCT task) {_FROM}"
        seconds = """SELECT COALESCE(SUM(MAX(0, COALESCE(ended_at, (SELECT MAX(settled_at) FROM attempt
            WHERE attempt.run = session.run AND opened_at >= began_at AND opened_at < COALESCE((SELECT MIN(began_at)
            FROM session AS later WHERE later.run = session.run AND later.session > session.session), 1e12)), began_at)
            - began_at)), 0.0) FROM session JOIN run ON run.id = session.run WHERE run.name = ?"""
        ((done,),), ((spent,),) = self._rows(tasks, 0.0, 1e12, run, run), self._rows(seconds, run)
        return Work(tasks=done, seconds=spent)

    def seconds_per_call(self, run: str) -> float | None:
        """The mean of the answers of a run; None when there is none."""
        ((mean,),) = self._rows(f"SELECT AVG(seconds) {_FROM} AND outcome = 'ok'", 0.0, 1e12, run, run)
        return None if mean is None else float(mean)


def _sums(fate: str, calls: int, *sums: int) -> Sums:
    """`sums`: the columns of _SUMS behind the first."""
    answered, waste = fate == "answer", fate not in ("answer", "open")
    added = dict(zip(_FIELDS[3:15], sums, strict=True))
    return Sums(
        calls=calls,
        answers=calls if answered else 0,
        wasted=calls if waste else 0,
        wasted_pico=added["usd_pico"] if waste else 0,
        wasted_unknown_pico=added["unknown_pico"] if waste else 0,
        **added,
    )


def journals(folder: Path) -> list[Path]:
    """The journal files in a SIAFU_HOME, those that `--fresh` has put aside too. A file that cannot be read is among
    them, so that whoever reads it learns why; a database of another kind is not.
    """
    folder = folder.resolve()
    return [path for path in sorted({*folder.glob("*.db"), *folder.glob("runs/*.db")}) if may_be_ours(path)]
