"""Tools whose effects happen once, whoever asks how often: the effect contract around any ToolSet.

Claim by unique key, durable dispatch under an epoch, the call outside any transaction, fenced ending. A call that ended
without an answer is looked up where the rule says how, made again under its key where the tool honours keys, and left
to a person otherwise; it is never repeated blindly. What a server claims about a tool relaxes none of this.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from siafu.border.canonical import canonical, dumps, fingerprint
from siafu.border.text import preview
from siafu.errors import (
    ApprovalPending,
    Away,
    ConfigError,
    NotNow,
    OutcomeUnknown,
    StoreLocked,
    ToolArgumentsInvalid,
    ToolDenied,
    ToolFault,
    ToolUnavailable,
)
from siafu.observe.calls import CallContext
from siafu.pace.clock import Clock
from siafu.store.crash import crash_point
from siafu.store.effect_people import AGENT
from siafu.store.effect_records import Busy, Dispatch, EffectAsk, Ending, Kept, Stopped, Verdict
from siafu.store.effects import EffectStore
from siafu.tools.bounds import seconds_left
from siafu.tools.effect_rules import (
    CALL_SHARE,
    IN_PROGRESS,
    PENDING,
    EffectRule,
    amount,
    definition,
    effect_key,
    judged,
    same_effect,
)
from siafu.tools.toolset import Tool, ToolResult, ToolSet

ATTEMPTS = 3  # calls under one claim, where a call may be repeated
_PAUSES = (0.2, 1.0)  # seconds between them
_LOOK_AGAIN = 0.25  # seconds until somebody else's call is looked at again
_NOT_SENT = (ToolDenied, ToolArgumentsInvalid, ToolUnavailable)
_log = logging.getLogger("siafu.tools")


class _Contract(msgspec.Struct, frozen=True):
    """A tool and its rule. `tool`: `server.name`. `definition`: canonical JSON."""

    tool: str
    rule: EffectRule
    definition: str


class Effects:
    """The tools of `inner`; those with a rule are called under its contract and marked as guarded.

    rules: by `server.tool`; by the name alone for tools of no server. owner: names this process in leases and audit.
    A tool whose definition is another than the one that was accepted is left out, and refused when it is called; unless
    `ours`, for a server that is part of the same program and changes only with it.
    """

    def __init__(
        self,
        inner: ToolSet,
        rules: Mapping[str, EffectRule],
        store: EffectStore,
        *,
        clock: Clock,
        owner: str,
        ours: bool = False,
    ) -> None:
        self._inner = inner
        self._rules = rules
        self._store = store
        self._clock = clock
        self._owner = owner
        self._ours = ours
        self._seen: Sequence[Tool] | None = None
        self._contracts: dict[str, _Contract] = {}
        self._tools: tuple[Tool, ...] = ()
        self._changed = False  # a tool is left out; a person may accept it at any time

    async def list(self) -> Sequence[Tool]:
        """The tools of the inner set that may be used.

        Raises: ConfigError when a rule names a tool that is not there; StoreError; ToolFault of the inner set.
        """
        found = await self._read()
        if self._changed or not self._tools:
            kept = [tool for tool in found if await self._may_act(tool)]
            self._changed = len(kept) < len(found)
            tools = tuple(self._marked(tool) for tool in kept)
            self._tools = self._tools if tools == self._tools else tools
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """Call one tool, once for all calls that ask for the same effect; later ones get the answer of the first.

        Results with `is_error` that the contract gives: pending_approval, approval_denied, approval_expired,
        idempotency_key_reused, tool_disabled, tool_changed, daily_limit, amount_needed.

        Raises: OutcomeUnknown (it may have happened; or somebody else is still calling), ApprovalPending or NotNow when
        the rule says that the item waits, StoreError, ToolFault of the inner set. When cancelled, the call is given up
        and its outcome kept as unknown.
        """
        await self._read()
        contract = self._contracts.get(name)
        if contract is None:
            return await self._inner.call(name, arguments, context)
        result = await self._guarded(contract, name, arguments, context)
        waits = contract.rule.pending == "wait"
        if result.code == PENDING:
            if waits:
                raise ApprovalPending(f"{name} waits for a person's decision; see: siafu approvals list")
            return msgspec.structs.replace(result, later=True)
        if result.later and waits:
            raise NotNow(f"{name} cannot be done now: {preview(result.text, 300)}", reason=result.code)
        return result

    async def _guarded(
        self, contract: _Contract, name: str, arguments: Mapping[str, Any], context: CallContext
    ) -> ToolResult:
        ask = self._ask(contract, arguments, context)
        if ask is None:
            return _error("amount_needed", f"{name} needs its amount as a whole number, as there is a limit for a day")
        while True:
            began = self._clock.now()
            verdict = await self._claim(ask, name, context)
            if not isinstance(verdict, Busy):
                break
            if not await self._wait(verdict, context):
                raise OutcomeUnknown(f"another call of {name} for the same purpose is still under way", tool=name)
        if not isinstance(verdict, Dispatch):
            return _told(verdict, name)
        ends = [began + CALL_SHARE * contract.rule.lease_seconds]
        ends += [] if context.deadline is None else [context.deadline]
        context = msgspec.structs.replace(context, effect_key=ask.key, deadline=min(ends))
        return await _Call(self._inner, self._store, self._clock, name, contract.rule, verdict).made(context)

    async def _read(self) -> Sequence[Tool]:
        found = await self._inner.list()
        if found is not self._seen:
            ids = {tool.name: f"{tool.server}.{tool.name}" if tool.server else tool.name for tool in found}
            for name in self._rules.keys() - ids.values():
                near = get_close_matches(name, ids.values(), n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(ids.values())) or 'none'}"
                raise ConfigError(f"there is a rule for the effects of {name}, but no such tool; {hint}")
            self._contracts = {
                tool.name: _Contract(ids[tool.name], rule, "{}" if self._ours else canonical(definition(tool)).decode())
                for tool in found
                if (rule := self._rules.get(ids[tool.name])) is not None
            }
            self._seen, self._tools = found, ()
        return found

    async def _may_act(self, tool: Tool) -> bool:
        contract = self._contracts.get(tool.name)
        if contract is None or await self._store.accepted(contract.tool, contract.definition):
            return True
        _log.warning("%s has changed and is left out until: siafu effects accept %s", contract.tool, contract.tool)
        return False

    def _marked(self, tool: Tool) -> Tool:
        if tool.name not in self._contracts:
            return tool
        return msgspec.structs.replace(tool, guarded=True, read_only=False, idempotent=False)

    def _ask(self, contract: _Contract, arguments: Mapping[str, Any], context: CallContext) -> EffectAsk | None:
        """None when the amount is missing that a cap counts."""
        rule, tool = contract.rule, contract.tool
        counted = amount(arguments, rule.daily_total.argument) if rule.daily_total else None
        if rule.daily_total and counted is None:
            return None
        return EffectAsk(
            key=effect_key(rule, tool, context, arguments),
            tool=tool,
            fingerprint=same_effect(rule, tool, arguments),
            arguments=canonical(arguments).decode(),
            arguments_sha256=fingerprint(arguments),
            definition=contract.definition,
            requester=context.user or f"{AGENT}{context.role or context.agent}",
            owner=self._owner,
            lease_seconds=rule.lease_seconds,
            repeats=rule.repeats,
            looks=rule.lookup is not None,
            approval=rule.asks_person(arguments),
            amount=counted,
            max_calls=rule.daily_calls,
            max_total=rule.daily_total.max if rule.daily_total else None,
            tenant=context.tenant,
            customer=context.user,
            run=context.run,
            task=context.task,
            step=context.step,
            agent=context.agent,
            role=context.role,
        )

    async def _claim(self, ask: EffectAsk, name: str, context: CallContext) -> Verdict:
        """Raises: ToolTimeout when there is no time, or others held the database until there was none; StoreError."""
        left = seconds_left(name, context, self._clock)
        try:
            return await self._store.claim(ask, left)
        except StoreLocked:
            seconds_left(name, context, self._clock)  # the caller's time is over, and not that of the whole run
            raise

    async def _wait(self, busy: Busy, context: CallContext) -> bool:
        """Wait a little for somebody else's call; False when the deadline leaves no time for that."""
        pause = min(busy.seconds, _LOOK_AGAIN) + 0.01
        if context.deadline is not None and self._clock.now() + pause >= context.deadline:
            return False
        await self._clock.sleep(pause)
        return True


