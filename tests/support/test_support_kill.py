"""Kill -9, again and again, of `siafu support run` and `siafu batch run`, judged by the endpoint's own records."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from paysim import running_payments
from sim import Sim, running_sim
from support.commands import Command, examples, processes, records, until, write

pytestmark = [pytest.mark.kill, pytest.mark.slow]
CONCURRENCY = 8
POINTS = {"after_append": 2, "after_record": 1, "before_commit": 6, "after_commit": 7, "after_open": 3}
REQUESTS = examples(40)


@pytest.fixture
def sim() -> Iterator[Sim]:
    with running_sim(seed=3, latency="fixed:40ms") as sim:
        yield sim


def support_run(folder: Path, sim: Sim) -> Command:
    write(folder / "문의.jsonl", REQUESTS)
    words = ("support", "run", "문의.jsonl", "--out", "out.jsonl", "--database", str(folder / "shop.db"))
    return Command(folder, sim, *words, "--concurrency", str(CONCURRENCY), "--base-url", sim.url, "--quiet")


def die(command: Command, rng: random.Random, kills: int) -> None:
    """So many deaths with work in flight, at random moments and at crash points in turn."""
    turns = itertools.cycle(POINTS)
    while sum(map(bool, command.unsettled)) < kills:
        if len(command.unsettled) % 2:
            point = next(turns)
            ended = command.live(crash_at=f"{point}:{POINTS[point] + rng.randint(0, 2)}")
        else:
            ended = command.live(kill_at=rng.randint(1, CONCURRENCY), linger=rng.uniform(0, 0.04))
        assert ended, "it has finished before it was killed often enough"


def check_nothing_lost_or_paid_twice(command: Command) -> None:
    # Calls in flight at a kill are asked again, and nothing else is.
    assert all(0 <= lost <= CONCURRENCY for lost in command.lost), command.lost
    assert command.repeated() <= sum(command.lost)
    # No request reached the endpoint without a line in the ledger; a line without a request was in flight at a kill.
    asked = command.sim.requests()
    lines = command.query("SELECT outcome, usage_known, input_tokens, output_tokens FROM attempt")
    assert len(asked) <= len(lines) <= len(asked) + sum(command.unsettled)
    assert all(outcome is not None for outcome, *_ in lines)
    # Every line of known usage is one request, with the endpoint's own numbers; the rest went down with a process.
    served = Counter((r["usage"]["prompt_tokens"], r["usage"]["completion_tokens"]) for r in asked if r["usage"])
    known = Counter((line[2], line[3]) for line in lines if line[1])
    assert not known - served
    assert (served - known).total() <= sum(command.unsettled)


@pytest.mark.timeout(300)
def test_kills_of_a_support_run(tmp_path: Path, sim: Sim) -> None:
    command = support_run(tmp_path, sim)
    with running_payments(tmp_path / "paid.jsonl", slow=20) as payments:
        command.environment = {"SIAFU_PAYMENTS_URL": payments.url}
        die(command, random.Random(11), kills=10)  # each crash point among them
        assert command.live() == 0
        effects, duplicates = payments.effects(), payments.stats()["duplicates"]
    check_nothing_lost_or_paid_twice(command)
    out = records(tmp_path / "out.jsonl")
    assert Counter(record["id"] for record in out) == Counter(request.id for request in REQUESTS)
    assert {record["status"] for record in out} == {"ok"}
    assert {record["outcome"] for record in out if record["category"] != "refund"} == {"answered"}
    # Every complaint has one ticket, and every refund that a record tells of was paid, once.
    tickets = Counter(record["ticket"] for record in out if record["category"] == "complaint")
    assert None not in tickets
    assert set(tickets.values()) == {1}
    assert duplicates == 0
    paid = Counter(
        refund["amount_minor"] for record in out for refund in record["refunds"] if refund["state"] == "paid"
    )
    assert paid
    assert not paid - Counter(effect["amount"] for effect in effects)
    # The records hold each call once, whatever had to be asked again.
    usage = {r["sha256"]: r["usage"] for r in sim.requests() if r["usage"]}
    assert sum(record["tokens"]["input"] for record in out) == sum(u["prompt_tokens"] for u in usage.values())
    assert sum(record["tokens"]["output"] for record in out) == sum(u["completion_tokens"] for u in usage.values())
    assert sum(record["steps"] for record in out) == len(usage)
    until(lambda: not processes(str(tmp_path / "shop.db")), "a shop has outlived its client")


@pytest.mark.timeout(120)
def test_the_check_can_fail(tmp_path: Path, sim: Sim) -> None:
    command = support_run(tmp_path, sim)
    for _ in range(2):
        assert command.live(kill_at=3 * CONCURRENCY)
        command.forget()
    assert command.live() == 0
    assert command.repeated() > sum(command.lost)


@pytest.mark.timeout(120)
def test_kills_of_a_batch_run(tmp_path: Path, sim: Sim) -> None:
    asked = examples(120)  # one call each, so that they outlast the kills
    rows = [
        {
            "custom_id": request.id,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "deepseek-v3.2", "messages": [{"role": "user", "content": request.text}]},
        }
        for request in asked
    ]
    write(tmp_path / "묶음.jsonl", rows)
    words = ("batch", "run", "묶음.jsonl", "--out", "out.jsonl", "--base-url", sim.url, "--quiet")
    command = Command(tmp_path, sim, *words, "--concurrency", str(CONCURRENCY))
    die(command, random.Random(5), kills=6)
    assert command.live() == 0
    check_nothing_lost_or_paid_twice(command)
    out = records(tmp_path / "out.jsonl")
    assert Counter(record["custom_id"] for record in out) == Counter(request.id for request in asked)
    assert all(record["response"]["status_code"] == 200 for record in out)
