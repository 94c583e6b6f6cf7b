"""The mistakes that pay twice or lose money, each put into the real code: `MUTANTS[name](monkeypatch.setattr)`.

Two places keep effects single: the shop's money layer (`money: ...`) and the contract around any tool (`tool: ...`).
`house/test_mutants.py` says which check finds which.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from siafu.apps.support import grants
from siafu.apps.support.shop.money import answers, approvals, books, rows
from siafu.apps.support.shop.money import refunds as steps
from siafu.apps.support.shop.money.books import Again, Books, End, Refused, Review, order_money
from siafu.apps.support.shop.money.payments import Call, Capabilities, Paid
from siafu.apps.support.shop.money.records import Intent, RefundAsk
from siafu.apps.support.shop.money.refunds import Refunds
from siafu.apps.support.shop.refusal import Refusal
from siafu.store import effects as store
from siafu.store.database import Transaction
from siafu.store.effect_records import Dispatch, EffectAsk, Verdict
from siafu.store.effects import EffectStore
from siafu.tools import effect_rules, effects
from siafu.tools.effect_rules import EffectRule

Patch = Callable[[Any, str, Any], None]


def apply(name: str) -> None:
    """For the rest of this process."""
    MUTANTS[name](setattr)


def _money_without_epochs(patch: Patch) -> None:
    settle = Books.settle

    def mutant(self: Books, tx: Transaction, leased: Intent, end: End) -> bool:
        newest = rows.intent(tx, leased.refund_id).lease_epoch
        return settle(self, tx, msgspec.structs.replace(leased, lease_epoch=newest), end)

    patch(Books, "settle", mutant)


def _money_released_on_timeout(patch: Patch) -> None:
    def mutant(self: Books, tx: Transaction, found: Intent, end: Again) -> None:
        rows.end(tx, found, "declined", answers.declined("timeout"))

    patch(Books, "_again", mutant)


def _money_key_an_attempt(patch: Patch) -> None:
    call_of = books.call_of

    def mutant(found: Intent) -> Call:
        return msgspec.structs.replace(call_of(found), key=f"{found.psp_key}-{found.lease_epoch}")

    patch(steps, "call_of", mutant)


def _money_in_floats(patch: Patch) -> None:
    reserve = Books._reserve

    def mutant(self: Books, tx: Transaction, ask: RefundAsk, amount: int) -> None:
        money = order_money(tx, ask.tenant, ask.order)
        if money.committed_minor / 100 + amount / 100 > money.captured_minor / 100:
            raise Refused(answers.does_not_fit(money, ask.order.currency, None))
        reserve(self, tx, ask, amount)

    patch(Books, "_reserve", mutant)


def _amounts_read_as_floats(patch: Patch) -> None:
    patch(grants, "Decimal", float)


def _money_acknowledged_first(patch: Patch) -> None:
    take = Books.take

    def mutant(self: Books, tx: Transaction, refund_id: str, **seen: Any) -> Intent | Refusal | None:
        taken = take(self, tx, refund_id, **seen)
        if isinstance(taken, Intent):
            self.settle(tx, taken, Paid(id=refund_id, payment="", amount=0, currency="", reference=""))
        return taken

    patch(Books, "take", mutant)


def _money_retried_blindly(patch: Patch) -> None:
    attempt = Refunds._attempt

    async def mutant(self: Refunds, provider: Any, taken: Intent, until: float) -> End:
        end = await attempt(self, provider, taken, until)
        if isinstance(end, Again | Review):
            end = await attempt(self, provider, msgspec.structs.replace(taken, attempts=1), until)
        return end

    patch(Refunds, "_attempt", mutant)


def _money_at_any_provider(patch: Patch) -> None:
    take = Books.take

    def mutant(self: Books, tx: Transaction, refund_id: str, *, seen: int, can: Capabilities) -> Intent | None:
        known_as = rows.intent(tx, refund_id).psp or can.name
        return take(self, tx, refund_id, seen=seen, can=msgspec.structs.replace(can, name=known_as))

    patch(Books, "take", mutant)


def _money_by_an_approval_that_ended(patch: Patch) -> None:
    patch(approvals, "lapse", lambda tx, found: False)


def _tool_without_epochs(patch: Patch) -> None:
    finish = store._finish

    def mutant(tx: Transaction, effect: str, epoch: int, *rest: Any) -> Verdict:
        row = store.load(tx, "id = :id", id=effect)
        return finish(tx, effect, row.epoch if row else epoch, *rest)

    patch(store, "_finish", mutant)


def _tool_released_on_timeout(patch: Patch) -> None:
    finish = store._finish

    def mutant(tx: Transaction, effect: str, epoch: int, ending: Any, result: Any) -> Verdict:
        unclear = ending in ("unknown", "manual_review")
        return finish(tx, effect, epoch, "refused" if unclear else ending, '{"text":""}' if unclear else result)

    patch(store, "_finish", mutant)


def _tool_key_an_attempt(patch: Patch) -> None:
    patch(effects, "effect_key", lambda *_: f"ef:{uuid.uuid4()}")


def _tool_amounts_in_floats(patch: Patch) -> None:
    def mutant(arguments: Any, name: str) -> Any:
        value = arguments.get(name)
        return int(value) if isinstance(value, int | float) and value >= 0 else None

    patch(effects, "amount", mutant)
    patch(effect_rules, "amount", mutant)


def _tool_acknowledged_first(patch: Patch) -> None:
    claim = EffectStore.claim

    async def mutant(self: EffectStore, ask: EffectAsk, seconds: float | None = None) -> Verdict:
        verdict = await claim(self, ask, seconds)
        if isinstance(verdict, Dispatch):
            await self.finish(verdict.effect, verdict.epoch, "succeeded", '{"text":"done"}')
        return verdict

    patch(EffectStore, "claim", mutant)


def _tool_retried_blindly(patch: Patch) -> None:
    patch(EffectRule, "repeats", True)


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "money: no epoch check": _money_without_epochs,
    "money: release of the reservation on timeout": _money_released_on_timeout,
    "money: a key per attempt": _money_key_an_attempt,
    "money: floats": _money_in_floats,
    "money: floats in what customers write": _amounts_read_as_floats,
    "money: acknowledged before it runs": _money_acknowledged_first,
    "money: retry on any exception": _money_retried_blindly,
    "money: sent again to another provider": _money_at_any_provider,
    "money: by an approval that has ended": _money_by_an_approval_that_ended,
    "tool: no epoch check": _tool_without_epochs,
    "tool: release on timeout": _tool_released_on_timeout,
    "tool: a key per attempt": _tool_key_an_attempt,
    "tool: floats": _tool_amounts_in_floats,
    "tool: acknowledged before it runs": _tool_acknowledged_first,
    "tool: retry on any exception": _tool_retried_blindly,
}
