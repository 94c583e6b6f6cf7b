"""What the calls of a run would have cost on other models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from siafu.errors import InputError
from siafu.gateway.chat import Usage
from siafu.gateway.pricing import Rates
from siafu.store.spending import Spending, Sums, Work

MONTH_HOURS = 730  # 365 days / 12


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """measured: the answers of the run whose usage is known; everything here is about their tokens. left_out: its other
    calls. work: what the run has done, and how long it took. usd_pico: what each model would have taken for the same
    tokens, cached ones at its own price for these; None = it has no price.
    """

    run: str
    measured: Sums
    left_out: int
    work: Work
    usd_pico: dict[str, int | None]

    def per_tasks(self, usd_pico: int, tasks: int) -> int:
        """Pico-dollars for so many tasks like these."""
        return usd_pico * tasks // max(1, self.work.tasks)

    @property
    def hourly(self) -> int:
        """Tasks an hour at the pace of the run, while it worked; 0 when it took no time."""
        return int(self.work.tasks * 3600 / self.work.seconds) if self.work.seconds else 0

    @property
    def monthly(self) -> int:
        """Tasks a month at that pace, day and night."""
        return MONTH_HOURS * self.hourly


def what_if(path: Path, run: str, rates: Mapping[str, Rates | None]) -> WhatIf:
    """The measured calls of `run` in the journal at `path`, priced by each model of `rates`; None = it has no price.
    Blocks.

    Raises: InputError when no call of it was measured; StoreError.
    """
    total, answers, costs = Sums(), Sums(), dict.fromkeys(rates, 0)
    priced = [(model, found) for model, found in rates.items() if found is not None]
    with Spending(path) as ledger:
        for part in ledger.parts((), run=run):
            total += part.sums
            answers += part.sums if part.fate == "answer" else Sums()
        for call in ledger.measured(run):
            usage = Usage(input=call.input, cached=call.cached, cache_write=call.cache_write, output=call.output)
            for model, each in priced:
                costs[model] += each.cost(usage)
        work = ledger.work(run)
    known = answers.calls - answers.unknown
    if not known:
        raise InputError(f"no call of the run {run!r} was measured, so there is nothing to price")
    return WhatIf(
        run=run,
        measured=answers,
        left_out=total.calls - known,
        work=work,
        usd_pico={model: None if found is None else costs[model] for model, found in rates.items()},
    )
