"""What a piece of work may do: ask a model, call a tool, read the clock and chance. Each is journaled, so a task that
runs again after a crash gets the answers it already paid for.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import SystemRandom
from typing import Any, TypedDict, Unpack

import msgspec

from siafu.agents.faults import NOT_SENT, PAUSING, freeze, thaw
from siafu.agents.replay import EFFECTS, Mark, Open, Replay, mark
from siafu.agents.strands import Place
from siafu.border.canonical import dumps, fingerprint
from siafu.errors import ApprovalPending, ModelError, OutcomeUnknown, ToolDenied, ToolFault, ToolUnavailable
from siafu.gateway.chat import ChatAnswer, ChatRequest, Message, packed, unpacked
from siafu.gateway.endpoint import Endpoint
from siafu.observe.calls import CallContext
from siafu.observe.events import Discarded, Observer, Replayed, ToolCalled, nobody
from siafu.pace.clock import Clock
from siafu.store.records import JournalEntry
from siafu.tools.patience import AT_ONCE, ToolPatience
from siafu.tools.toolset import Tool, ToolResult, ToolSet

_chance = SystemRandom()
_MODEL = ("model", "fault")
_VALUE = ("value", "fault")
_TOOL = ("tool", "fault", *EFFECTS)


class ModelOptions(TypedDict, total=False):
    """Options of `TaskContext.model`; those not given come from the run's defaults."""

    model: str
    system: str
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    response_format: Mapping[str, Any]
    temperature: float
    max_tokens: int
    extra: Mapping[str, Any]


class Spent(msgspec.Struct):
    """What the answers of one task cost, also those taken from the journal. `usd_pico` None = one is unknown."""

    usd_pico: int | None = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    tool_calls: int = 0

    def add(self, answer: ChatAnswer) -> None:
        self.calls += 1
        if self.usd_pico is not None:
            self.usd_pico = None if answer.usd_pico is None else self.usd_pico + answer.usd_pico
        if answer.usage is not None:
            self.input_tokens += answer.usage.input
            self.cached_tokens += answer.usage.cached
            self.output_tokens += answer.usage.output


async def unaudited(call: CallContext, tool: str) -> None:
    """Keeps no record of refused tools."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of a run share. `defaults`: options of every model call that does not set them. `denied`: told of
    each tool that was asked for and may not be used; the name is as the model wrote it. `patience`: for tool servers
    that are away.
    """

    endpoint: Endpoint
    clock: Clock
    tools: ToolSet | None = None
    defaults: ModelOptions = {}
    observer: Observer = nobody
    denied: Callable[[CallContext, str], Awaitable[None]] = unaudited
    patience: ToolPatience = AT_ONCE


