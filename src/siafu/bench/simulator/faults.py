"""Which request gets which fault: by rate (drawn from the request's hash) or by script (the next matching requests)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from siafu.bench.simulator.draws import Draws
from siafu.errors import ConfigError

KINDS = {
    "400": "refused as wrong (also 403, 404, 408, 409, 413, 422: say which with kind)",
    "401": "key refused; the body repeats the key",
    "402": "Insufficient Balance",
    "403": "forbidden",
    "404": "no such model",
    "408": "timeout",
    "409": "conflict",
    "413": "too large",
    "422": "cannot be processed",
    "429": "rate limit; form = how to say Retry-After, wait = its seconds",
    "quota": "429 insufficient_quota",
    "500": "server error",
    "502": "an HTML page of 20 KB",
    "503": "overloaded",
    "504": "gateway timeout",
    "529": "overloaded",
    "hang": "nothing is sent, ever",
    "hang-after-headers": "the headers come, the body never",
    "slow": "one byte a second (wait = seconds between bytes)",
    "reset": "connection reset in mid-body",
    "reset-before": "connection reset before the headers",
    "long-length": "Content-Length promises more than comes",
    "short-length": "Content-Length promises less than comes",
    "cut": "the stream ends in good order before finish_reason; a plain body ends half-way",
    "malformed": "one of the seven below, drawn",
    "html": "200 with an HTML page",
    "error-object": "200 whose body is an error (code = 429, 500, ...)",
    "null-choices": "200, choices null",
    "empty-choices": "200, choices []",
    "missing-choices": "200 without choices",
    "not-json": "200, half a JSON text",
    "empty-body": "200 and nothing",
    "null-usage": "200, usage null",
    "missing-usage": "200 without usage",
    "length": "finish_reason length; tool arguments still parse",
    "tool-ids-repeated": "all tool calls carry the same id",
    "tool-ids-empty": "tool calls carry empty ids",
    "tool-args-cut": "the last call's arguments are cut",
    "tool-args-empty": "arguments are an empty string",
    "tool-args-double": "arguments are a JSON string that holds JSON",
    "error-event": "an error event inside a 200 stream",
    "comments": "comment lines as keep-alive in a stream",
    "empty-first": "a first stream chunk without choices",
    "split": "a stream split at arbitrary bytes",
    "crlf": "a stream with CRLF line ends",
    "no-space": "a stream with `data:` and no space",
    "say": "this answer: content, tool_calls, finish_reason",
    "reply": "this HTTP reply: status, headers, body (text or JSON)",
}
MALFORMED = ("html", "error-object", "null-choices", "empty-choices", "missing-choices", "not-json", "empty-body")
DRAWN = [kind for kind in KINDS if kind not in ("say", "reply")]
FORMS = (
    "seconds", "fractional", "http-date", "past-date", "ms", "x-ms", "reset-requests", "reset-tokens",
    "zero", "negative", "garbage", "none",
)  # fmt: skip
BEFORE_HEADERS = ("hang", "reset-before")
WIRE = (*BEFORE_HEADERS, "hang-after-headers", "slow", "reset", "cut", "long-length", "short-length")
PLAIN_ONLY = {"long-length", "short-length"}
STREAM_ONLY = {"error-event", "comments", "empty-first", "split", "crlf", "no-space"}
TOOL_CALLS_ONLY = {kind for kind in KINDS if kind.startswith("tool-")}
RULES_MOST = 10_000


class ScriptLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A line of a simulator's script: the next `times` requests that match (None = all of them), after `skip` of them
    passed, get the fault `kind`. `match`: text that must occur in the request. `wait`: seconds, of the kinds that wait.
    """

    kind: str
    times: int | None = 1
    skip: int = 0
    match: str = ""
    wait: float = 1.0


_Line = TypeVar("_Line", bound=ScriptLine)


class Script(Generic[_Line]):
    """The lines of a script, and how often each has matched."""

    def __init__(self, lines: list[_Line]) -> None:
        self.lines = lines
        self._matched = [0] * len(lines)

    def pick(self, matches: Callable[[_Line], bool]) -> _Line | None:
        """The first line whose turn it is for a request that `matches`."""
        for number, line in enumerate(self.lines):
            seen = self._matched[number]
            if (line.times is not None and seen >= line.skip + line.times) or not matches(line):
                continue
            self._matched[number] += 1
            if seen >= line.skip:
                return line
        return None

    def left(self) -> list[dict[str, Any]]:
        """The lines with how often each matched."""
        return [
            {**msgspec.to_builtins(line), "matched": seen} for line, seen in zip(self.lines, self._matched, strict=True)
        ]


