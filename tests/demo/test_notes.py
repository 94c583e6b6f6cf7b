from __future__ import annotations

from collections import Counter
from pathlib import Path

from siafu.bench.demo import notes
from siafu.bench.demo.account import Notes
from siafu.store.records import AttemptOpened, AttemptSettled
from siafu.store.report import Report
from siafu.store.sqlite import SqliteStore


def test_the_log_of_a_script(tmp_path: Path) -> None:
    log = tmp_path / "out.jsonl"
    log.write_bytes(
        b'{"usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11,'
        b' "prompt_tokens_details": {"cached_tokens": 4}}, "model": "m"}\n'
        b'{"usage": {"prompt_tokens": 9, "completion_tokens": 2}, "model": "m"}\n'
        b'hello\n{"usage": null, "model": "m"}\n{"usage": {"prompt_tokens": 9, "comple'
        b'{"usage": {"prompt_tokens": 9, "completion_tokens": 2}, "model": "m"}\n'
    )
    assert notes.from_log(log) == Notes(known=Counter({("m", 9, 4, 2): 1, ("m", 9, 0, 2): 1}))
    assert notes.from_log(tmp_path / "none").known == Counter()


def test_results(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text('{"id": "a", "status": "ok"}\n{"id": "a", "status": "ok"}\n{"id": "b", "status": "error"}\n{"id"')
    lines = notes.results(file)
    assert [line.id for line in lines] == ["a", "a", "b"]
    assert notes.answers(lines) == {"a": 2}
    assert notes.results(tmp_path / "none") == []


async def test_the_ledger_explains_what_it_knows_and_what_it_knows_of(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "run.db").run("run")
    await store.begin("w")
    for number in range(4):
        opened = AttemptOpened(
            attempt=f"a{number}",
            run="run",
            task="r1",
            step="#0",
            agent="",
            role="",
            upstream="u",
            model="m",
            opened_at=1.0,
            reserved_pico=70 + number,
        )
        await store.ledger.open(opened)
    ok = AttemptSettled(
        attempt="a0", outcome="ok", settled_at=2.0, input_tokens=9, cached_tokens=4, output_tokens=2, usage_known=True
    )
    store.ledger.settle(ok)
    store.ledger.settle(AttemptSettled(attempt="a1", outcome="refused", settled_at=2.0, status=429, usage_known=True))
    store.ledger.settle(AttemptSettled(attempt="a2", outcome="abandoned", settled_at=2.0, code="lost_in_crash"))
    await store.aclose()
    with Report(tmp_path / "run.db") as report:
        found = notes.from_ledger(report, "run", ["r1", "r2"])
    assert found.known == Counter({("m", 9, 4, 2): 1})
    assert sorted(found.unknown) == [("m", 72), ("m", 73)]
