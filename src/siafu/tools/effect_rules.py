"""What has to hold before a tool may act on the world: a rule a tool, read strictly; pure.

The key names an effect for good: whatever is asked for under the same key is the same effect. It comes from the
journal's step or from the stored request, with arguments where a request may have several effects; never from the
words of a model alone.
"""

from __future__ import annotations

import re
import unicodedata
import uuid
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from siafu.border.canonical import canonical, fingerprint
from siafu.errors import ConfigError, ToolDenied
from siafu.observe.calls import CallContext
from siafu.tools.toolset import Tool, ToolResult

STEP, REQUEST = "step", "request"
CALL_SHARE = 0.7  # of the lease: a call ends well before somebody else may take over
MAX_AMOUNT = 10**15
PENDING = "pending_approval"  # the code of a result that says: a person has to decide before the effect
_SPACE = uuid.UUID("6d1f7a52-5b0e-5c1b-9d2c-0f5c2f0f3c6e")
_REFERENCE = re.compile(r"\$(key|argument\.[\w-]+)")

Judgement = Literal["succeeded", "refused", "waiting", "unknown"]


class Lookup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to see whether an effect happened: a tool of the same server that changes nothing.

    arguments: values as they are, or `$key` (the effect's key) and `$argument.NAME` (of the call). found: the place in
    its structured result (`refund.id`) that holds something, other than false or an empty list, when it happened.
    """

    tool: str
    arguments: Mapping[str, Any] = {}
    found: str

    def __post_init__(self) -> None:
        for value in self.arguments.values():
            if isinstance(value, str) and value.startswith("$") and not _REFERENCE.fullmatch(value):
                raise ConfigError(f"a lookup knows $key and $argument.NAME, not {value[:60]!r}")

    def asked(self, key: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the lookup's call."""
        known = {"$key": key, **{f"$argument.{name}": value for name, value in arguments.items()}}
        return {
            name: known.get(value) if isinstance(value, str) and value.startswith("$") else value
            for name, value in self.arguments.items()
        }

    def finds(self, result: ToolResult) -> bool:
        """Whether the lookup's result says that it happened."""
        value = result.structured
        for name in self.found.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return not result.is_error and value not in (None, False, 0, "", [], {})


class Above(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person is asked when the argument is above this, is left away, or is no whole number."""

    argument: str
    above: int


class Most(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The argument's sum over a day (UTC), for one tool and tenant, stays at or below `max`."""

    argument: str
    max: int


class EffectRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contract of one tool.

    key: "step" (each step of the journal is one effect), "request" (one effect a customer request), or a list of one
    of them and names of arguments. ignore: arguments in which two calls of one effect may differ, such as free text.
    honours_key: the tool does an effect once a key, which it gets in `_meta` as `siafu/effect-key`.
    unclear: codes of the tool's errors, beside the usual ones, that leave open whether it has acted.
    unknown: after an unclear outcome "repeat" under the same key (only when it is honoured, at most for 23 hours), or
    "review": leave it to a person. None = repeat when the key is honoured. `lookup` is asked first.
    approval: whether a person decides first. pending: while that is undecided, or it cannot be done now for another
    reason, "tell" the one who asked, or let the whole item "wait": it raises NotNow, holds no place, and goes on when
    its run is started again.
    daily_calls, daily_total: a day's most, for one tenant; None = no cap.
    lease_seconds: a call may take 0.7 of it; after it, another process may take over.

    Raises: ConfigError for a rule that contradicts itself.
    """

    key: str | tuple[str, ...] = STEP
    ignore: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    honours_key: bool = False
    lookup: Lookup | None = None
    unknown: Literal["review", "repeat"] | None = None
    approval: Literal["never", "always"] | Above = "never"
    pending: Literal["tell", "wait"] = "tell"
    daily_calls: int | None = None
    daily_total: Most | None = None
    lease_seconds: float = 15.0

    def __post_init__(self) -> None:
        if len({STEP, REQUEST} & set(self.parts)) != 1:
            raise ConfigError('key is "step", "request", or a list with one of them and names of arguments')
        if self.unknown == "repeat" and not self.honours_key:
            raise ConfigError('unknown = "repeat" needs honours_key = true: a repeated call would act a second time')
        if not 0.1 <= self.lease_seconds <= 3600:
            raise ConfigError("lease_seconds must be from 0.1 to 3600")
        if self.daily_calls is not None and self.daily_calls < 0:
            raise ConfigError("daily_calls must not be negative")

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key

    @property
    def repeats(self) -> bool:
        """Whether a call may be made again under its key when nobody knows what became of it."""
        return self.honours_key and self.unknown != "review"

    def asks_person(self, arguments: Mapping[str, Any]) -> str:
        """Why a person has to decide on a call with these arguments; empty when none has to."""
        if isinstance(self.approval, str):
            return "every call of this tool is decided by a person" if self.approval == "always" else ""
        name, limit = self.approval.argument, self.approval.above
        given = amount(arguments, name)
        if given is None:
            return f"{name} is left away or is no whole number, and above {limit:,} a person decides"
        return f"{name} is above {limit:,}" if given > limit else ""


def effect_key(rule: EffectRule, tool: str, context: CallContext, arguments: Mapping[str, Any]) -> str:
    """The key of the effect that this call asks for: 39 characters, the same for every attempt and process.

    An argument counts in a plain form (no outer spaces, no case, full-width as half-width): two spellings of one order
    are one effect, and never two.

    Raises: ToolDenied when the call has no step or request to take the key from.
    """
    parts: list[Any] = [tool, context.tenant, context.user]
    for part in rule.parts:
        if part == STEP:
            own = context.effect_key or (context.step and [context.run, context.task, context.step])
        elif part == REQUEST:
            own = context.task and [context.run, context.task]
        else:
            own = [part, _plain(arguments.get(part))]
        if not own:
            raise ToolDenied(f"{tool} acts once a {part}, and this call has none", tool=tool)
        parts.append(own)
    return f"ef:{uuid.uuid5(_SPACE, canonical(parts).decode())}"


def same_effect(rule: EffectRule, tool: str, arguments: Mapping[str, Any]) -> str:
    """Fingerprint of what is asked for; another one under the same key is another effect, and refused."""
    return fingerprint([tool, {name: value for name, value in arguments.items() if name not in rule.ignore}])


def amount(arguments: Mapping[str, Any], name: str) -> int | None:
    """A whole number, not negative; None for everything else."""
    value = arguments.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_AMOUNT else None


def judged(rule: EffectRule, result: ToolResult) -> Judgement:
    """What a tool's answer says about its effect. Only an error with a code in its data is a refusal; any other, such
    as an exception, may have come after the effect.
    """
    if not result.is_error:
        return "succeeded"
    code = result.code if result.structured is not None or result.later else ""
    if code == PENDING:
        return "waiting"
    if code.lstrip("-").isdecimal():
        return "refused" if code in _PROTOCOL_REFUSALS else "unknown"
    return "unknown" if code in _UNCLEAR or code in rule.unclear else "refused"


IN_PROGRESS = "in_progress"  # another call of the tool is at it
_UNCLEAR = frozenset({"", "unknown_outcome", "outcome_unknown", IN_PROGRESS, "unknown", "timeout", "internal_error"})
_PROTOCOL_REFUSALS = frozenset({"-32700", "-32600", "-32601", "-32602"})  # JSON-RPC 2.0: the request itself is wrong


def definition(tool: Tool) -> dict[str, Any]:
    """All that a server says about a tool: what a person has seen when they let it act."""
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "output_schema": tool.output_schema,
        "annotations": tool.annotations,
        "read_only": tool.read_only,
        "idempotent": tool.idempotent,
    }


def _plain(value: Any) -> Any:
    return unicodedata.normalize("NFKC", value).strip().casefold() if isinstance(value, str) else value