class TaskContext:
    """The `ctx` that `work(item, ctx)` gets. Bound to one task, and to one path (agent) within it."""

    def __init__(self, around: Surroundings, call: CallContext, replay: Replay, *, path: str = "") -> None:
        self._around = around
        self._replay = replay
        self._path = path
        self.call = call
        self.spent = Spent()

    @property
    def tools(self) -> ToolSet | None:
        return self._around.tools

    @property
    def clock(self) -> Clock:
        return self._around.clock

    @property
    def waiting(self) -> Mapping[str, str]:
        """What calls of guarded tools in this task wait for, as the code of their last answer, each with a tool."""
        return {effect.code: effect.tool for effect in self._replay.open.values()}

    def child(
        self, name: str, *, role: str = "", tools: ToolSet | None = None, identity: str | None = None
    ) -> TaskContext:
        """A context for a sub-agent: its own path, role, tools (None = the same) and identity; the same account."""
        around = msgspec.structs.replace(self._around, tools=tools) if tools is not None else self._around
        call = msgspec.structs.replace(
            self.call, agent=name, role=role or self.call.role, identity=identity or self.call.identity
        )
        inner = TaskContext(around, call, self._replay, path=f"{self._path}/{name}")
        inner.spent = self.spent
        return inner

    async def model(self, prompt: str | Sequence[Message] | ChatRequest, **options: Unpack[ModelOptions]) -> ChatAnswer:
        """Ask a model and return its whole answer, or the journaled answer to the same question at this place.

        `prompt`: the user's text, a list of chat messages, or a whole request (then no options).

        Raises: ModelError, BudgetReached, DeadlineReached. A ModelError is journaled too, so that a task which went on
        after it goes the same way when it runs again. Cancelling gives the call up; a cancelled call is not journaled,
        and what it may have cost stays in the ledger.
        """
        place = self._replay.place(self._path)
        request = prompt if isinstance(prompt, ChatRequest) else self._request(prompt, options)
        asked = hashlib.sha256(request.canonical()).hexdigest()
        found = self._replay.take(place, _MODEL, asked)
        if found is not None:
            answer = unpacked(self._replayed(found, "model").outcome)
        else:
            entry = self._entry("model", place, asked)
            try:
                reply = await self._around.endpoint.open(request, self._call_at(entry))
                answer = await reply.message()
            except ModelError as error:
                if not isinstance(error, PAUSING):
                    await self._replay.append(msgspec.structs.replace(entry, kind="fault", outcome=freeze(error)))
                raise
            if self._replay.kept:  # else nobody reads its bytes
                entry = msgspec.structs.replace(entry, outcome=packed(answer), usd_pico=answer.usd_pico)
                await self._replay.append(entry)
        self.spent.add(answer)
        return answer

    def _replayed(self, found: JournalEntry, kind: str) -> JournalEntry:
        """The journaled outcome of a step. Raises the error it ended with."""
        self._around.observer(Replayed(run=self.call.run, task=self.call.task, kind=kind))
        if found.kind in ("fault", "unclear"):
            raise thaw(found.outcome)
        return found

    def _entry(self, kind: str, place: Place, asked: str) -> JournalEntry:
        seat = self._replay.seat(place, kind)
        return JournalEntry(path=seat.strand, seq=seat.seq, kind=kind, fingerprint=asked, outcome=b"null")

    def _call_at(self, entry: JournalEntry, *, effect_key: str = "") -> CallContext:
        return msgspec.structs.replace(self.call, step=f"{entry.path}#{entry.seq}", effect_key=effect_key)

    def _request(self, prompt: str | Sequence[Message], options: ModelOptions) -> ChatRequest:
        chosen: dict[str, Any] = {**self._around.defaults, **options}
        system = chosen.pop("system", None)
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        messages += [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        return ChatRequest(messages=messages, **chosen)

    async def tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool, or return the journaled result of the same call at this place.

        A tool that is neither read-only nor idempotent leaves a durable mark before it is called. If the process dies
        in between, the call is not repeated: it raises OutcomeUnknown when the task runs again. It also raises
        OutcomeUnknown when the task has had an effect that it no longer asks for, as its prompt or code changed.

        A guarded tool, whose contract makes that safe, is called again under the same effect key instead: also when its
        outcome was unclear, or it could not act yet (`ToolResult.later`). An open call makes the item wait, unless the
        task has asked again in the same words: then that later call counts. As long as an answer stays the same in
        kind, the one from the journal is given.

        Raises: ToolFault.
        """
        place = self._replay.place(self._path)
        asked = fingerprint([name, arguments])
        found = self._replay.take(place, _TOOL, asked)
        key = "" if found is None else _undecided(found)
        offered = await self._offered(name) if key else None
        if found is None:
            result = await self._use(name, arguments, place, asked)
        elif offered is not None and offered.guarded:
            result = await self._do(msgspec.structs.replace(found, kind="effect"), name, arguments, key, told=found)
        elif key and found.kind != "intent" and offered is None:  # perhaps not for good
            result = self._told_again(name, key, found)
        elif found.kind == "intent":
            raise OutcomeUnknown(
                f"{name} was called before the last stop and its outcome is unknown; it was not called again", tool=name
            )
        else:
            result = msgspec.json.decode(self._replayed(found, "tool").outcome, type=ToolResult)
        self.spent.tool_calls += 1
        return result

    async def denied(self, name: str) -> None:
        """Record that a tool was asked for which may not be used here."""
        await self._around.denied(self.call, name)

    async def _use(self, name: str, arguments: Mapping[str, Any], place: Place, asked: str) -> ToolResult:
        entry, key = self._entry("tool", place, asked), ""
        try:
            tool = await self._offered(name)
            if tool is None:
                raise ToolDenied(f"there is no tool {name!r} here", tool=name)
            if _has_effect(tool):
                if self._replay.strayed(place):
                    raise OutcomeUnknown(
                        f"this task acted before its prompt or code changed; {name} was not called, as it could be "
                        "the same act again. See what it did, then give the item a new key",
                        tool=name,
                    )
                # Drawn once and kept with the step: names alone would make two runs of one name the same act.
                key = str(uuid.uuid4()) if tool.guarded else ""
                entry = msgspec.structs.replace(entry, kind="effect")
                await self._give_up(asked)
                await self._replay.append(msgspec.structs.replace(entry, kind="intent", outcome=_marked(None, key)))
        except ToolFault as error:
            await self._fail(error, msgspec.structs.replace(entry, kind="fault", outcome=freeze(error)), name)
            raise
        return await self._do(entry, name, arguments, key)

    async def _do(
        self,
        entry: JournalEntry,
        name: str,
        arguments: Mapping[str, Any],
        key: str,
        *,
        told: JournalEntry | None = None,
    ) -> ToolResult:
        """Call the tool and journal its answer. told: what an earlier call under `key` came to, which was open."""
        call = self._call_at(entry, effect_key=key)
        before = "" if told is None or told.kind == "intent" else mark(told).code
        try:
            result = await self._call_tool(name, arguments, call)
        except ToolFault as error:
            # An effect that may have happened stays marked as such: it is told again, and never tried again.
            unclear = entry.kind == "effect" and not isinstance(error, NOT_SENT)
            if told is not None and unclear and before and (before == error.code or isinstance(error, ToolUnavailable)):
                return self._told_again(name, key, told)
            entry = msgspec.structs.replace(entry, kind="unclear" if unclear else "fault", outcome=freeze(error, key))
            await self._fail(error, entry, name)
            self._note(name, key, entry, error.code if unclear else "")
            raise
        code = result.code if result.later else ""
        if told is not None and code and before == code:
            return self._told_again(name, key, told)
        entry = msgspec.structs.replace(entry, outcome=_marked(result, key))
        await self._replay.append(entry)
        self._note(name, key, entry, code)
        return result

    def _told_again(self, name: str, key: str, told: JournalEntry) -> ToolResult:
        """Nothing has changed but words, so what was told stands, and no model is asked anew."""
        self._note(name, key, told, mark(told).code)
        return msgspec.json.decode(self._replayed(told, "tool").outcome, type=ToolResult)

    def _note(self, name: str, key: str, entry: JournalEntry, code: str) -> None:
        """Whether the effect under `key` is open, and why; empty `code` = it is not."""
        self._replay.open.pop(key, None)
        if key and code:
            self._replay.open[key] = Open(self._path, name, entry, code)

    async def _give_up(self, asked: str) -> None:
        """The same is asked for again: from now on that call counts, and the one that could not act never will.

        One that waits for a person does not belong here: it is for the person to say whether both are wanted.
        """
        for key, effect in self._replay.open.items():
            same = (effect.path, effect.entry.fingerprint) == (self._path, asked)
            if same and effect.code != ApprovalPending.code:
                del self._replay.open[key]
                outcome = dumps({**msgspec.json.decode(effect.entry.outcome), "effect_key": ""})
                await self._replay.append(msgspec.structs.replace(effect.entry, outcome=outcome))
                return

    async def _fail(self, error: ToolFault, entry: JournalEntry, name: str) -> None:
        if isinstance(error, ToolDenied):
            await self.denied(name)
        await self._replay.append(entry)

    async def _offered(self, name: str) -> Tool | None:
        tools = () if self._around.tools is None else await self._around.tools.list()
        return next((tool for tool in tools if tool.name == name), None)

    async def _call_tool(self, name: str, arguments: Mapping[str, Any], call: CallContext) -> ToolResult:
        tools = self._around.tools
        assert tools is not None  # noqa: S101  it has offered the tool
        began = self._around.clock.now()
        outcome = "failed"
        try:
            result = await self._around.patience.call(tools, name, arguments, call)
            outcome = "error" if result.is_error else "ok"
            return result
        finally:
            self._around.observer(
                ToolCalled(
                    run=self.call.run,
                    task=self.call.task,
                    role=self.call.role,
                    tool=name,
                    outcome=outcome,
                    seconds=self._around.clock.now() - began,
                )
            )

    async def now(self) -> float:
        """Seconds since 1970, journaled: the same when the task runs again."""
        return float(await self._value("now", self._around.clock.wall))

    async def random(self) -> float:
        """A number in [0, 1), journaled."""
        return float(await self._value("random", _chance.random))

    async def uuid(self) -> str:
        """A random UUID, journaled."""
        return str(await self._value("uuid", lambda: str(uuid.uuid4())))

    async def _value(self, name: str, draw: Callable[[], Any]) -> Any:
        place = self._replay.place(self._path)
        found = self._replay.take(place, _VALUE, name)
        if found is not None:
            return msgspec.json.decode(self._replayed(found, "value").outcome)
        value = draw()
        await self._replay.append(msgspec.structs.replace(self._entry("value", place, name), outcome=dumps(value)))
        return value

    def report_discarded(self) -> int:
        """Tell the observer of journaled steps that were made anew, as they no longer fitted; returns their number.
        To be called after the task's last step.
        """
        discarded = self._replay.discarded()
        for entry in discarded:
            self._around.observer(
                Discarded(run=self.call.run, task=self.call.task, kind=entry.kind, usd_pico=entry.usd_pico)
            )
        return len(discarded)


def _has_effect(tool: Tool) -> bool:
    return not (tool.read_only or tool.idempotent)


def _marked(result: ToolResult | None, key: str) -> bytes:
    return dumps({**msgspec.to_builtins(result or Mark()), "effect_key": key} if key else result)


def _undecided(entry: JournalEntry) -> str:
    """The key of an effect under a contract whose outcome is still open; empty for every other entry."""
    if entry.kind not in EFFECTS or entry.outcome == b"null":
        return ""
    said = mark(entry)
    return said.effect_key if entry.kind != "effect" or said.later else ""
