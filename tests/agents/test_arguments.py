"""Which calls of a reply may run."""

from __future__ import annotations

import json

import pytest

from siafu.agents.arguments import ReadyCall, RefusedCall, check, identity
from siafu.gateway.scripted import say

from .agent_fakes import PING, REFUND, SHOP, STATUS

TOOLS = {tool.name: tool for tool in SHOP}
GOOD = '{"order_id": "1001"}'


def only(name: str, arguments: str, *, finish: str | None = None, allowed: int = 10) -> ReadyCall | RefusedCall:
    (checked,) = check(say(None, ("a", name, arguments), finish=finish), TOOLS, allowed=allowed)
    return checked


@pytest.mark.parametrize(
    ("name", "text", "parsed"),
    [
        (STATUS.name, GOOD, {"order_id": "1001"}),
        (STATUS.name, ' {"order_id": "주문-1001"}\n', {"order_id": "주문-1001"}),
        (REFUND.name, '{"order_id": "1", "amount": 5}', {"order_id": "1", "amount": 5}),
        (PING.name, "{}", {}),
        (PING.name, "", {}),  # F11
        (PING.name, "  \n", {}),  # F11
    ],
)
def test_good_arguments_are_ready(name: str, text: str, parsed: dict[str, object]) -> None:
    checked = only(name, text)
    assert isinstance(checked, ReadyCall)
    assert checked.arguments == parsed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (REFUND.name, '{"order_id":"1001","amount":'),  # F10: cut
        (STATUS.name, "order_id=1001"),
        (STATUS.name, GOOD + GOOD),
        (STATUS.name, GOOD + "}"),
        (STATUS.name, f"```json\n{GOOD}\n```"),
        (STATUS.name, "null"),
        (STATUS.name, "[]"),
        (STATUS.name, '"1001"'),
        (STATUS.name, ""),  # F11: empty is {}, and {} does not fit this tool
        (STATUS.name, '{"order_id": 1001}'),
        (STATUS.name, '{"order_id": null}'),
        (STATUS.name, '{"order_id": "1", "order_id": "2"}'),
        (STATUS.name, '{"order_id": "1", "as_admin": true}'),
        (STATUS.name, '{"ORDER_ID": "1"}'),
        (REFUND.name, '{"order_id": "1", "amount": NaN}'),
        (REFUND.name, '{"order_id": "1", "amount": "10"}'),
        (REFUND.name, '{"order_id": "1", "amount": -5}'),
        (REFUND.name, '{"order_id": "1", "amount": 1e99}' + " " * 10 + "x"),
        (PING.name, '{"x": 1}'),
        (PING.name, "[" * 100_000),
    ],
)
def test_bad_arguments_are_refused_with_a_bounded_text(name: str, text: str) -> None:
    refused = only(name, text)
    assert isinstance(refused, RefusedCall)
    assert refused.reason == "tool_arguments_invalid"
    assert 0 < len(refused.text) < 2_000


def test_f10_the_refusal_shows_what_the_model_wrote() -> None:
    refused = only(REFUND.name, '{"order_id":"1001","amount":')
    assert isinstance(refused, RefusedCall)
    assert '{"order_id":"1001","amount":' in refused.text
    assert "JSON" in refused.text


def test_the_schema_errors_are_named() -> None:
    refused = only(REFUND.name, '{"order_id": "1", "amount": "10"}')
    assert isinstance(refused, RefusedCall)
    assert "10" in refused.text
    assert "integer" in refused.text


@pytest.mark.parametrize("name", ["Ping", "ping ", "рing", "functions.ping", "", "x" * 10_000])
def test_an_unknown_name_is_told_the_names_there_are(name: str) -> None:
    refused = only(name, "{}")
    assert isinstance(refused, RefusedCall)
    assert refused.reason == "tool_denied"
    assert "get_order_status, process_refund, ping" in refused.text
    assert len(refused.text) < 300


def test_without_tools_the_model_is_told_so() -> None:
    (refused,) = check(say(None, ("a", "ping", "{}")), {}, allowed=10)
    assert isinstance(refused, RefusedCall)
    assert "you have no tools" in refused.text


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_f13_a_cut_reply_runs_nothing_though_it_parses(finish: str) -> None:
    answer = say(None, ("a", "ping", "{}"), ("b", STATUS.name, GOOD), finish=finish)
    checked = check(answer, TOOLS, allowed=10)
    assert [(item.call.id, item.reason) for item in checked if isinstance(item, RefusedCall)] == [
        ("a", "cut"),
        ("b", "cut"),
    ]


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", "eos"])
def test_other_finish_reasons_run(finish: str) -> None:
    assert isinstance(only("ping", "{}", finish=finish), ReadyCall)


def test_only_good_calls_count_against_the_limit() -> None:
    calls = [("a", "nope", "{}"), ("b", "ping", "{}"), ("c", "ping", "x"), ("d", "ping", "{}"), ("e", "ping", "{}")]
    checked = check(say(None, *calls), TOOLS, allowed=2)
    assert [getattr(item, "reason", "ready") for item in checked] == [
        "tool_denied",
        "ready",
        "tool_arguments_invalid",
        "ready",
        "call_limit",
    ]


def test_a_barred_call_is_refused_however_it_is_written() -> None:
    barred = {identity(REFUND.name, {"order_id": "1", "amount": 5})}
    texts = ['{"order_id":"1","amount":5}', '{ "amount": 5, "order_id": "1" }', '{"order_id":"1","amount":6}']
    calls = [(str(n), REFUND.name, text) for n, text in enumerate(texts)]
    checked = check(say(None, *calls), TOOLS, allowed=9, barred=barred)
    assert [getattr(item, "reason", "ready") for item in checked] == ["outcome_unknown", "outcome_unknown", "ready"]


def test_many_schema_errors_stay_one_short_text() -> None:
    refused = only(PING.name, json.dumps({f"key{n}": "v" * 500 for n in range(1_000)}))
    assert isinstance(refused, RefusedCall)
    assert len(refused.text) < 2_000
