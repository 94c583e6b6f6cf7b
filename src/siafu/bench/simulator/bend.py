"""Faults of the answer itself: what a broken model or router would say, written before anything is sent."""

from __future__ import annotations

from typing import Any

import msgspec

from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.faults import MALFORMED, Rule
from siafu.bench.simulator.refusals import html_page
from siafu.bench.simulator.reply import Answer, Call, error
from siafu.bench.simulator.tokens import count, cut


def bent_answer(answer: Answer, rule: Rule) -> Answer:
    """The answer with the fault in it; unchanged when the fault is of another sort."""
    for kind in rule.kinds:
        answer = _bent(answer, rule, kind)
    return answer


def _bent(answer: Answer, rule: Rule, kind: str) -> Answer:
    if kind == "say":
        calls = tuple(_call(call, index) for index, call in enumerate(rule.tool_calls))
        finish = rule.finish_reason or ("tool_calls" if calls else "stop")
        return Answer(content=rule.content, calls=calls, finish=finish, reasoning=answer.reasoning)
    if kind == "length":
        content = answer.content and cut(answer.content, max(1, count(answer.content) // 2))
        return msgspec.structs.replace(answer, content=content, finish="length")
    if not kind.startswith("tool-") or not answer.calls:
        return answer
    calls = answer.calls
    if kind == "tool-ids-repeated":
        calls = tuple(Call("call:0", call.name, call.arguments) for call in calls)
    elif kind == "tool-ids-empty":
        calls = tuple(Call("", call.name, call.arguments) for call in calls)
    elif kind == "tool-args-cut":
        last = calls[-1]
        calls = (*calls[:-1], Call(last.id, last.name, last.arguments[: max(1, len(last.arguments) // 2)]))
    elif kind == "tool-args-empty":
        calls = tuple(Call(call.id, call.name, "") for call in calls)
    elif kind == "tool-args-double":
        calls = tuple(Call(call.id, call.name, msgspec.json.encode(call.arguments).decode()) for call in calls)
    return msgspec.structs.replace(answer, calls=calls)


def _call(given: dict[str, Any], index: int) -> Call:
    """A call of a script: {"name", "arguments": text or object, "id"?}."""
    arguments = given.get("arguments", {})
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return Call(str(given.get("id", f"call_{index}")), str(given.get("name", "")), text)


def bent_body(body: dict[str, Any], rule: Rule, draws: Draws) -> tuple[bytes, str]:
    """The bytes of a plain 200 with the fault in them, and their content type."""
    body = dict(body)
    for named in rule.kinds:
        kind = MALFORMED[draws.number("malformed") % len(MALFORMED)] if named == "malformed" else named
        if kind == "html":
            return html_page("Welcome"), "text/html"
        if kind == "empty-body":
            return b"", "application/json"
        if kind == "not-json":
            whole = msgspec.json.encode(body)
            return whole[: len(whole) // 2], "application/json"
        if kind == "error-object":
            fault = error(rule.message or "upstream failed", "upstream_error", code=rule.code or 500)
            body = dict.fromkeys(body) | fault
        elif kind in ("null-choices", "empty-choices", "missing-choices"):
            body["choices"] = None if kind == "null-choices" else []
            if kind == "missing-choices":
                del body["choices"]
        elif kind == "null-usage":
            body["usage"] = None
        elif kind == "missing-usage":
            del body["usage"]
    return msgspec.json.encode(body), "application/json"
