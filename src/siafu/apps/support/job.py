"""`siafu support run` as a command over files: lines of requests in, lines of answers out."""

from __future__ import annotations

from typing import Any

import msgspec

from siafu.agents.task import TaskContext
from siafu.apps.filerun.job import Task, Written
from siafu.apps.support.requests import Answer, CustomerRequest, parse_field, parse_request
from siafu.apps.support.swarm import Support
from siafu.border.jsonl import LineError
from siafu.border.money import json_usd
from siafu.border.secrets import Secret
from siafu.errors import InputError
from siafu.swarm.results import MapError, MapResult
from siafu.tools.toolset import ToolSet


class SupportJob:
    """A FileJob over CustomerRequests.

    A record has the same fields in the same order for every request, answered or not. `ok`: the customer got an
    answer; what became of a refund in it says `refunds`. Behind them stand, only where it is so, `flagged` (a person
    should look), `waiting` (the answer is not the last one: the request goes on later) and `waits_for`
    (`pending_approval`: a person has to decide; else the code of what keeps a tool from acting now).
    """

    starts = b'{"id":'

    def __init__(self, support: Support) -> None:
        self._support = support

    async def ready(self, tools: ToolSet, key: Secret | None) -> None:
        """Sign customers' identities with `key` from now on (None = no tool server asks for them), and see that `tools`
        has what the swarm needs.

        Raises: ConfigError, ToolUnavailable.
        """
        self._support = msgspec.structs.replace(self._support, identity_key=key)
        await self._support.check(tools)

    def parse(self, value: Any) -> Task:
        """Raises: InputError naming the field."""
        request = parse_request(value)
        return Task(request.id, request)

    def remarks(self) -> list[str]:
        return []

    def fingerprint(self) -> str:
        return self._support.fingerprint()

    async def work(self, item: CustomerRequest, ctx: TaskContext, /) -> Answer:
        return await self._support.work(item, ctx)

    def record(self, result: MapResult) -> dict[str, Any] | None:
        """`result.value` is an Answer: a run with a store reads values back with `value_type=Answer`."""
        waits = result.status == "waiting"
        if waits and result.value is None:
            return None
        line = _line(result.key, result.item.item.customer, result.value, result, None if waits else result.error)
        return line | {"waiting": True, "waits_for": result.error.code} if waits and result.error else line

    def refusal(self, error: LineError) -> dict[str, Any]:
        """`id` and `user_id` as far as the line has them; `error.line` tells it from the record of a request."""
        customer = _usable(error.value, "customer")
        record = _line(self.claims(error.value), customer, None, None, error)
        record["error"]["line"] = error.line
        return record

    def claims(self, value: Any) -> str | None:
        return _usable(value, "id")

    def read_back(self, line: bytes) -> Written | None:
        try:
            found = msgspec.json.decode(line, type=_Record)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        bad_line = found.error is not None and found.error.line is not None
        key = None if bad_line else found.id
        if not found.waiting:
            return Written(key, found.status == "ok")
        return Written(key, found.status == "ok", waits=True, reason=found.waits_for, tells=found.answer or "")


class _Error(msgspec.Struct):
    line: int | None = None


class _Record(msgspec.Struct):
    id: str | None
    user_id: str | None
    status: str
    outcome: str
    answer: str | None = None
    error: _Error | None = None
    waiting: bool = False
    waits_for: str = ""


def _usable(value: Any, name: str) -> str | None:
    try:
        return parse_field(value, name) if isinstance(value, dict) else None
    except InputError:
        return None


def _line(
    key: str | None,
    customer: str | None,
    answer: Answer | None,
    result: MapResult | None,
    error: MapError | LineError | None,
) -> dict[str, Any]:
    line = {
        "id": key,
        "user_id": customer,
        "status": "ok" if error is None else "error",
        "outcome": answer.outcome if answer else "unknown",
        "category": answer.category if answer else None,
        "priority": answer.priority if answer else None,
        "answer": answer.answer if answer else None,
        "model_used": answer.model_used if answer else None,
        "steps": answer.steps if answer else result.calls if result else 0,
        "tool_calls": answer.tool_calls if answer else result.tool_calls if result else 0,
        "latency_ms": round(result.seconds * 1000) if result else 0,
        "tokens": {
            "input": result.input_tokens if result else 0,
            "cached": result.cached_tokens if result else 0,
            "output": result.output_tokens if result else 0,
        },
        "usd": json_usd(result.usd_pico if result else 0),
        "bucket": None,
        "error": None if error is None else {"code": error.code, "message": error.message},
        "refunds": answer.refunds if answer else (),
        "ticket": answer.ticket if answer else None,
    }
    return line | {"flagged": answer.flagged} if answer and answer.flagged else line
