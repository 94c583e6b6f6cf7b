"""What became of a request that got an answer: judged by what its tools did, never by the wording of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from siafu.agents.arguments import RefusedCall
from siafu.agents.steps import Step, ToolStep
from siafu.apps.support.requests import Outcome
from siafu.apps.support.routes import Route
from siafu.errors import ToolArgumentsInvalid
from siafu.tools.toolset import ToolResult

# Codes of tools, beside *_not_found, that say: with what the customer told, nothing can be looked up.
_LACKING = frozenset({ToolArgumentsInvalid.code, "invalid_arguments", "empty_query"})


def outcome(route: Route, steps: Iterable[Step]) -> Outcome:
    """`answered`: a tool found something, or none was needed. `needs_info`: nothing was found by what the customer
    told, or nothing was looked up where it has to be. `unknown`: the tools that were tried failed for other reasons.
    """
    came = {_came_of(step) for step in steps if isinstance(step, ToolStep | RefusedCall)}
    if "found" in came:
        return "answered"
    if "lacking" in came:
        return "needs_info"
    if "failed" in came:
        return "unknown"
    return "needs_info" if route.looks_up else "answered"


def _came_of(step: ToolStep | RefusedCall) -> Literal["found", "lacking", "failed"]:
    if isinstance(step, ToolStep) and not step.result.is_error:
        return "lacking" if _empty(step.result) else "found"
    code = step.result.code if isinstance(step, ToolStep) else step.reason
    return "lacking" if code.endswith("_not_found") or code in _LACKING else "failed"


def _empty(result: ToolResult) -> bool:
    """A search without a hit: nothing but empty lists."""
    data = result.structured
    values = list(data.values()) if isinstance(data, Mapping) else [data]
    return bool(values) and all(isinstance(value, list) and not value for value in values)
