"""What a file will cost: from the file itself, and better from earlier runs of the same work, when there are any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from siafu.apps.filerun.check import checked
from siafu.apps.filerun.job import FileJob
from siafu.border.jsonl import disk
from siafu.errors import StoreError
from siafu.gateway.chat import Usage
from siafu.gateway.pricing import Rates
from siafu.store.spending import Spending, Sums, journals

if TYPE_CHECKING:  # it knows the support swarm, which a run over a file that only reads an estimate need not import
    from siafu.apps.costs.guess import Guess, Guessing

RECENT = 20  # journals looked at for earlier runs, the newest
ALIKE = 2  # times: earlier prompts that were so much longer or shorter say nothing of this file's
START_SECONDS, TOKENS_A_SECOND = 1.0, 60  # of a call, when none was measured

Key = tuple[str, str]  # role, model
Pricing = Callable[[str], Rates | None]


class Load(msgspec.Struct):
    """Calls of one kind in a file. output_tokens: expected; most_output: None = a call among them names no limit."""

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    most_output: int | None = 0

    def add(self, guess: Guess) -> None:
        self.calls += guess.calls
        self.input_tokens += guess.calls * guess.input_tokens
        self.output_tokens += guess.calls * guess.output_tokens
        if self.most_output is not None:
            self.most_output = None if guess.most_output is None else self.most_output + guess.calls * guess.most_output


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier runs of the same work measured. parts: calls by role and model, the wasted ones among them."""

    runs: list[str]
    tasks: int
    seconds: float
    parts: dict[Key, Sums]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one role to one model. usd_pico: expected; usd_at_most: when every answer is as long as it may be.
    None = unknown: there is no price, or no limit of output.
    """

    role: str
    model: str
    calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    usd_pico: int | None
    usd_at_most: int | None


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """agents: items, each of which gets an agent. seconds: under the limits. measured: the earlier runs that tokens are
    taken from, empty = all is told from the file. unpriced: models without a price; usd_pico leaves these out.
    """

    agents: int
    calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    usd_pico: int
    usd_at_most: int | None
    seconds: float
    measured: list[str]
    unpriced: list[str]
    lines: list[Line]


class Pace(msgspec.Struct, frozen=True):
    """What holds calls back. concurrency: items at once. rpm: requests a minute, None = nobody has set a limit."""

    concurrency: int
    rpm: float | None = None


def loads(job: FileJob, guess: Guessing, file: BinaryIO, limit: int | None = None) -> tuple[int, dict[Key, Load]]:
    """How many usable lines `file` has, and what they ask of models. Reads it once; no call is made.

    Raises: InputError.
    """
    found: defaultdict[Key, Load] = defaultdict(Load)

    def see(value: Any) -> None:
        for each in guess(value):
            found[each.role, each.model].add(each)

    seen = checked(job, file, limit=limit, see=see)
    seen.index.close()
    return seen.usable, dict(found)


def past(home: Path, work_print: str) -> Past | None:
    """What the newest runs in `home` that did this work measured; None when there is none that got an answer. A journal
    that cannot be read is passed over.
    """
    parts: defaultdict[Key, Sums] = defaultdict(Sums)
    runs, tasks, seconds = list[str](), 0, 0.0
    for path in sorted(journals(home), key=lambda path: path.stat().st_mtime, reverse=True)[:RECENT]:
        try:
            with Spending(path) as ledger:
                for run in ledger.runs(work_print):
                    mean = ledger.seconds_per_call(run)
                    if mean is None:
                        continue
                    ours = Sums()
                    for part in ledger.parts(("role", "model"), run=run):
                        parts[part.key[0], part.key[1]] += part.sums
                        ours += part.sums
                    runs.append(run)
                    tasks += ledger.work(run).tasks
                    seconds += mean * ours.calls
        except StoreError:
            continue
    calls = sum(sums.calls for sums in parts.values())
    return Past(runs=runs, tasks=tasks, seconds=seconds / calls, parts=dict(parts)) if runs else None


def estimate(agents: int, asked: Mapping[Key, Load], earlier: Past | None, rates: Pricing, pace: Pace) -> Estimate:
    """The sums. Pure."""
    expected = asked if earlier is None else _measured(agents, asked, earlier)
    lines = [_line(key, load, rates(key[1])) for key, load in sorted(expected.items())]
    calls = sum(line.calls for line in lines)
    output = sum(line.output_tokens for line in lines)
    most = [line.usd_at_most for line in lines if line.usd_at_most is not None]
    a_call = START_SECONDS + output / max(1, calls) / TOKENS_A_SECOND if earlier is None else earlier.seconds
    return Estimate(
        agents=agents,
        calls=calls,
        input_tokens=sum(line.input_tokens for line in lines),
        cached_tokens=sum(line.cached_tokens for line in lines),
        output_tokens=output,
        usd_pico=sum(line.usd_pico or 0 for line in lines),
        usd_at_most=sum(most) if len(most) == len(lines) else None,
        seconds=seconds_under(pace, agents, calls, a_call),
        measured=[] if earlier is None else earlier.runs,
        unpriced=sorted({line.model for line in lines if line.usd_pico is None}),
        lines=lines,
    )


def seconds_under(pace: Pace, agents: int, calls: int, a_call: float) -> float:
    """Wall time of `calls` that take `a_call` seconds each: the calls of an agent one after another, agents in
    parallel. No faster than the rate allows.
    """
    rounds = -(-agents // pace.concurrency)  # of agents in parallel, rounded up
    working = max(calls * a_call / pace.concurrency, rounds * calls / max(1, agents) * a_call)
    return max(working, 0.0 if pace.rpm is None else calls * 60 / pace.rpm)


def _measured(agents: int, asked: Mapping[Key, Load], earlier: Past) -> dict[Key, Load]:
    """What was measured, scaled to this file. A batch says itself which models it asks how often; of other work the
    earlier runs tell that, too.
    """
    if any(role for role, _ in asked):
        return {key: _scaled(sums, agents / earlier.tasks) for key, sums in earlier.parts.items()}
    found = {}
    for key, load in asked.items():
        sums = earlier.parts.get(key, Sums())
        found[key] = _corrected(load, _scaled(sums, load.calls / sums.answers)) if sums.answers else load
    return found


def _scaled(sums: Sums, scale: float) -> Load:
    return Load(
        calls=round(sums.calls * scale),
        input_tokens=round(sums.input_tokens * scale),
        cached_tokens=round(sums.cached_tokens * scale),
        output_tokens=round(sums.output_tokens * scale),
        most_output=None,
    )


def _corrected(load: Load, measured: Load) -> Load:
    """`measured`, with the input that the file tells when earlier prompts were of quite another length."""
    measured.most_output = load.most_output
    if load.input_tokens > ALIKE * measured.input_tokens or measured.input_tokens > ALIKE * load.input_tokens:
        measured.cached_tokens = measured.cached_tokens * load.input_tokens // max(1, measured.input_tokens)
        measured.input_tokens = load.input_tokens
    return measured


def _line(key: Key, load: Load, rates: Rates | None) -> Line:
    usd = most = None
    if rates is not None:
        usd = _cost(rates, load, load.output_tokens)
        most = None if load.most_output is None else _cost(rates, load, max(load.output_tokens, load.most_output))
    return Line(
        role=key[0],
        model=key[1],
        calls=load.calls,
        input_tokens=load.input_tokens,
        cached_tokens=load.cached_tokens,
        output_tokens=load.output_tokens,
        usd_pico=usd,
        usd_at_most=most,
    )


def _cost(rates: Rates, load: Load, output: int) -> int:
    return rates.cost(Usage(input=load.input_tokens, cached=load.cached_tokens, output=output), max(1, load.calls))


def estimate_path(home: Path, run: str) -> Path:
    """Where the estimate for a run over a file is kept; not with its journal, which `--fresh` puts aside."""
    return home / "estimates" / f"{run}.json"


def keep(found: Estimate, path: Path) -> None:
    """Remember an estimate, to be shown beside what the run has cost. Raises: StoreError."""
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(found))


def kept(path: Path) -> Estimate | None:
    """The estimate at `path`; None when there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Estimate)
    except (OSError, msgspec.MsgspecError):
        return None
