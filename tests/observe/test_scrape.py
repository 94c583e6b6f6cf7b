from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from siafu.errors import StoreError
from siafu.observe.counts import Counts
from siafu.observe.events import AttemptEnded, ItemEnded
from siafu.observe.figures import Family
from siafu.observe.lag import LoopLag
from siafu.observe.scrape import KEPT_SECONDS, Scrape
from siafu.pace.clock import VirtualClock


async def page(scrape: Scrape, accept: str = "") -> dict[str, float]:
    """Every sample of the page, by its name and labels."""
    _, text = await scrape.render(accept)
    return {
        f"{sample.name}{dict(sorted(sample.labels.items())) or ''}": sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_what_prometheus_reads_is_what_was_counted() -> None:
    scrape = Scrape(Counts(), VirtualClock())
    scrape.counts(AttemptEnded(model="모델", upstream='u"\n\\', role="r", seconds=1.5, usd_pico=2_500_000_000))
    scrape.counts(ItemEnded(seconds=0.15))
    found = await page(scrape)
    labels = {"model": "모델", "role": "r", "upstream": 'u"\n\\'}
    assert found[f"siafu_cost_usd_total{labels}"] == 0.0025
    assert found["agent_swarm_task_total"] == 1
    assert found["agent_swarm_task_latency_ms_bucket{'le': '100.0'}"] == 0
    assert found["agent_swarm_task_latency_ms_bucket{'le': '250.0'}"] == 1
    assert found["agent_swarm_task_latency_ms_bucket{'le': '+Inf'}"] == 1
    assert found["process_resident_memory_bytes"] > 0


async def test_sources_that_tell_of_one_metric_are_one_family() -> None:
    scrape = Scrape(Counts(), VirtualClock())
    for store in ("ledger", "tasks"):
        scrape.add(lambda store=store: [Family("siafu_x", "counter", "x", ("store",), [((store,), 1)])])  # type: ignore[misc]
    _, text = await scrape.render("")
    assert text.count(b"# TYPE siafu_x_total counter") == 1
    assert {"siafu_x_total{'store': 'ledger'}", "siafu_x_total{'store': 'tasks'}"} <= (await page(scrape)).keys()


async def test_who_asks_for_openmetrics_gets_it() -> None:
    content_type, text = await Scrape(Counts(), VirtualClock()).render("application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


async def test_a_database_is_asked_once_in_a_while_and_its_fault_costs_its_own_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, asked = VirtualClock(), 0
    scrape = Scrape(Counts(), clock)

    async def source() -> Sequence[Family]:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise StoreError("it is away")
        return [Family("siafu_tasks_dead", "gauge", "x", (), [((), 3)])]

    scrape.add_slow("tasks", source)
    for _ in range(10):
        assert (await page(scrape))["siafu_tasks_dead"] == 3
    assert asked == 1
    for _ in range(2):
        await clock.sleep(KEPT_SECONDS)
        found = await page(scrape)
        assert "siafu_tasks_dead" not in found
        assert found["siafu_metrics_source_up{'source': 'tasks'}"] == 0
        assert "agent_swarm_task_total" in found
    assert caplog.text.count("it is away") == 1


async def test_a_database_that_hangs_does_not_hold_up_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siafu.observe.scrape.ASK_SECONDS", 0.02)
    scrape = Scrape(Counts(), VirtualClock())

    async def source() -> Sequence[Family]:
        await asyncio.Event().wait()
        return []

    scrape.add_slow("tasks", source)
    assert (await page(scrape))["siafu_metrics_source_up{'source': 'tasks'}"] == 0


async def test_a_loop_that_is_kept_busy_is_late() -> None:
    class Late(VirtualClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds + 0.3)

    clock = Late()
    lag = LoopLag(clock)
    async with lag.measured():
        await VirtualClock.sleep(clock, 6)
    assert sum(lag.seconds.counts[:8]) == 0  # none at 0.25 s or less
    assert lag.seconds.counts[8] > 5
