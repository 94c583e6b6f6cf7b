"""What many ask of the tasks at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from siafu.store.records import JournalEntry
from siafu.store.task_records import Accepted, Failed, Succeeded, Verdict

from .task_house import House, new


def entry(seq: int) -> JournalEntry:
    return JournalEntry(path="", seq=seq, kind="model", fingerprint="f", outcome=b"1")


async def test_what_many_ask_for_at_once_is_answered_to_each_out_of_few_transactions(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions, run = 0, house.database.run

    async def counted(*words: Any, **options: Any) -> Any:
        nonlocal transactions
        transactions += 1
        return await run(*words, **options)

    monkeypatch.setattr(house.database, "run", counted)
    asked = [new(f"r{n % 150}", tenant=f"t{n % 3}", payload=str(n // 290)) for n in range(300)]
    found = [one for (one,) in await asyncio.gather(*(house.store.accept([task]) for task in asked))]
    fresh = [each for each in found if isinstance(each, Accepted) and each.fresh]
    assert len({each.id for each in fresh}) == len(fresh) == 150
    told = Counter("fresh" if isinstance(each, Accepted) and each.fresh else type(each).__name__ for each in found)
    assert told == {"fresh": 150, "Accepted": 140, "NotAccepted": 10}
    assert [each.id for each in found[150:]] == [each.id for each in found[:150]]
    leases = await house.claim(150)
    await asyncio.gather(*(house.store.append(each.id, each.epoch, entry(n)) for each in leases for n in (0, 1)))
    verdicts: list[Verdict] = [
        Succeeded('"가"'),
        Failed(code="bad", message="\0"),
        Failed(code="again", message="", passing=True),
    ]
    ends = [(each.id, epoch, verdicts[n % 3]) for n, each in enumerate(leases) for epoch in (each.epoch, 7)]
    states = await asyncio.gather(*(house.store.end(*end) for end in ends))
    assert Counter(states) == {"succeeded": 50, "failed": 50, "waiting": 50, None: 150}
    assert {(await house.task(each.id)).fenced for each in leases[:3]} == {1}
    assert [each.seq for each in await house.store.entries(leases[0].id)] == [0, 1]
    assert transactions <= 20
