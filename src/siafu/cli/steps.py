"""The steps of one request, for people."""

from __future__ import annotations

from typing import Any

import typer

from siafu.agents.arguments import RefusedCall
from siafu.agents.steps import ModelStep, RepairStep, Step, ToolStep
from siafu.apps.support.classify import Ticket
from siafu.border.canonical import dumps
from siafu.border.text import counted, preview, printable


def show_step(request: str, step: Step | Ticket) -> None:
    """One line for each thing that happened, to stderr; the final answer comes from `show_answer`."""
    line = _line(step)
    if line:
        typer.echo(printable(line), err=True)


def _line(step: Step | Ticket) -> str:
    if isinstance(step, Ticket):
        flag = "  (no usable category, the default was taken)" if step.flagged else ""
        return f"sorted     {step.category}, priority {step.priority}{flag}"
    if isinstance(step, ModelStep):
        usage = step.answer.usage
        tokens = f"{usage.input:,} + {usage.output:,} tokens" if usage else "tokens unknown"
        calls = len(step.answer.tool_calls)
        wants = f"wants {counted(calls, 'tool call')}" if calls else "answers"
        return f"model      {step.answer.model} {wants} ({tokens})"
    if isinstance(step, ToolStep):
        state = f"failed ({step.result.code or 'no code'})" if step.result.is_error else "ok"
        called = f"{step.call.name}({preview(dumps(step.arguments).decode(), 80)})"
        return f"tool       {called} {state}: {preview(step.result.text, 120)}"
    if isinstance(step, RefusedCall):
        return f"refused    {step.call.name}: {preview(step.text, 120)}"
    if isinstance(step, RepairStep):
        return f"repair     {preview(step.reason, 120)}"
    return f"done       {counted(step.steps, 'model call')}, {counted(step.tool_calls, 'tool call')}"


def show_answer(record: dict[str, Any]) -> None:
    """The answer on stdout, what it took on stderr."""
    typer.echo(printable(record["answer"]))
    tokens = record["tokens"]
    cost = "cost unknown" if record["usd"] is None else f"{bytes(record['usd']).decode()} USD"
    typer.echo(
        f"{record['outcome']} in {record['latency_ms']:,} ms, "
        f"{tokens['input']:,} + {tokens['output']:,} tokens, {cost}",
        err=True,
    )
