"""A fan-out with a shared beginning on the simulated endpoint, which credits a prompt once its first answer begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import siafu
from siafu.apps.costs.report import cost_report
from siafu.cli.cost_tables import cache_text
from siafu.config.assembly import told
from siafu.config.settings import load
from siafu.config.upstreams import configured_ways
from siafu.errors import ConfigError
from siafu.gateway.prefix import PromptCache
from siafu.observe.events import Event, HeadsDiffer, WentFirst, nobody
from siafu.store.spending import Sums
from sim import Sim, running_sim

pytestmark = pytest.mark.usefixtures("plain")

AGENTS = 100
INSTRUCTIONS = "You answer the customers of a shop, in their language. " + " ".join(
    f"규칙 {number}: be brief, exact, polite." for number in range(200)
)
SETTINGS = """
[endpoint.prompt_cache]
lead = {lead}
[prices.m]
input = "0.60"
cached = "0.15"
output = "2.50"
date = 2026-01-01
"""
CACHED, FRESH = 150_000, 600_000  # pico-dollars a token


@pytest.fixture(scope="module")
def sim() -> Any:
    with running_sim(latency="fixed:300ms", keep_bodies=True) as running:
        yield running


def write(settings: str) -> None:
    Path("siafu.toml").write_text(settings, encoding="utf-8")


async def fan_out(sim: Sim, *, lead: bool) -> tuple[list[dict[str, Any]], Sums, list[Event]]:
    """The usage of each request as the endpoint tells it, what the cost report adds up, and what was observed."""
    sim.reset()
    write(SETTINGS.format(lead=str(lead).lower()))
    events: list[Event] = []
    agent = siafu.Agent(name="desk", role="desk", instructions=INSTRUCTIONS, max_tokens=300)
    journal = Path(f"lead-{lead}.db")
    run = siafu.map(
        agent,
        [f"주문 {number}은 어디에 있나요?" for number in range(AGENTS)],
        base_url=sim.url,
        model="m",
        journal=journal,
        observer=events.append,
    )
    assert all([result.ok async for result in run])
    (group,) = cost_report([journal], ["run", "role"]).groups
    assert group.key[1] == "desk"
    return [request["usage"] for request in sim.requests()], group.sums, events


def cached(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


async def test_f57_of_a_hundred_agents_one_misses_and_the_report_says_what_that_saved(sim: Sim) -> None:
    usages, sums, events = await fan_out(sim, lead=True)
    assert len(usages) == sums.calls == AGENTS and min(usage["prompt_tokens"] for usage in usages) > 2000
    assert [cached(usage) for usage in usages].count(0) == 1
    assert sums.hits == AGENTS - 1
    assert sums.hit_ratio > 0.9
    # what was saved is told to the last pico-dollar, by the endpoint's own counts
    assert sums.saved_pico == sum(cached(usage) for usage in usages) * (FRESH - CACHED)
    without = sum(usage["prompt_tokens"] * FRESH + usage["completion_tokens"] * 2_500_000 for usage in usages)
    assert sums.usd_pico == without - sums.saved_pico
    assert [event.siblings for event in events if isinstance(event, WentFirst)] == [AGENTS - 1]
    # F57: nothing before the question changes from call to call
    heads = {request["body"].split("주문 ")[0] for request in sim.requests()}
    assert len(heads) == 1 and json.dumps(INSTRUCTIONS, ensure_ascii=False) in heads.pop()
    assert "99 calls hit" in cache_text(sums) and "saved" in cache_text(sums)


async def test_without_the_setting_many_miss(sim: Sim) -> None:
    usages, sums, events = await fan_out(sim, lead=False)
    assert [cached(usage) for usage in usages].count(0) > AGENTS // 2
    assert sums.hits < AGENTS // 2
    assert not any(isinstance(event, WentFirst) for event in events)


def ways(text: str) -> dict[str, PromptCache | None]:
    write(text)
    return {way.name: way.prompt_cache for way in configured_ways(load())}


def test_each_upstream_has_settings_of_its_own_and_nothing_is_done_without() -> None:
    here = 'base_url = "http://127.0.0.1:9/v1"'
    assert ways(f"[endpoint]\n{here}") == {"default": None}
    assert ways(f"[endpoint]\n{here}\n[endpoint.prompt_cache]\nmin_tokens = 9") == {"default": None}
    wanted = '[upstreams.a.prompt_cache]\nmarks = "5m"\nkey = true\nkeep_seconds = 60'
    assert ways(f"[upstreams.a]\n{here}\n{wanted}\n[upstreams.b]\n{here}") == {
        "a": PromptCache(marks="5m", key=True, keep=60.0),
        "b": None,
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("laed = true", "endpoint.prompt_cache.laed is no setting; did you mean lead"),
        ('marks = "2h"', "endpoint.prompt_cache.marks"),
        ("wait_seconds = 0", "endpoint.prompt_cache.wait_seconds"),
    ],
)
def test_a_wrong_setting_is_refused(line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ways(f"[endpoint.prompt_cache]\n{line}")


async def test_g23_a_question_of_many_is_asked_once_where_a_rule_says_so(sim: Sim) -> None:
    for rule, calls in (("[[reuse]]\nseconds = 60\nmodel = ['m']", 1), ("[[reuse]]\nseconds = 60\nrole = ['x']", 20)):
        sim.reset()
        write(rule)
        rows = [{"id": number, "text": "환불은 며칠 걸리나요?"} for number in range(20)]
        run = siafu.map("{text}", rows, key=lambda row: row["id"], base_url=sim.url, model="m", temperature=0)
        assert len({result.value async for result in run}) == 1
        assert sim.stats()["requests"] == calls


def test_that_a_beginning_changes_is_said_once() -> None:
    notes: list[str] = []
    tell = told(nobody, notes.append)
    for _ in range(2):
        tell(HeadsDiffer(run="r", role="desk", model="m", part="system", at=14))
    tell(HeadsDiffer(run="r", model="m", part="tools"))
    assert len(notes) == 2
    assert "desk calls to m: the system text changes after 14 characters" in notes[0]
    assert "the tools or their order change" in notes[1]
