"""A run, reopened again and again, against a model made of plain dicts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from siafu.store.records import AttemptOpened, AttemptSettled, Claimed, ItemRecord, JournalEntry, RunState, RunStore

from .conftest import DURABLE
from .rows import entry, item, opened, settled

KEYS = st.sampled_from(["가", "b", "", "d/1"])
WORKS = st.sampled_from(["one", "two"])
AMOUNTS = st.none() | st.integers(0, 1000)


class Model:
    """What one run should know."""

    def __init__(self) -> None:
        self.session = 0
        self.claimed: dict[str, int] = {}
        self.results: dict[str, ItemRecord] = {}
        self.entries: dict[str, dict[tuple[str, int], JournalEntry]] = {}
        self.opened: dict[str, AttemptOpened] = {}
        self.cost: dict[str, int | None] = {}

    def begin(self, work: str) -> RunState:
        self.session += 1
        lost = {name: line.reserved_pico for name, line in self.opened.items() if name not in self.cost}
        self.cost |= lost
        done = [r for r in self.results.values() if r.status == "ok"]
        changed = [r for r in done if work and r.work_print not in ("", work)]
        return RunState(
            session=self.session,
            finished=len(done),
            failed=len(self.results) - len(done),
            changed=len(changed),
            changed_pico=sum(r.usd_pico or 0 for r in changed),
            spent_pico=sum(cost or 0 for cost in self.cost.values()),
            in_flight=len(lost),
            in_flight_pico=sum(reserved or 0 for reserved in lost.values()),
        )

    def claim(self, key: str) -> Claimed:
        duplicate = self.claimed.get(key) == self.session
        self.claimed[key] = self.session
        journaled = self.session > 1 and key in self.entries
        return Claimed(key=key, record=self.results.get(key), duplicate=duplicate, journaled=journaled)

    def record(self, result: ItemRecord) -> None:
        self.claimed.setdefault(result.key, self.session)
        self.results[result.key] = result


class Runs(RuleBasedStateMachine):
    """Rules act on the store and the model; each answer of the store is compared at once."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.backend = DURABLE["sqlite"](self.folder)
        self.runner = asyncio.Runner()
        self.model = Model()
        self.run: RunStore | None = None

    def teardown(self) -> None:
        if self.run is not None:
            self.runner.run(self.run.aclose())
        self.runner.close()
        shutil.rmtree(self.folder)

    def do(self, what: Any) -> Any:
        async def wait() -> Any:
            return await what

        return self.runner.run(wait())

    @property
    def store(self) -> RunStore:
        assert self.run is not None
        return self.run

    @initialize(work=WORKS)
    def first(self, work: str) -> None:
        self.run = self.backend.run("r")
        assert self.do(self.run.begin(work)) == self.model.begin(work)

    @rule(work=WORKS)
    def reopen(self, work: str) -> None:
        self.do(self.store.aclose())
        self.first(work)

    @rule(keys=st.lists(KEYS, max_size=4))
    def claim(self, keys: list[str]) -> None:
        claimed = self.do(self.store.claim([(key, "in") for key in keys]))
        assert claimed == [self.model.claim(key) for key in keys]

    @rule(key=KEYS, work=WORKS, status=st.sampled_from(["ok", "error"]), usd=AMOUNTS, value=st.binary(max_size=3))
    def record(self, key: str, work: str, status: str, usd: int | None, value: bytes) -> None:
        result = item(key, work_print=work, status=status, usd_pico=usd, value=value)
        self.do(self.store.record(result))
        self.model.record(result)

    @rule(key=KEYS, path=st.sampled_from(["", "/a"]), seq=st.integers(0, 2), outcome=st.binary(max_size=3))
    def append(self, key: str, path: str, seq: int, outcome: bytes) -> None:
        step = entry(seq, path, outcome=outcome)
        self.do(self.store.journal.append(key, step))
        self.model.entries.setdefault(key, {})[path, seq] = step

    @rule(key=KEYS)
    def entries(self, key: str) -> None:
        expected = [step for _, step in sorted(self.model.entries.get(key, {}).items())]
        assert self.do(self.store.journal.entries(key)) == expected

    @rule(reserved=AMOUNTS)
    def open(self, reserved: int | None) -> None:
        line = opened(f"a{len(self.model.opened)}", reserved_pico=reserved)
        self.do(self.store.ledger.open(line))
        self.model.opened[line.attempt] = line

    @rule(data=st.data(), usd=AMOUNTS)
    def settle(self, data: st.DataObject, usd: int | None) -> None:
        name = data.draw(st.sampled_from([*self.model.opened, "never opened"]))
        line: AttemptSettled = settled(name, usd_pico=usd)
        self.store.ledger.settle(line)
        if name in self.model.opened:
            self.model.cost.setdefault(name, usd)

    @invariant()
    def one_file_and_its_lock(self) -> None:
        names = {path.name.removeprefix(self.backend.path.name) for path in self.backend.path.parent.glob("*")}
        assert names <= {"", ".lock", "-wal", "-shm"}


Runs.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestRuns = Runs.TestCase
