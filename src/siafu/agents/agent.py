"""An agent: instructions, a model, tools, limits; and its run, an async iterator of typed steps."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import msgspec

from siafu.agents.arguments import identity
from siafu.agents.conversation import opening
from siafu.agents.output import Output, declared, read, repair_request
from siafu.agents.steps import FinalStep, ModelStep, RepairStep, Step, ToolStep, step
from siafu.agents.task import ModelOptions, TaskContext
from siafu.border.canonical import dumps, fingerprint
from siafu.errors import (
    ConfigError,
    DeadlineReached,
    OutcomeUnknown,
    OutputInvalid,
    ReplyTruncated,
    StepLimit,
    TokenLimit,
)
from siafu.gateway.chat import ChatAnswer, Message
from siafu.observe import spans
from siafu.observe.calls import CallContext
from siafu.tools.toolset import Tool, ToolResult, ToolSet

MAX_REFUSED_TURNS = 3  # turns in a row in which no call could run
BYTES_A_TOKEN = 4  # for upstreams that do not say what they used
LAST_TURN = (
    "No more tool calls are possible. Answer now with what you have, in the language of the conversation, "
    "and say what is missing."
)


class AgentLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one run may use. Past a limit it raises.

    steps: model calls; the last one is asked to answer without tools (`FinalStep.flagged`). A repair turn comes on top.
    tool_calls: calls that run; further ones are refused, and the next turn is the last.
    tokens: input and output of all turns, read before each turn.
    seconds: from `run` to the last step, None = no limit of its own; it starts anew when a task runs again.
    result_chars: the longest tool result that the model sees.
    """

    steps: int = 12
    tool_calls: int = 40
    tokens: int = 200_000
    seconds: float | None = None
    result_chars: int = 16_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"the limit {name} must be more than 0, not {value}")


