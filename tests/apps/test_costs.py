"""Estimates and what-ifs by hand, and their sums."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from siafu.apps.batch import BatchJob
from siafu.apps.costs.estimate import Estimate, Load, Pace, Past, estimate, keep, kept, loads, seconds_under
from siafu.apps.costs.guess import batch_guess, support_guess
from siafu.apps.costs.report import cost_report
from siafu.apps.costs.what_if import what_if
from siafu.apps.support.job import SupportJob
from siafu.apps.support.swarm import Support
from siafu.border.money import PICO
from siafu.errors import InputError, StoreError
from siafu.gateway.pricing import Price, Prices, Rates
from siafu.store.records import AttemptOpened, AttemptSettled
from siafu.store.spending import Sums
from siafu.store.sqlite import SqliteStore

PRICES = Prices(
    [
        Price(model="m", input=Decimal("0.60"), cached=Decimal("0.15"), output=Decimal("2.50")),
        Price(model="dear", input=Decimal(6), cached=Decimal(3), output=Decimal(25)),
    ],
    table=False,
)


def rates(model: str) -> Rates | None:
    return PRICES.rates(model, 0.0)


def batch(count: int, **body: Any) -> io.BytesIO:
    body = {"model": "m", "messages": [{"role": "user", "content": "주문은 어디에 있나요?"}], **body}
    lines = ({"custom_id": f"q{number}", "body": body} for number in range(count))
    return io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def estimated(file: io.BytesIO, earlier: Past | None = None, pace: Pace = Pace(10)) -> Estimate:
    agents, asked = loads(BatchJob("estimate"), batch_guess(None), file)
    return estimate(agents, asked, earlier, rates, pace)


def test_a_batch_that_never_ran_is_told_from_its_lines() -> None:
    found = estimated(batch(100, max_tokens=50))
    (line,) = found.lines
    assert (found.agents, found.calls, found.measured, line.model) == (100, 100, [], "m")
    assert found.output_tokens == 5000 and found.input_tokens == 100 * (line.input_tokens // 100)
    assert found.usd_pico == found.usd_at_most == line.input_tokens * 600_000 + 5000 * 2_500_000
    open_end = estimated(batch(3))
    assert open_end.usd_at_most is None and open_end.usd_pico > 0


def test_earlier_runs_are_believed_when_their_prompts_are_alike() -> None:
    alike = Past(
        runs=["어제"], tasks=10, seconds=2.0,
        parts={("", "m"): Sums(calls=12, answers=10, input_tokens=180, cached_tokens=90, output_tokens=500)},
    )  # fmt: skip
    found = estimated(batch(100, max_tokens=80), alike)
    assert (found.calls, found.input_tokens, found.cached_tokens, found.output_tokens) == (120, 1800, 900, 5000)
    assert found.measured == ["어제"] and found.usd_pico == 900 * 600_000 + 900 * 150_000 + 5000 * 2_500_000
    assert found.usd_at_most == 900 * 600_000 + 900 * 150_000 + 8000 * 2_500_000
    long = batch(100, messages=[{"role": "user", "content": "x" * 4000}])
    other = estimated(long, alike)
    assert other.input_tokens > 100_000 and other.cached_tokens * 2 == other.input_tokens
    assert other.output_tokens == 5000


def test_models_without_a_price_are_named_and_in_no_sum() -> None:
    found = estimated(batch(2, model="kimi-k2.5-preview-x", max_tokens=5))
    assert (found.unpriced, found.usd_pico, found.usd_at_most) == (["kimi-k2.5-preview-x"], 0, None)


def test_support_counts_calls_of_its_roles_or_those_measured() -> None:
    models: Any = {"strong": "dear", "cheap": "m"}
    line = {"id": "r1", "customer": "kim", "text": "주문 1001 어디쯤 왔나요?"}
    agents, asked = loads(
        SupportJob(Support(models=models)), support_guess(models), io.BytesIO(json.dumps(line).encode())
    )
    found = estimate(agents, asked, None, rates, Pace(1))
    assert [(each.role, each.model, each.calls) for each in found.lines] == [("classify", "dear", 1), ("desk", "m", 2)]
    earlier = Past(
        runs=["s"], tasks=2, seconds=1.0,
        parts={
            ("classify", "dear"): Sums(calls=2, answers=2, input_tokens=100, output_tokens=10),
            ("refund", "m"): Sums(calls=6, answers=6, input_tokens=600, output_tokens=60),
        },
    )  # fmt: skip
    again = estimate(10, asked, earlier, rates, Pace(1))
    assert [(each.role, each.calls, each.input_tokens) for each in again.lines] == [
        ("classify", 10, 500),
        ("refund", 30, 3000),
    ]


@pytest.mark.parametrize(
    ("pace", "agents", "calls", "seconds"),
    [
        (Pace(10), 100, 100, 20.0),
        (Pace(100), 1, 3, 6.0),  # one after another
        (Pace(100), 100, 100, 2.0),
        (Pace(100, rpm=60), 100, 100, 100.0),
        (Pace(10, rpm=6000), 100, 100, 20.0),
        (Pace(10), 11, 11, 4.0),  # the eleventh waits for a place
    ],
)
def test_minutes_under_the_limits(pace: Pace, agents: int, calls: int, seconds: float) -> None:
    assert seconds_under(pace, agents, calls, 2.0) == pytest.approx(seconds)


def test_a_price_that_depends_on_length_looks_at_the_mean_call() -> None:
    load = Load(calls=10, input_tokens=1000, output_tokens=100, most_output=100)
    found = estimate(10, {("", "m"): load}, None, rates, Pace(1))
    assert found.usd_pico == 1000 * 600_000 + 100 * 2_500_000


def test_an_estimate_is_remembered(tmp_path: Path) -> None:
    found = estimated(batch(3, max_tokens=5))
    keep(found, tmp_path / "집" / "a.json")
    assert kept(tmp_path / "집" / "a.json") == found and kept(tmp_path / "none") is None


async def journal(path: Path, calls: list[tuple[int, int, int, int | None]]) -> Path:
    """A run `r` with one task a call: input, cached and output tokens, and pico-dollars (None: usage not known)."""
    run = SqliteStore(path).run("r")
    await run.begin("w")
    for number, (fresh, cached, output, usd) in enumerate(calls):
        name = f"{path.stem}{number}"
        await run.ledger.open(
            AttemptOpened(
                attempt=name,
                run="r",
                task=name,
                step="#0",
                agent="",
                role="",
                upstream="u",
                model="m",
                opened_at=100.0,
                reserved_pico=7 * PICO,
            )
        )
        run.ledger.settle(
            AttemptSettled(
                attempt=name,
                outcome="ok",
                settled_at=101.0,
                input_tokens=fresh + cached,
                cached_tokens=cached,
                output_tokens=output,
                usage_known=usd is not None,
                usd_pico=usd,
                seconds=1.0,
            )
        )
    await run.aclose()
    return path


async def test_what_if_keeps_tokens_and_the_cached_part(tmp_path: Path) -> None:
    path = await journal(tmp_path / "a.db", [(100, 300, 10, 5), (100, 0, 10, 7), (0, 0, 0, None)])
    names = ("m", "dear", "nono")
    found = what_if(path, "r", {name: rates(name) for name in names})
    assert found.usd_pico["m"] == 200 * 600_000 + 300 * 150_000 + 20 * 2_500_000
    assert found.usd_pico["dear"] == 200 * 6_000_000 + 300 * 3_000_000 + 20 * 25_000_000
    assert found.usd_pico["nono"] is None
    assert (found.measured.usd_pico, found.left_out, found.work.tasks) == (12, 1, 3)
    assert found.per_tasks(3_000, 100) == 100_000 and found.monthly == 730 * found.hourly
    empty = await journal(tmp_path / "b.db", [(0, 0, 0, None)])
    with pytest.raises(InputError, match="measured"):
        what_if(empty, "r", {"m": rates("m")})


async def test_several_journals_are_one_report_and_none_is_left_out_silently(tmp_path: Path) -> None:
    paths = [await journal(tmp_path / f"{name}.db", [(1, 0, 1, 5), (0, 0, 0, None)]) for name in "ab"]
    found = cost_report(paths, ["model"])
    assert (found.total.calls, found.total.usd_pico, found.total.unknown_pico) == (4, 10, 14 * PICO)
    assert found.groups[0].sums == found.total and found.unread == []
    (tmp_path / "torn.db").write_bytes(b"x" * 5000)
    partly = cost_report([*paths, tmp_path / "torn.db"], ["day"])
    assert partly.total == found.total and "torn.db" in partly.unread[0]
    with pytest.raises(StoreError):
        cost_report([tmp_path / "torn.db"], ["day"])