class _Call:
    """What is done under one dispatch, to its ending."""

    def __init__(
        self, inner: ToolSet, store: EffectStore, clock: Clock, name: str, rule: EffectRule, dispatch: Dispatch
    ) -> None:
        self._inner, self._store, self._clock = inner, store, clock
        self._name, self._rule, self._dispatch = name, rule, dispatch
        self._arguments: dict[str, Any] = msgspec.json.decode(dispatch.arguments)
        self._away: Away | None = None  # the server, when the last call did not reach it

    async def made(self, context: CallContext) -> ToolResult:
        """`context` has the effect's key, and ends well before the lease."""
        try:
            ending, result, why = await self._attempts(context)
        except _NOT_SENT:
            await self._store.finish(self._dispatch.effect, self._dispatch.epoch, "refused", None)
            raise
        except BaseException:  # cancelled, or a tool set that breaks its contract: nobody knows
            await self._store.finish(self._dispatch.effect, self._dispatch.epoch, "unknown", None)
            raise
        kept = None if result is None else dumps(result).decode()
        verdict = await self._store.finish(self._dispatch.effect, self._dispatch.epoch, ending, kept)
        try:
            return _told(verdict, self._name, why)
        except OutcomeUnknown as unknown:
            if ending == "unknown" and self._away is not None:  # the contract can find out, or call under the same key
                unknown.away = self._away
            raise

    async def _attempts(self, context: CallContext) -> tuple[Ending, ToolResult | None, str]:
        """How it ended, the tool's last answer, and for people why nobody knows."""
        rule, look = self._rule, self._dispatch.look
        result, why, may_call = None, "", self._dispatch.repeats or not look
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._clock.sleep(_PAUSES[attempt - 1])
            if look:
                seen = await self._seen(context)
                if seen is None:
                    return "unknown", result, f"{why or self._name}; and it could not be looked up"
                if rule.lookup is not None and rule.lookup.finds(seen):
                    return "succeeded", seen, ""
                if not may_call:
                    return "manual_review", result, f"{self._name}: the look-up does not show it; a person has to look"
            elif not may_call:
                break
            result, why = await self._once(context, fresh=self._dispatch.fresh and not attempt)
            while pause := self._under_way(result, context):
                await self._clock.sleep(pause)
                result, why = await self._once(context, fresh=False)
            judgement = "unknown" if result is None else judged(rule, result)
            if judgement != "unknown":
                return judgement, result, ""
            look, may_call = rule.lookup is not None, rule.repeats
            if context.deadline is not None and self._clock.now() >= context.deadline:
                break
        later = rule.repeats or rule.lookup is not None
        return "unknown" if later else "manual_review", result, why

    def _under_way(self, result: ToolResult | None, context: CallContext) -> float:
        """Seconds until it is asked for again, when the answer is that the tool is doing it just now; else 0.0."""
        if result is None or result.code != IN_PROGRESS or not self._rule.repeats or context.deadline is None:
            return 0.0
        said = result.structured.get("retry_after_ms") if isinstance(result.structured, Mapping) else None
        pause = min(max(said / 1000, 0.1), 1.0) if isinstance(said, int) else 1.0
        return pause if self._clock.now() + pause < context.deadline else 0.0

    async def _once(self, context: CallContext, *, fresh: bool) -> tuple[ToolResult | None, str]:
        """The tool's answer, None when there is none; and what is unclear about it.

        Raises: when `fresh`, what says that nothing was sent; of an earlier call it says nothing.
        """
        crash_point("effect_dispatching")
        try:
            result, self._away = await self._inner.call(self._name, self._arguments, context), None
        except ToolFault as fault:
            if fresh and isinstance(fault, _NOT_SENT):
                raise
            self._away = fault.away
            return None, fault.message
        crash_point("effect_called")
        return result, f"{self._name} answered {preview(result.text, 200)!r}, which does not say whether it was done"

    async def _seen(self, context: CallContext) -> ToolResult | None:
        """What the look-up says; None when it cannot say."""
        lookup = self._rule.lookup
        if lookup is None:
            return None
        asked = lookup.asked(context.effect_key, self._arguments)
        try:
            result = await self._inner.call(lookup.tool, asked, msgspec.structs.replace(context, effect_key=""))
        except ToolFault as fault:
            self._away = fault.away
            _log.warning("the look-up %s of %s failed: %s", lookup.tool, self._name, fault.message)
            return None
        return None if result.is_error else result


def _told(verdict: Verdict, name: str, why: str = "") -> ToolResult:
    if isinstance(verdict, Kept):
        return msgspec.json.decode(verdict.result, type=ToolResult)
    assert isinstance(verdict, Stopped)  # noqa: S101  all others have been dealt with
    if verdict.code == "manual_review":
        raise OutcomeUnknown(why or f"{name}: {verdict.message}", tool=name)
    return _error(verdict.code, verdict.message, later=verdict.later)


def _error(code: str, message: str, *, later: bool = False) -> ToolResult:
    said = {"code": code, "message": message}
    return ToolResult(text=message, structured=said, is_error=True, code=code, later=later)
