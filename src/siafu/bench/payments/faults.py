"""Which request goes wrong, and how: by rate (drawn from seed, reference and attempt) or by script."""

from __future__ import annotations

import msgspec

from siafu.bench.payments.lines import What
from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.faults import Script, ScriptLine, drawn, parse_rates, read_script
from siafu.errors import ConfigError

KINDS = {
    "slow": "paid, but only after `wait` seconds, also when the caller has left meanwhile",
    "lost": "paid; the connection is reset without an answer",
    "lost_before": "not paid; the connection is reset without an answer",
    "hang": "paid; nothing is sent, ever",
    "hang_before": "not paid; nothing is sent, ever",
    "error_after": "paid; 500",
    "error_before": "not paid; 503",
    "decline": "not paid; 402",
    "unparsable": "paid; 200 with half a JSON text",
    "lookup_slow": "a lookup answers after `wait` seconds",
    "lookup_lost": "a lookup's connection is reset",
    "lookup_hang": "a lookup is never answered",
    "lookup_error": "a lookup gets 503",
    "lookup_unparsable": "a lookup gets half a JSON text",
}
UNPAID = ("lost_before", "hang_before", "error_before", "decline")
SLOW = ("slow", "lookup_slow")
LOST = ("lost", "lost_before", "lookup_lost")
HUNG = ("hang", "hang_before", "lookup_hang")
UNPARSABLE = ("unparsable", "lookup_unparsable")


class Rule(ScriptLine, frozen=True, kw_only=True):
    """A line of the provider's script. `match`: text that must occur in the reference or the payment. `attempt`: only
    this attempt of a reference.
    """

    attempt: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"fault {self.kind[:40]!r} is unknown; known: {', '.join(KINDS)}")


class Faults:
    """The rates (kind -> share) and what is left of the script."""

    def __init__(self, rates: dict[str, float], rules: list[Rule]) -> None:
        self.rates = rates
        self.script = Script(rules)

    def pick(self, what: What, names: tuple[str, ...], attempt: int, draws: Draws) -> Rule | None:
        """The fault of this request: the first line of the script that matches, else one drawn by rate.

        what: refund or lookup. names: its reference and payment.
        """
        found = self.script.pick(
            lambda rule: (
                _concerns(rule.kind) == what
                and rule.attempt in (None, attempt)
                and any(rule.match in name for name in names)
            )
        )
        if found is None:
            rates = {kind: rate for kind, rate in self.rates.items() if _concerns(kind) == what}
            if chosen := drawn(rates, draws):
                found = Rule(kind=chosen[0], wait=chosen[1])
        return found


def _concerns(kind: str) -> What:
    return "lookup" if kind.startswith("lookup_") else "refund"


class _Script(msgspec.Struct, forbid_unknown_fields=True):
    rules: list[Rule] = []
    rates: str | None = None


def parse_faults(spec: str) -> Faults:
    """Faults from rates such as `lost:5%,error_after:1%`, or from the name of a JSON file with a script.

    Raises: ConfigError.
    """
    text = read_script(spec)
    return Faults(_rates(spec), []) if text is None else parse_script(text, spec, {})


def parse_script(text: bytes, where: str, rates: dict[str, float]) -> Faults:
    """Faults from JSON: {"rates": "lost:5%", "rules": [...]}. Left away, `rates` stay and there are no rules.

    Raises: ConfigError.
    """
    try:
        script = msgspec.json.decode(text, type=_Script)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f'{where}: {error}; a script looks like {{"rules": [{{"kind": "lost"}}]}}') from None
    return Faults(rates if script.rates is None else _rates(script.rates), script.rules)


def _rates(spec: str) -> dict[str, float]:
    return parse_rates(spec, KINDS, like="lost:5%")
