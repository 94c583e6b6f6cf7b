"""One step of an agent: all tool calls of a reply at once, and what the model is told about each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from typing import Any

import msgspec

from siafu.agents.arguments import ReadyCall, RefusedCall, check
from siafu.agents.conversation import Conversation
from siafu.agents.task import TaskContext
from siafu.errors import OutcomeUnknown, ToolDenied, ToolFault, ToolTimeout
from siafu.gateway.chat import ChatAnswer, ToolCall
from siafu.tools.toolset import Tool, ToolResult

DO_NOT_REPEAT = "It may have been done or not: do not call it again, and tell the user that it is unclear."


class ModelStep(msgspec.Struct, frozen=True, kw_only=True):
    """The model answered; its tool calls, if any, come next."""

    answer: ChatAnswer


class ToolStep(msgspec.Struct, frozen=True, kw_only=True):
    """A tool was called. `result.is_error`: it failed, was denied, or gave no answer (`result.code` says which).

    `arguments`: parsed and valid. `seconds`: from the call to its result; about 0 when it came from the journal.
    """

    call: ToolCall
    arguments: dict[str, Any]
    result: ToolResult
    seconds: float


class RepairStep(msgspec.Struct, frozen=True, kw_only=True):
    """The final answer cannot be used, for `reason`; the model is asked once more."""

    reason: str


class FinalStep(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run. `text`: the model's last words. `output`: the value of the declared output, None without one.

    `steps`: model calls, with the repair turn. `tool_calls`: tools called; refused calls are not counted.
    `flagged`: empty, or why this is second best: last_turn (a limit took the tools away, the model answered with what
    it had), default (no valid answer came, `output` is the declared default).
    """

    text: str
    output: Any
    steps: int
    tool_calls: int
    flagged: str = ""


Step = ModelStep | ToolStep | RefusedCall | RepairStep | FinalStep


async def step(
    ctx: TaskContext,
    conversation: Conversation,
    answer: ChatAnswer,
    tools: Mapping[str, Tool],
    *,
    allowed: int = 40,
    result_chars: int = 16_000,
    barred: Set[str] = frozenset(),
) -> tuple[Conversation, list[ToolStep | RefusedCall]]:
    """Answer the tool calls of `answer`: run those that may run, all at once, and refuse the others.

    Returns the conversation with the model's message and exactly one tool message for each call, in the order of the
    calls, and the steps in the same order. `tools`: those of `ctx.tools` that may be called, by name. `allowed`: how
    many calls may run. `result_chars`: what is longer is cut, with a note. `barred`: see `check`.

    A ToolFault is told to the model. A call of a tool that is not among them is recorded (`ctx.denied`). Anything else
    that goes wrong in one call (a full disk, a tool set that breaks its contract) is raised when the other calls have
    ended. Cancelling cancels all calls and waits for them.
    """
    checked = check(answer, tools, allowed=allowed, barred=barred)
    for refused in checked:
        if isinstance(refused, RefusedCall) and refused.reason == ToolDenied.code:
            await ctx.denied(refused.call.name)
    running = [_call(ctx, ready, tools[ready.call.name]) for ready in checked if isinstance(ready, ReadyCall)]
    # gather starts them in this order, and each takes its place in the journal before it first waits
    ended = await asyncio.gather(*running, return_exceptions=True)
    ran: list[ToolStep] = []
    for outcome in ended:
        if isinstance(outcome, asyncio.CancelledError):  # nobody cancelled this step, or it would not be here
            raise ToolFault("a tool call was cancelled from inside its tool set; see what it did before it is repeated")
        if isinstance(outcome, BaseException):
            raise outcome
        ran.append(outcome)
    rest = iter(ran)
    steps = [next(rest) if isinstance(item, ReadyCall) else item for item in checked]
    conversation = conversation.assistant(answer)
    for done in steps:
        conversation = conversation.tool(done.call.id, _bounded(_told(done), result_chars))
    return conversation, steps


async def _call(ctx: TaskContext, ready: ReadyCall, tool: Tool) -> ToolStep:
    began = ctx.clock.now()
    try:
        result = await ctx.tool(tool.name, ready.arguments)
    except ToolFault as fault:
        result = _fault_result(tool, fault)
    return ToolStep(call=ready.call, arguments=ready.arguments, result=result, seconds=ctx.clock.now() - began)


def _fault_result(tool: Tool, fault: ToolFault) -> ToolResult:
    """A fault as the model sees it. A tool with effects that did not answer in time may have had them."""
    effect = not (tool.read_only or tool.idempotent)
    if isinstance(fault, OutcomeUnknown) or (effect and isinstance(fault, ToolTimeout)):
        return ToolResult(text=f"{fault.message.rstrip('.')}. {DO_NOT_REPEAT}", is_error=True, code=OutcomeUnknown.code)
    return ToolResult(text=fault.message, is_error=True, code=fault.code)


def _told(done: ToolStep | RefusedCall) -> str:
    if isinstance(done, RefusedCall):
        return f"NOT RUN ({done.reason}): {done.text}"
    if done.result.is_error:
        return f"ERROR ({done.result.code or 'failed'}): {done.result.text or 'the tool gave no reason'}"
    return done.result.text or "(the tool returned nothing)"


def _bounded(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut here: {len(text) - limit:,} of {len(text):,} characters are not shown]"
