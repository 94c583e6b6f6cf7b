"""A prompt that changes between two runs: what is kept, what is asked again, and what is said about it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from siafu.agents.task import Surroundings
from siafu.apps.support.routes import ROUTES
from siafu.gateway.scripted import Scripted
from siafu.pace.clock import SystemClock
from siafu.swarm.map import map_items
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapSummary
from sim import running_sim
from support import changed
from support.commands import Command, examples, intended, records, write
from support.desk import SUPPORT, model, shop, ticket
from swarm.nest import DictStore

CONCURRENCY = 8


@pytest.mark.kill
@pytest.mark.timeout(120)
def test_a_changed_prompt_asks_unfinished_requests_again_and_sorts_none_anew(tmp_path: Path) -> None:
    requests = examples(40)
    write(tmp_path / "in.jsonl", requests)
    with running_sim(seed=3, latency="scale:0.05", keep_bodies=True) as sim:
        words = ("support", "run", "in.jsonl", "--out", "out.jsonl", "--base-url", sim.url, "--quiet", "--json")
        command = Command(tmp_path, sim, *words, "--concurrency", str(CONCURRENCY))
        assert command.live(kill_at=60)
        finished = command.query("SELECT key FROM item WHERE status = 'ok'")
        begun = command.query("SELECT task FROM journal WHERE path LIKE '/classify%' AND kind = 'model'")
        answered = command.query("SELECT task FROM journal WHERE path LIKE '/desk%' AND kind = 'model'")
        unfinished_answers = sum(task not in set(finished) for task in answered)
        first = sim.requests()
        assert len(finished) > 5
        assert unfinished_answers, "the kill hit nobody between two turns, so nothing is proved"

        command.program = [str(Path(changed.__file__))]
        assert command.live() == 0
        second = [json.loads(request["body"]) for request in sim.requests(first[-1]["n"])]
    summary = json.loads(command.printed)
    assert (summary["finished"] + summary["waiting"], summary["failed"]) == (40, 0)  # no money is paid back here
    out = records(tmp_path / "out.jsonl")
    assert Counter(record["id"] for record in out) == Counter(request.id for request in requests)
    # Sorting did not change, so whoever was sorted is not sorted again; answers are asked in the new words only.
    sorting = [body for body in second if "response_format" in body]
    assert len(sorting) == 40 - len(begun)
    asked = [body for body in second if "response_format" not in body]
    assert all(changed.DUTY in body["messages"][0]["content"] for body in asked)
    texts = {request.text: request.id for request in requests}
    again = {texts[body["messages"][1]["content"]] for body in second}
    assert again == {request.id for request in requests} - {key for (key,) in finished}
    # What the change threw away is counted, with its price.
    assert summary["discarded"] == unfinished_answers
    assert 0 < summary["billed_again_usd"] < summary["usd"]
    assert summary["replayed"] >= len(begun) - len(finished)


async def test_rerun_asks_only_what_the_change_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, store, tools = examples(30), DictStore(), shop()

    async def session(on_change: str) -> tuple[Scripted, MapSummary]:
        endpoint = model(lambda text: ticket(intended(text)))
        around = Surroundings(endpoint=endpoint, clock=SystemClock(), tools=tools)
        options = MapOptions(key=lambda item: item.id, on_change=on_change)  # type: ignore[arg-type]
        async with map_items(SUPPORT, requests, around=around, store=store.next_session(), options=options) as run:
            assert all([result.ok async for result in run])
            return endpoint, run.summary

    endpoint, _ = await session("rerun")
    made = len(tools.calls)
    refunds = sum(intended(request.text) == "refund" for request in requests)
    assert refunds
    # Only what the role may use was called; another role's tool was refused. Complaints went to a person.
    routes = [ROUTES[intended(request.text)] for request in requests]
    assert made == sum(("get_order_status" in route.tools) + route.hands_over for route in routes)

    monkeypatch.setattr("siafu.apps.support.swarm.ROUTES", {**ROUTES, "refund": changed.changed()["refund"]})
    endpoint, summary = await session("keep")
    assert (endpoint.requests, summary.changed, summary.restored) == ([], 0, 30)

    endpoint, summary = await session("rerun")
    assert [context.role for context in endpoint.contexts] == 2 * refunds * ["refund"]
    assert (summary.changed, summary.discarded) == (30, 2 * refunds)
    assert len(tools.calls) == made  # the lookups stand in the journal
