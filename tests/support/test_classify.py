"""Sorting: what counts as a category, one repair turn, and the default that is flagged."""

from __future__ import annotations

from typing import Any

import pytest

from siafu.apps.support.classify import SCHEMA, read_ticket
from siafu.apps.support.routes import DEFAULT_CATEGORY, ROUTES
from siafu.errors import OutputInvalid, RequestRefused
from siafu.gateway.scripted import Scripted, say
from siafu.tools.schema import validate
from support.desk import answer, answers, model, request, ticket


@pytest.mark.parametrize("category", ROUTES)
def test_every_route_is_a_category_of_the_schema(category: str) -> None:
    found = read_ticket(say(ticket(category, 3, "strong")))
    assert (found.category, found.priority, found.hint, found.flagged) == (category, 3, "strong", False)
    assert not validate(SCHEMA, {"category": category, "priority": 3, "sub_agent_model": "strong"})


@pytest.mark.parametrize(
    ("priority", "hint", "read"),
    [
        (1, "cheap", (1, "cheap")),
        (0, "cheap", (2, "cheap")),
        (4, None, (2, None)),
        (True, 7, (2, None)),
        ("1", ["strong"], (2, None)),
        (2.5, {"model": "gpt-9"}, (2, None)),
        (None, "gpt-9", (2, "gpt-9")),  # a hint is judged by the route, see test_routes
    ],
)
def test_a_wrong_priority_or_hint_has_a_default(priority: Any, hint: Any, read: tuple[int, str | None]) -> None:
    found = read_ticket(say(ticket("refund", priority, hint)))
    assert (found.category, found.priority, found.hint) == ("refund", *read)


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}\n```", "  \n{}\n"])
def test_fenced_json_is_read(fence: str) -> None:
    assert read_ticket(say(fence.replace("{}", ticket("complaint")))).category == "complaint"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "refund",
        "[]",
        "null",
        '{"category": "billing", "priority": 2, "sub_agent_model": "cheap"}',
        '{"category": "Refund"}',
        '{"category": "refund "}',
        '{"category": ["refund"]}',
        '{"category": null}',
        '{"priority": 1}',
        '{"category": "refund", "category": "complaint"}',
        '{"category": "refund", "priority": NaN}',
        '{"category": "refund"',
        'Sure! {"category": "refund"}',
    ],
)
def test_no_other_reply_is_a_ticket(text: str) -> None:
    with pytest.raises(OutputInvalid):
        read_ticket(say(text))


async def test_one_repair_turn_says_what_is_wrong_and_is_enough() -> None:
    endpoint = Scripted([ticket("billing"), ticket("refund"), "답변"])
    found = await answer(request("돈을 돌려주세요"), endpoint)
    assert (found.category, found.flagged, found.steps) == ("refund", "", 3)
    repair = [message["role"] for message in endpoint.requests[1].messages]
    assert repair == ["system", "user", "assistant", "user"]
    assert ", ".join(ROUTES) in endpoint.requests[1].messages[3]["content"]
    assert endpoint.requests[1].messages[:2] == endpoint.requests[0].messages


@pytest.mark.parametrize("first", [say(None), say("", ("c", "process_refund", "{}"))])
async def test_a_repair_turn_sends_no_message_that_an_upstream_refuses(first: Any) -> None:
    endpoint = Scripted([first, ticket("refund"), "답변"])
    assert (await answer(request(), endpoint)).category == "refund"
    assert [message["role"] for message in endpoint.requests[1].messages] == ["system", "user", "user"]


async def test_f20_row_37_of_100_answered_with_an_invented_category() -> None:
    endpoint = model(lambda text: ticket("billing" if text == "질문 37" else "order_status"))
    found = await answers([request(f"질문 {n}", id=f"r{n}") for n in range(100)], endpoint)
    odd = {result.key: result.value for result in found if result.value.flagged}
    assert list(odd) == ["r37"]
    assert (odd["r37"].category, odd["r37"].flagged) == (DEFAULT_CATEGORY, "classification_default")
    assert len(found) == 100
    assert sum(result.value.category == "order_status" for result in found) == 99
    asked = [context.task for context in endpoint.contexts if context.role == "classify"]
    assert len(asked) == 101
    assert asked.count("r37") == 2


async def test_the_default_route_sees_no_order_of_anybody() -> None:
    assert "get_order_status" not in ROUTES[DEFAULT_CATEGORY].tools


async def test_an_endpoint_that_refuses_the_request_is_an_error_and_no_default() -> None:
    with pytest.raises(RequestRefused):
        await answer(request(), Scripted([RequestRefused("no such model", status=404)]))