@dataclass(frozen=True, kw_only=True)
class Agent:
    """Who does the work. Frozen; one agent may run any number of times at once.

    name: stands in the journal's paths; letters, digits, `_`, `-`, `.`.
    instructions: the system text. It is the same in every request, so that prompt caches hit; what differs between
    runs (the time, ids, what users or models wrote) belongs into the user's input.
    model, temperature, max_tokens, extra: None = as the run says.
    role: label for accounts and policies. tools: names of the tools it may use, in the order in which the model sees
    them; None = all that the context offers.
    output: JSON Schema, or a type (msgspec Struct, dataclass, TypedDict), of the final answer; None = text.
    An answer that does not fit gets one repair turn; then `default` is the output, flagged, or without one the run
    raises OutputInvalid.

    Raises: ConfigError.
    """

    name: str
    instructions: str = ""
    model: str | None = None
    role: str = ""
    tools: tuple[str, ...] | None = None
    output: type[Any] | Mapping[str, Any] | None = None
    default: Any = msgspec.UNSET
    limits: AgentLimits = field(default_factory=AgentLimits)
    temperature: float | None = None
    max_tokens: int | None = None
    extra: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]{1,64}", self.name):
            raise ConfigError(f"an agent's name has 1 to 64 letters, digits, '_', '-', '.'; {self.name!r} has not")
        if self.default is not msgspec.UNSET and self.form is None:
            raise ConfigError(f"agent {self.name} has a default but no output")
        _ = self.fallback  # a default that does not fit is found here, not in a run

    @cached_property
    def form(self) -> Output | None:
        """The declared output as it is sent and checked."""
        return None if self.output is None else declared(self.output)

    @cached_property
    def fallback(self) -> Any:
        """The default as the declared type, UNSET when there is none."""
        if self.form is None or self.default is msgspec.UNSET:
            return msgspec.UNSET
        try:
            return self.form.convert(msgspec.to_builtins(self.default))
        except OutputInvalid as error:
            raise ConfigError(f"the default of agent {self.name} is no valid output: {error.message}") from None

    def fingerprint(self) -> str:
        """sha256 of all that shapes its requests and results."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        parts["output"] = None if self.form is None else self.form.schema
        if self.default is msgspec.UNSET:
            del parts["default"]
        return fingerprint(parts)

    def run(self, ctx: TaskContext, user_input: str | Sequence[Message]) -> AgentRun:
        """Start a run: `async for step in agent.run(ctx, text)`. Nothing is sent before the first step is asked for.

        `user_input`: the user's text, or the messages of an earlier conversation.

        Raises: InputError.
        """
        return AgentRun(self, ctx, user_input)

    async def ask(self, ctx: TaskContext, user_input: str | Sequence[Message]) -> FinalStep:
        """Run to the end; the last step. Raises what `AgentRun` raises."""
        run = self.run(ctx, user_input)
        while not isinstance(last := await anext(run), FinalStep):
            pass
        return last

    async def work(self, item: Any, ctx: TaskContext) -> Any:
        """`ask` as a piece of work for many items: the text, or the output as plain JSON values.

        An item that is no string is given to the model as JSON.
        """
        final = await self.ask(ctx, item if isinstance(item, str) else dumps(item).decode())
        return final.text if self.output is None else msgspec.to_builtins(final.output)


class AgentRun:
    """One conversation, as an async iterator of steps: ModelStep, then a ToolStep or RefusedCall for each of its
    calls, and so on; at most one RepairStep; FinalStep last.

    Between two steps no task, timer or socket is open, so it may be left at any time. All of it goes through the
    context, so a task that runs again gets the journaled answers and takes the same steps.

    Raises, and is over then: ModelError, BudgetReached; StepLimit, TokenLimit, DeadlineReached; OutputInvalid or
    ReplyTruncated when the repair turn did not help; ToolUnavailable when its tools cannot be listed; ConfigError
    when it names a tool that is not there. Cancelling gives up the model call, or cancels and awaits the tool calls.
    """

    def __init__(self, agent: Agent, ctx: TaskContext, user_input: str | Sequence[Message]) -> None:
        self.conversation = opening(user_input)
        self._agent = agent
        self._outer = ctx
        self._ctx: TaskContext | None = None  # this run's own, from the first step on
        ends = [ctx.call.deadline, agent.limits.seconds and ctx.clock.now() + agent.limits.seconds]
        self._deadline = min((end for end in ends if end is not None), default=None)
        self._tools: dict[str, Tool] = {}
        self._options: ModelOptions = {}
        self._ready: deque[Step] = deque()
        self._reply: ChatAnswer | None = None  # a reply that has not been dealt with
        self._barred: set[str] = set()
        self._steps = self._tool_calls = self._tokens = self._refused_turns = 0
        self._last = self._repairing = self._over = False
        self._span: spans.Span | None = None  # from the first step on

    def __aiter__(self) -> AgentRun:
        return self

    async def __anext__(self) -> Step:
        while not self._ready:
            if self._over:
                raise StopAsyncIteration
            self._over = True  # also when this raises
            told = {"gen_ai.agent.name": self._agent.name, "gen_ai.request.model": self._agent.model}
            self._span = self._span or spans.begin("invoke_agent", self._agent.name, told)
            try:
                with self._span.current():
                    self._over = await self._advance_in_time()
            except BaseException as error:
                self._span.end(spans.kind_of(error))
                raise
            if self._over:
                self._span.end()
        return self._ready.popleft()

    async def _begin(self) -> TaskContext:
        agent, ctx = self._agent, self._outer
        offered = await ctx.tools.list() if ctx.tools is not None and agent.tools != () else ()
        self._tools = {tool.name: tool for tool in _select(agent, offered)}
        tools = tuple(self._tools.values())
        chosen = None if ctx.tools is None else _Chosen(ctx.tools, tools)
        inner = ctx.child(agent.name, role=agent.role, tools=chosen)
        inner.call = msgspec.structs.replace(inner.call, deadline=self._deadline)
        self._options = {"system": agent.instructions, "tools": [tool.function() for tool in tools]}
        if agent.model is not None:
            self._options["model"] = agent.model
        if agent.form is not None:
            self._options["response_format"] = agent.form.response_format()
        if agent.temperature is not None:
            self._options["temperature"] = agent.temperature
        if agent.max_tokens is not None:
            self._options["max_tokens"] = agent.max_tokens
        if agent.extra is not None:
            self._options["extra"] = agent.extra
        return inner

    async def _advance_in_time(self) -> bool:
        over = f"the time of agent {self._agent.name} is over; it has made {self._steps} model calls"
        left = None if self._deadline is None else self._deadline - self._outer.clock.now()
        if left is not None and left <= 0:
            raise DeadlineReached(over)
        try:
            async with asyncio.timeout(left) as scope:
                return await self._advance()
        except TimeoutError:
            if scope.expired():
                raise DeadlineReached(over) from None
            raise

    async def _advance(self) -> bool:
        """Ask the model, or deal with its last reply. Returns whether the run is over."""
        ctx = self._ctx = self._ctx or await self._begin()
        reply, self._reply = self._reply, None
        if reply is None:
            self._reply = await self._ask(ctx)
            self._ready.append(ModelStep(answer=self._reply))
        elif not reply.tool_calls or self._repairing:
            return self._conclude(reply)
        else:
            await self._act(ctx, reply)
        return False

    async def _ask(self, ctx: TaskContext) -> ChatAnswer:
        options, limits = self._options, self._agent.limits
        if not self._repairing:
            self._admit()
            self._last = self._steps + 1 >= limits.steps or self._tool_calls >= limits.tool_calls
            if self._last and self._tools:
                self.conversation = self.conversation.user(LAST_TURN)
        if self._tools and (self._last or self._repairing):
            options = {**options, "tool_choice": "none"}
        self._steps += 1
        answer = self.conversation.distinct(await ctx.model(self.conversation.messages, **options))
        self._tokens += _tokens(self.conversation.messages, answer)
        return answer

    def _admit(self) -> None:
        """Raises what forbids a further turn."""
        agent = self._agent
        if self._last:
            raise StepLimit(f"agent {agent.name} called tools in its last turn; give it more steps or tool calls")
        if self._refused_turns >= MAX_REFUSED_TURNS:
            raise StepLimit(f"agent {agent.name} was stopped: in {MAX_REFUSED_TURNS} turns none of its calls could run")
        if self._tokens >= agent.limits.tokens:
            raise TokenLimit(f"agent {agent.name} has used {self._tokens:,} of {agent.limits.tokens:,} tokens")

    async def _act(self, ctx: TaskContext, reply: ChatAnswer) -> None:
        limits = self._agent.limits
        self.conversation, steps = await step(
            ctx,
            self.conversation,
            reply,
            self._tools,
            allowed=0 if self._last else limits.tool_calls - self._tool_calls,
            result_chars=limits.result_chars,
            barred=self._barred,
        )
        ran = [done for done in steps if isinstance(done, ToolStep)]
        self._tool_calls += len(ran)
        self._refused_turns = 0 if ran else self._refused_turns + 1
        self._barred |= {
            identity(done.call.name, done.arguments) for done in ran if done.result.code == OutcomeUnknown.code
        }
        self._ready.extend(steps)

    def _conclude(self, reply: ChatAnswer) -> bool:
        agent = self._agent
        flagged = "last_turn" if self._last and self._tools else ""
        try:
            output = read(reply, agent.form)
        except (OutputInvalid, ReplyTruncated) as error:
            if not self._repairing:
                self._repairing = True
                if reply.text.strip():  # upstreams refuse an empty message of the assistant
                    self.conversation = self.conversation.assistant(reply)
                self.conversation = self.conversation.user(repair_request(error.message, agent.form))
                self._ready.append(RepairStep(reason=error.message))
                return False
            if agent.fallback is msgspec.UNSET:
                raise type(error)(f"agent {agent.name}: {error.message}; a repair turn did not help") from None
            output, flagged = agent.fallback, "default"
        self.conversation = self.conversation.assistant(reply)
        self._ready.append(
            FinalStep(text=reply.text, output=output, steps=self._steps, tool_calls=self._tool_calls, flagged=flagged)
        )
        return True


class _Chosen:
    """The tools of one run, as a ToolSet: listed once, so that the run sees the same tools to its end."""

    def __init__(self, inner: ToolSet, tools: Sequence[Tool]) -> None:
        self._inner = inner
        self._tools = tools

    async def list(self) -> Sequence[Tool]:
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        return await self._inner.call(name, arguments, context)


def _select(agent: Agent, offered: Sequence[Tool]) -> list[Tool]:
    if agent.tools is None:
        return list(offered)
    by_name = {tool.name: tool for tool in offered}
    missing = [name for name in agent.tools if name not in by_name]
    if missing:
        there = ", ".join(by_name) or "none"
        raise ConfigError(
            f"agent {agent.name} names tools that are not offered: {', '.join(missing)}; there are: {there}"
        )
    return [by_name[name] for name in agent.tools]


def _tokens(messages: Sequence[Message], answer: ChatAnswer) -> int:
    if answer.usage is not None:
        return answer.usage.input + answer.usage.output
    return len(dumps([messages, answer.message])) // BYTES_A_TOKEN