def drawn(rates: Mapping[str, float], draws: Draws) -> tuple[str, float] | None:
    """A kind drawn by its share, and how long it is to wait; None = no fault."""
    chance = draws.uniform("fault")
    for kind, rate in rates.items():
        chance -= rate
        if chance < 0:
            return kind, 0.2 + draws.uniform("fault wait")
    return None


class Rule(ScriptLine, frozen=True, kw_only=True):
    """A line of the endpoint's script. `kind` may join styles of a stream by `+` ("comments+split+crlf"). `form` and
    `wait`: see retry_after in refusals.py. `content`, `tool_calls`, `finish_reason`: of `say`. `status`, `headers`,
    `body`: of `reply`.
    """

    model: str = ""
    form: str = "ms"
    message: str | None = None
    code: str | int | None = None
    status: int = 200
    headers: dict[str, str] = {}
    body: Any = None
    content: str | None = None
    tool_calls: list[dict[str, Any]] = []
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise ValueError(f"fault {kind[:40]!r} is unknown; known: {', '.join(KINDS)}")
        if len(self.kinds) > 1 and not STREAM_ONLY.issuperset(self.kinds):
            raise ValueError(f"only these can be joined by +: {', '.join(sorted(STREAM_ONLY))}")
        if self.form not in FORMS:
            raise ValueError(f"form {self.form[:40]!r} is unknown; known: {', '.join(FORMS)}")

    @property
    def kinds(self) -> list[str]:
        return self.kind.split("+")

    def fits(self, stream: bool, has_calls: bool) -> bool:
        """Whether the fault can show on such an answer."""
        never = (PLAIN_ONLY if stream else STREAM_ONLY) | (set() if has_calls else TOOL_CALLS_ONLY)
        return not never & set(self.kinds)

    @property
    def breaks_body(self) -> bool:
        """Whether the reply is no stream even where one was asked for."""
        return self.kind in (*MALFORMED, "malformed")


class Faults:
    """The rates and what is left of the script."""

    def __init__(self, rates: dict[str, float], rules: list[Rule]) -> None:
        self.rates = rates
        self.script = Script(rules)

    def pick(self, *, prompt: str, model: str, stream: bool, has_calls: bool, draws: Draws) -> Rule | None:
        """The fault of this request: the first line of the script that matches, else one drawn by rate."""
        found = self.script.pick(
            lambda rule: rule.model in ("", model) and rule.match in prompt and rule.fits(stream, has_calls)
        )
        if found is None and (chosen := drawn(self.rates, draws)):
            rule = Rule(kind=chosen[0], wait=chosen[1])
            found = rule if rule.fits(stream, has_calls) else None
        return found


def parse_rates(spec: str, kinds: Collection[str] = DRAWN, like: str = "429:5%") -> dict[str, float]:
    """Shares by kind from `429:5%,500:1%,hang:0.5%`. `like`: an example for the message.

    Raises: ConfigError.
    """
    rates: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in spec.split(","))):
        found = re.fullmatch(r"([\w-]+):(\d+(?:\.\d+)?)(%?)", part)
        if not found or found[1] not in kinds:
            raise ConfigError(f"fault rate {part[:40]!r} must look like {like}; kinds: {', '.join(kinds)}")
        rates[found[1]] = float(found[2]) / (100 if found[3] else 1)
    if sum(rates.values()) > 1 + 1e-9:
        raise ConfigError("the fault rates add up to more than 100%")
    return rates


class _Script(msgspec.Struct, forbid_unknown_fields=True):
    rules: list[Rule] = []
    rates: str | None = None


def parse_script(text: bytes, where: str) -> tuple[dict[str, float] | None, list[Rule]]:
    """Rates (None = not given) and rules from JSON: {"rates": "429:5%", "rules": [...]}, or the list of rules alone.

    Raises: ConfigError.
    """
    try:
        script = msgspec.json.decode(text, type=_Script | list[Rule])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from None
    if isinstance(script, list):
        script = _Script(script)
    if len(script.rules) > RULES_MOST:
        raise ConfigError(f"{where}: more than {RULES_MOST} rules")
    return None if script.rates is None else parse_rates(script.rates), script.rules


def read_script(spec: str) -> bytes | None:
    """What stands in the script that `spec` names; None = it names none, and holds rates.

    Raises: ConfigError.
    """
    if not spec.endswith(".json"):
        return None
    try:
        return Path(spec).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the fault script {spec}: {error.strerror}") from None


def parse_faults(spec: str) -> tuple[dict[str, float], list[Rule]]:
    """Rates from `429:5%,500:1%`, or rates and rules from the name of a JSON file with a script.

    Raises: ConfigError.
    """
    text = read_script(spec)
    if text is None:
        return parse_rates(spec), []
    rates, rules = parse_script(text, spec)
    return rates or {}, rules
