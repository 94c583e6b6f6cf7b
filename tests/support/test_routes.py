"""The route table decides model and tools; what users and models write stays out of system prompts."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import msgspec
import pytest

from siafu.apps.support.routes import ROUTES, tier
from siafu.apps.support.signed import AUDIENCE
from siafu.apps.support.swarm import Support
from siafu.errors import ConfigError
from siafu.gateway.scripted import say
from support.commands import examples, intended
from support.desk import SUPPORT, answer, answers, model, request, shop, ticket

HINTS = (None, "", "strong", "cheap", "Strong", " cheap", "big", "gpt-9", "../strong", "strong\n")


@pytest.mark.parametrize("hint", HINTS)
@pytest.mark.parametrize("category", ROUTES)
def test_a_hint_chooses_within_the_tiers_of_a_route(category: str, hint: str | None) -> None:
    route = ROUTES[category]
    assert tier(route, hint) == (hint if hint in route.tiers else route.tiers[0])


@pytest.mark.parametrize(
    ("category", "hint", "used"),
    [
        ("order_status", "strong", "small"),
        ("product_qa", "cheap", "small"),
        ("product_qa", "strong", "big"),
        ("product_qa", "huge", "small"),
        ("refund", "cheap", "small"),
        ("refund", None, "big"),
        ("complaint", "cheap", "big"),
    ],
)
async def test_no_model_text_names_a_model(category: str, hint: Any, used: str) -> None:
    endpoint = model(lambda text: ticket(category, 2, hint, model="huge", tools=["process_refund"]), "답변")
    found = await answer(request(), endpoint)
    assert found.model_used == used
    assert [asked.model for asked in endpoint.requests] == ["big", used]
    offered = [tool["function"]["name"] for tool in endpoint.requests[1].tools or ()]
    assert offered == list(ROUTES[category].tools)


async def test_f57_the_prefix_of_100_different_requests_is_the_same_to_the_byte() -> None:
    items = examples(100)
    endpoint = model(lambda text: ticket(intended(text)), say(None, ("c", "get_order_status", "{}")), "답변")
    await answers(items, endpoint)
    said = {item.id: item.text for item in items}
    systems, bodies = defaultdict(set), defaultdict(list)
    for asked, context in zip(endpoint.requests, endpoint.contexts, strict=True):
        assert [message["role"] for message in asked.messages].count("system") == 1
        assert asked.messages[1] == {"role": "user", "content": said[context.task]}
        systems[context.role].add(asked.messages[0]["content"])
        bodies[context.role].append(msgspec.json.encode(asked.body()).decode())
    assert set(systems) == {"classify", *ROUTES}
    assert all(len(texts) == 1 for texts in systems.values())
    for role, same in bodies.items():
        prefix = os.path.commonprefix(same)  # noqa: RUF071  of texts, not paths
        assert prefix.startswith('{"model":"')
        assert ('"tools":[' in prefix) == (role != "classify")
        assert '{"role":"user","content":"' in prefix


def test_the_work_is_other_work_when_anything_that_shapes_answers_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SUPPORT.fingerprint()
    assert Support(models={"strong": "big", "cheap": "small"}).fingerprint() == before
    seen = {before, Support(models={"strong": "big", "cheap": "tiny"}).fingerprint()}
    for name, changed in (
        ("siafu.apps.support.routes._STYLE", "Be rude."),
        ("siafu.apps.support.classify.INSTRUCTIONS", "Sort."),
        ("siafu.apps.support.classify.SCHEMA", {"type": "object"}),
        ("siafu.apps.support.swarm.MAX_TOKENS", 9),
        ("siafu.apps.support.swarm.ROUTES", {"refund": ROUTES["refund"]}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, changed)
            seen.add(SUPPORT.fingerprint())
    assert len(seen) == 7
    assert SUPPORT.fingerprint() == before


async def test_tools_that_are_not_there_are_named_before_anything_is_asked() -> None:
    await SUPPORT.check(shop())
    tools = shop()
    tools.tools = tools.tools[:1]
    with pytest.raises(
        ConfigError, match=r"check_inventory, open_ticket, process_refund, search.*there are: get_order_status"
    ):
        await SUPPORT.check(tools)


def test_the_shop_believes_what_the_swarm_signs() -> None:
    server = pytest.importorskip("siafu.apps.support.shop.server")
    assert server.AUDIENCE == AUDIENCE
