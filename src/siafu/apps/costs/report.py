"""The ledgers of several journals as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from siafu.errors import StoreError
from siafu.store.spending import Spending, Sums


class Group(msgspec.Struct, frozen=True):
    """`key`: the values of the dimensions asked for; for waste, what became of the calls and the error's code."""

    key: tuple[str, ...]
    sums: Sums


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """total: of all attempts of the journals that could be read; exactly the sum of `groups`. groups: the dearest
    first, or by day. waste: attempts that became nobody's answer, the most frequent first. unread: journals that
    could not be read, and why.
    """

    total: Sums
    groups: list[Group]
    waste: list[Group]
    unread: list[str]


def cost_report(
    paths: Sequence[Path], by: Sequence[str], *, run: str | None = None, since: float = 0.0, until: float = 1e12
) -> CostReport:
    """What the attempts in the journals at `paths` cost; see `Spending.parts`. Blocks.

    Raises: StoreError when the only journal cannot be read.
    """
    groups: defaultdict[tuple[str, ...], Sums] = defaultdict(Sums)
    waste: defaultdict[tuple[str, ...], Sums] = defaultdict(Sums)
    unread = []
    for path in paths:
        try:
            with Spending(path) as ledger:
                parts = list(ledger.parts(by, run=run, since=since, until=until))
        except StoreError as error:
            if len(paths) == 1:
                raise
            unread.append(error.message)
            continue
        for part in parts:
            groups[part.key] += part.sums
            if part.sums.wasted:
                waste[part.fate, part.code] += part.sums
    total = sum(groups.values(), Sums())
    return CostReport(
        total=total,
        groups=[Group(*each) for each in sorted(groups.items(), key=lambda each: _order(by, *each))],
        waste=[Group(*each) for each in sorted(waste.items(), key=lambda each: (-each[1].calls, each[0]))],
        unread=unread,
    )


def _order(by: Sequence[str], key: tuple[str, ...], sums: Sums) -> tuple[str, int, tuple[str, ...]]:
    day = key[list(by).index("day")] if "day" in by else ""
    return (day, -sums.usd_pico - sums.unknown_pico, key)
