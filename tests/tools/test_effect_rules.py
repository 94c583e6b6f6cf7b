"""Keys, fingerprints and judgements of the effect contract: pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.errors import ConfigError, ToolDenied
from siafu.observe.calls import CallContext
from siafu.tools.effect_rules import EffectRule, Lookup, definition, effect_key, judged, same_effect
from siafu.tools.toolset import Tool, ToolResult

HERE = CallContext(run="r", task="t", step="/desk#3", user="kim", tenant="shop")
TEXT = st.text(max_size=20)
ARGUMENTS = st.dictionaries(st.sampled_from(["order_id", "amount", "reason"]), TEXT | st.integers() | st.none())


def key(rule: EffectRule, arguments: Any = (), tool: str = "shop.pay", **context: Any) -> str:
    return effect_key(rule, tool, msgspec.structs.replace(HERE, **context), dict(arguments))


STEP, REQUEST = EffectRule(), EffectRule(key="request")
ORDER = EffectRule(key=("request", "order_id"))


@given(ARGUMENTS, ARGUMENTS)
def test_no_words_of_a_model_enter_the_key_of_a_step_or_a_request(one: Any, other: Any) -> None:
    for rule in (STEP, REQUEST):
        assert key(rule, one) == key(rule, other)


@given(TEXT, TEXT)
def test_labels_are_kept_apart(one: str, other: str) -> None:
    """No two of (run, task) run together into one key."""
    pairs = {(one, "t" + other), (one + "t", other + "x"), ("r", one + "x"), (one, other + "y")}
    assert len({key(REQUEST, run=run, task=task) for run, task in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("rule", "same", "apart"),
    [
        (STEP, [{"role": "x"}, {"attempts": 3}, {"deadline": 1.0}], [{"step": "/desk#4"}, {"task": "u"}, {"run": "s"}]),
        (REQUEST, [{"step": "/desk#4"}, {"effect_key": "x"}, {"agent": "b"}], [{"task": "u"}, {"run": "s"}]),
        (STEP, [], [{"tenant": "other"}, {"user": "lee"}, {"effect_key": "x"}]),
        (ORDER, [{"step": "/other#0"}], [{"tenant": "other"}, {"user": "lee"}, {"task": "u"}]),
    ],
)
def test_what_makes_an_effect_another(rule: EffectRule, same: list[Any], apart: list[Any]) -> None:
    first = key(rule)
    assert re.fullmatch(r"ef:[0-9a-f-]{36}", first)
    assert {key(rule, **each) for each in same} <= {first}
    assert len({first, *(key(rule, **each) for each in apart)}) == 1 + len(apart)
    assert key(rule, tool="shop.other") != first


def test_a_step_keeps_the_key_that_the_journal_keeps() -> None:
    assert key(STEP, effect_key="j", run="a", step="#1") == key(STEP, effect_key="j", run="b", step="#9")


@pytest.mark.parametrize("spelling", ["A-7", " a-7", "Ａ－７", "a-7 "])
def test_spellings_of_one_order_are_one_effect(spelling: str) -> None:
    assert key(ORDER, {"order_id": spelling}) == key(ORDER, {"order_id": "a-7"})
    assert key(ORDER, {"order_id": spelling}) != key(ORDER, {"order_id": "a-8"})


@pytest.mark.parametrize(("rule", "context"), [(REQUEST, {"task": ""}), (STEP, {"step": ""})])
def test_a_call_without_what_makes_the_key_is_refused(rule: EffectRule, context: Any) -> None:
    with pytest.raises(ToolDenied, match="has none"):
        key(rule, **context)


def test_free_text_makes_no_other_effect() -> None:
    rule = EffectRule(ignore=("reason",))
    first = same_effect(rule, "pay", {"order_id": "1", "reason": "늦게 옴"})
    assert same_effect(rule, "pay", {"reason": "late", "order_id": "1"}) == same_effect(rule, "pay", {"order_id": "1"})
    assert first == same_effect(rule, "pay", {"order_id": "1"})
    assert first != same_effect(rule, "pay", {"order_id": "1", "amount": 1})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"key": ("order_id",)}, "key is"),
        ({"key": "order_id"}, "key is"),
        ({"key": ()}, "key is"),
        ({"key": ("step", "request")}, "key is"),
        ({"unknown": "repeat"}, "honours_key"),
        ({"lease_seconds": 0.0}, "lease_seconds"),
        ({"lease_seconds": float("nan")}, "lease_seconds"),
        ({"daily_calls": -1}, "daily_calls"),
    ],
)
def test_rules_that_contradict_themselves(wrong: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        EffectRule(**wrong)


def result(code: str = "", structured: Any = None, *, is_error: bool = True) -> ToolResult:
    return ToolResult(text="x", structured=structured, is_error=is_error, code=code)


@pytest.mark.parametrize(
    ("answer", "judgement"),
    [
        (result(is_error=False), "succeeded"),
        (result("over_limit", {"code": "over_limit"}), "refused"),
        (result("-32602", {"code": -32602}), "refused"),
        (result("pending_approval", {"code": "pending_approval"}), "waiting"),
        (result(), "unknown"),
        (result("TimeoutError"), "unknown"),  # the name of an exception is no promise
        (result("unknown_outcome", {"code": "unknown_outcome"}), "unknown"),
        (result("in_progress", {"code": "in_progress"}), "unknown"),
        (result("-32603", {"code": -32603}), "unknown"),
        (result("-32000", {"code": -32000}), "unknown"),
        (result("500", {"code": 500}), "unknown"),
        (result("flaky", {"code": "flaky"}), "unknown"),
    ],
)
def test_what_an_answer_says_about_the_effect(answer: ToolResult, judgement: str) -> None:
    assert judged(EffectRule(unclear=("flaky",)), answer) == judgement


@pytest.mark.parametrize(
    ("structured", "found"),
    [
        ({"a": {"b": "re_1"}}, True),
        ({"a": {"b": ["re_1"]}}, True),
        ({"a": {"b": 5}}, True),
        ({"a": {"b": None}}, False),
        ({"a": {"b": False}}, False),
        ({"a": {"b": []}}, False),
        ({"a": {"b": ""}}, False),
        ({"a": {}}, False),
        ({"a": "b"}, False),
        ([], False),
        (None, False),
    ],
)
def test_what_a_look_up_finds(structured: Any, found: bool) -> None:
    lookup = Lookup(tool="find", found="a.b", arguments={"key": "$key", "order": "$argument.order_id", "all": True})
    assert lookup.finds(result(structured=structured, is_error=False)) is found
    assert not lookup.finds(result(structured=structured))
    assert lookup.asked("k", {"order_id": "7"}) == {"key": "k", "order": "7", "all": True}
    assert lookup.asked("k", {})["order"] is None
    with pytest.raises(ConfigError, match=r"\$kez"):
        Lookup(tool="find", found="a", arguments={"key": "$kez"})


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "b"},
        {"description": "b"},
        {"input_schema": {}},
        {"output_schema": {}},
        {"read_only": True},
        {"idempotent": True},
        {"annotations": {"title": "b"}},
    ],
)
def test_everything_a_server_says_is_part_of_the_definition(changed: Any) -> None:
    tool = Tool(name="a")
    assert definition(msgspec.structs.replace(tool, **changed)) != definition(tool)
    assert definition(msgspec.structs.replace(tool, guarded=True)) == definition(tool)
