"""The money's transactions, each one call of `Database.run`: claim, take, settle. No network, no waiting.

What keeps them right under any interleaving: a key is unique, a reservation is one conditional UPDATE under a CHECK,
a lease is compare-and-set on the epoch that was seen, and only the newest epoch may settle.
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import uuid4

import msgspec

from siafu.apps.support.shop import brakes
from siafu.apps.support.shop.money import answers, approvals, rows
from siafu.apps.support.shop.money.keys import asked_print, effect_print
from siafu.apps.support.shop.money.payments import Call, Capabilities, Declined, Paid
from siafu.apps.support.shop.money.policy import History, RefundPolicy, questions, refused
from siafu.apps.support.shop.money.records import TOOL, WITHOUT_EFFECT, Intent, OrderMoney, RefundAsk
from siafu.apps.support.shop.orders import Order
from siafu.apps.support.shop.refusal import Refusal
from siafu.border.canonical import dumps
from siafu.errors import Conflict, InputError
from siafu.store.database import Transaction
from siafu.store.effect_people import checked_person

_DAY = 86_400
_NOTHING = ", ".join(f"'{state}'" for state in WITHOUT_EFFECT)
# What is carried on at the provider :psp, and when its turn is.
_GOES_ON = "WHERE state IN ('reserved', 'dispatching', 'unknown') AND (attempts = 0 OR psp = :psp)"
_DUE_AT = f"coalesce({rows.UNTIL}, 0.0)"


class Refused(Exception):
    """Ends a transaction that must leave nothing behind. `refusal`: the answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


class Again(msgspec.Struct, frozen=True):
    """Not known yet: look or try again in `seconds`. sent: False = this attempt cannot have reached the provider."""

    why: str
    seconds: float
    sent: bool = True


class Review(msgspec.Struct, frozen=True):
    """Only a person can find out."""

    why: str


End: TypeAlias = Paid | Declined | Again | Review


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How things stand when a refund is asked for. open: the provider answers these days; else none is begun.

    today: the shop's time, seconds since 1970.
    """

    open: bool
    today: float


class Claimed(msgspec.Struct, frozen=True):
    """first: this call made the intent; else it was there, and is carried on only when it is due."""

    intent: Intent
    first: bool


def payment_of(order: Order) -> str:
    return f"pay_{order.order_id}"


def call_of(found: Intent) -> Call:
    """The call that carries out a refund: the same at every attempt, as providers refuse a key with another body."""
    return Call(
        key=found.psp_key,
        payment=found.psp_payment_ref,
        amount=found.amount_minor,
        currency=found.currency,
        metadata={"refund_id": found.refund_id},
    )


def order_money(tx: Transaction, tenant: str, order: Order) -> OrderMoney:
    """The money of an order, also when no refund was ever asked for."""
    if order.status == "refunded":  # before the shop kept books
        return OrderMoney(captured_minor=order.total_minor, refunded_minor=order.total_minor)
    captured = 0 if order.status == "cancelled" else order.total_minor
    return rows.money(tx, tenant, payment_of(order)) or OrderMoney(captured_minor=captured)


class Books:
    """policy: whose rules. owner: this process, for people. lease: seconds that one attempt may take; a process that is
    silent for longer has lost it.
    """

    def __init__(self, policy: RefundPolicy, *, owner: str, lease: float) -> None:
        self._policy, self._owner, self._lease = policy, owner, lease

    def claim(self, tx: Transaction, ask: RefundAsk, terms: Terms) -> Claimed:
        """The one intent of this key, made now with its money reserved, or found.

        Raises: Refused, which leaves nothing stored, so that the key is free; also when the key means another refund.
        """
        key = ask.key or self._open_key(tx, ask)
        there = rows.by_key(tx, ask.tenant, key)
        if not there:
            made = self._make(tx, ask, key, terms)
            if made is not None:
                return Claimed(made, first=True)
            there = rows.by_key(tx, ask.tenant, key)  # somebody else was quicker
        found = there[0]
        if approvals.lapse(tx, found):
            found = rows.intent(tx, found.refund_id)
        same_order = found.payment_id == payment_of(ask.order) and found.customer == ask.customer
        amount = found.amount_minor if ask.amount_minor is None else ask.amount_minor
        meant = effect_print(ask.tenant, payment_of(ask.order), amount, ask.order.currency)
        if not same_order or meant != found.fingerprint:
            raise Refused(answers.another_meaning(found, same_order=same_order))
        return Claimed(found, first=False)

    def take(self, tx: Transaction, refund_id: str, *, seen: int, can: Capabilities) -> Intent | None:
        """The refund under a new lease, if its last epoch is still `seen`: from here on a call may have been made to
        the provider that `can` tells of.

        None: somebody else has it, it is over or just given up, another provider has it, or the tool is switched off.
        """
        found = rows.intent(tx, refund_id, lock=True)
        if found.lease_epoch != seen or found.state not in ("reserved", "dispatching", "unknown"):
            return None
        if found.lease_until is not None and found.lease_until >= found.now:
            return None
        if found.attempts and found.psp != can.name:
            self._leave(tx, found, can.name)
            return None
        if approvals.lapse(tx, found):
            return None
        if brakes.stopped(tx, TOOL, found.tenant_id):
            self._postpone(tx, found)
            return None
        try:
            tx.change(
                """UPDATE refund_intent SET state = 'dispatching', lease_owner = :owner, lease_epoch = lease_epoch + 1,
                   lease_until = {now} + :lease, attempts = attempts + 1, next_attempt_at = NULL, psp = :psp,
                   serialise = :serialise, first_dispatch_at = coalesce(first_dispatch_at, {now}), updated_at = {now}
                   WHERE refund_id = :id""",
                owner=self._owner, lease=self._lease, id=refund_id, psp=can.name, serialise=not can.idempotency,
            )  # fmt: skip
        except Conflict:  # one_in_flight: another refund of this payment is not settled yet
            self._postpone(tx, found)
            return None
        leased = rows.intent(tx, refund_id)
        if not approvals.use(tx, leased):
            self._review(tx, leased, "the arguments are not those that were approved")
            return None
        rows.note(tx, leased, "dispatching", owner=self._owner, attempt=leased.attempts, provider=can.name)
        return leased

    def settle(self, tx: Transaction, leased: Intent, end: End) -> bool:
        """Write down how an attempt ended. False: fenced, as a newer lease was taken; nothing but that is noted."""
        found = rows.intent(tx, leased.refund_id, lock=True)
        if found.lease_epoch != leased.lease_epoch or found.state != "dispatching":
            rows.note(tx, leased, "fenced", end=type(end).__name__, newest=found.lease_epoch)
            return False
        match end:
            case Paid():
                if not self._paid(tx, found, end.id):
                    self._review(tx, found, f"the provider's refund {end.id} belongs to another one here")
            case Declined():
                rows.end(tx, found, "declined", answers.declined(end.code), code=end.code)
            case Again():
                self._again(tx, found, end)
            case Review():
                self._review(tx, found, end.why)
        return True

    def due(self, tx: Transaction, psp: str, most: int) -> list[Intent]:
        """Refunds for this provider that nobody is carrying out and whose time has come, oldest first."""
        found = tx.rows(
            f"{rows.INTENT} {_GOES_ON} AND {_DUE_AT} < {{now}}"
            " ORDER BY created_at LIMIT :most {for_update} {skip_locked}",
            psp=psp,
            most=most,
        )
        return [Intent(**row) for row in found]

    def next_due(self, tx: Transaction, psp: str) -> float | None:
        """Seconds until the first of them is due, 0.0 = now; None = there is none."""
        first = f"SELECT min({_DUE_AT}) - {{now}} AS seconds FROM refund_intent {_GOES_ON}"  # noqa: S608
        row = tx.row(first, psp=psp)
        return None if row is None or row["seconds"] is None else max(0.0, row["seconds"])

    def leave(self, tx: Transaction, psp: str) -> list[Intent]:
        """Note for people which refunds with an open end were sent to another provider than this one, which is the only
        one that can tell or may be asked again. Returns those that were not noted so before.
        """
        found = tx.rows(
            rows.INTENT
            + """WHERE state IN ('dispatching', 'unknown') AND psp <> :psp
                AND (lease_until IS NULL OR lease_until < {now}) ORDER BY created_at {for_update} {skip_locked}""",
            psp=psp,
        )
        return [intent for row in found if self._leave(tx, intent := Intent(**row), psp)]

    def resolve(self, tx: Transaction, refund_id: str, *, psp_refund_id: str | None, by: str) -> None:
        """Close a refund under review, or left to a provider that is not there, as a person found it: made under this
        id at the provider, or (None) not made.

        Raises: InputError when it is neither, the id is another refund's, or `by` asked for it.
        """
        row = tx.row(rows.INTENT + "WHERE refund_id = :id {for_update}", id=refund_id)
        found = Intent(**row) if row else None
        if found is None or not (found.state == "manual_review" or rows.left(tx, found)):
            raise InputError(f"no refund {refund_id[:60]!r} is under review")
        by = checked_person(by, found.customer, found.actor)
        rows.note(tx, found, "resolved", by=by, psp_refund_id=psp_refund_id)
        if psp_refund_id is None:
            rows.end(tx, found, "declined", answers.given_up("not_made"), by=by)
        elif not self._paid(tx, found, psp_refund_id):
            raise InputError(f"the provider's refund {psp_refund_id[:60]!r} belongs to another one here")

    def _open_key(self, tx: Transaction, ask: RefundAsk) -> str:
        """The key of a bare client: that of its last such request while it is open, which it is for a day after it was
        paid and never after it came to nothing; else the next one's.
        """
        asked = asked_print(ask.customer, ask.order.order_id, ask.amount_minor)
        found = tx.rows(
            rows.INTENT
            + """WHERE tenant_id = :tenant AND payment_id = :payment AND asked = :asked
                ORDER BY created_at DESC, idem_key DESC""",
            tenant=ask.tenant,
            payment=payment_of(ask.order),
            asked=asked,
        )
        last = Intent(**found[0]) if found else None
        closed = last and (
            last.state in WITHOUT_EFFECT or (last.state == "succeeded" and last.created_at < last.now - _DAY)
        )
        return last.idem_key if last and not closed else f"open:{asked}:{len(found):06}"

    def _make(self, tx: Transaction, ask: RefundAsk, key: str, terms: Terms) -> Intent | None:
        """A new intent with its money reserved; None when the key was taken meanwhile."""
        order, payment = ask.order, payment_of(ask.order)
        money = order_money(tx, ask.tenant, order)
        amount = money.refundable_minor if ask.amount_minor is None else ask.amount_minor
        refusal = (
            (None if terms.open else answers.UNAVAILABLE)
            or brakes.stopped(tx, TOOL, ask.tenant)
            or refused(self._policy, ask, money, amount, terms.today)
        )
        if refusal is None and not 0 < amount <= money.refundable_minor:
            refusal = answers.does_not_fit(money, order.currency, ask.expected_refunded_minor)
        if refusal is not None:
            if rows.by_key(tx, ask.tenant, key):
                return None  # it may be this very refund that stands in the way
            raise Refused(refusal)
        refund_id = str(uuid4())
        who = {"tenant": ask.tenant, "customer": ask.customer, "payment": payment, "order_id": order.order_id}
        money_of = {"currency": order.currency, "ref": f"{ask.tenant}:{payment}" if ask.tenant else payment}
        tx.change(_INSERT_PAYMENT, **who, **money_of, captured=order.total_minor)
        asking = questions(self._policy, ask, amount, self._history(tx, ask, amount))
        if not tx.change(
            _INSERT_INTENT, **who, **money_of, id=refund_id, key=key, asked="" if ask.key else key.split(":")[1],
            fingerprint=effect_print(ask.tenant, payment, amount, order.currency), amount=amount, actor=ask.actor,
            run=ask.run, task=ask.task, reason=ask.reason, state="pending_approval" if asking else "reserved",
            psp_key=f"siafu-rf-{refund_id}", grace=self._lease,
        ):  # fmt: skip
            return None
        self._reserve(tx, ask, amount)
        made = rows.intent(tx, refund_id)
        rows.note(tx, made, "claimed", key=key, amount=amount, actor=ask.actor, run=ask.run, task=ask.task, ask=asking)
        if asking:
            approvals.ask_a_person(tx, made, asking, self._policy.approval_hours)
        return rows.intent(tx, refund_id)

    def _reserve(self, tx: Transaction, ask: RefundAsk, amount: int) -> None:
        """Take the amount from what can be refunded, unless that changed since it was read."""
        of = {"tenant": ask.tenant, "payment": payment_of(ask.order)}
        expected = ask.expected_refunded_minor
        reserved = tx.change(
            """UPDATE payment SET reserved_minor = reserved_minor + :amount
               WHERE tenant_id = :tenant AND payment_id = :payment AND owner_sub = :customer AND currency = :currency
               AND captured_minor - refunded_minor - reserved_minor >= :amount
               AND :expected IN (-1, refunded_minor + reserved_minor)""",
            **of,
            customer=ask.customer,
            currency=ask.order.currency,
            amount=amount,
            expected=-1 if expected is None else expected,
        )
        if not reserved:
            money = order_money(tx, ask.tenant, ask.order)
            raise Refused(answers.does_not_fit(money, ask.order.currency, expected))
        limit = brakes.take(tx, TOOL, ask.tenant, {"calls": 1, ask.order.currency: amount})
        if limit is not None:
            raise Refused(limit)

    def _history(self, tx: Transaction, ask: RefundAsk, amount: int) -> History:
        """What the customer had refunded before, with the door closed behind us until this transaction ends."""
        if not self._policy.counts:
            return History()
        who = {"tenant": ask.tenant, "customer": ask.customer}
        tx.change("INSERT INTO refund_gate VALUES (:tenant, :customer) ON CONFLICT DO NOTHING", **who)
        tx.row("SELECT 1 FROM refund_gate WHERE tenant_id = :tenant AND customer = :customer {for_update}", **who)
        found = tx.rows(
            f"""SELECT count(CASE WHEN payment_id = :payment THEN 1 END) AS on_order,
                   ({{now}} - max(CASE WHEN payment_id = :payment AND amount_minor = :amount THEN created_at END))
                       / 3600 AS equal_hours,
                   count(CASE WHEN created_at > {{now}} - :day THEN 1 END) AS today
               FROM refund_intent WHERE tenant_id = :tenant AND customer = :customer
               AND state NOT IN ({_NOTHING})""",  # noqa: S608 - the states are ours
            **who,
            payment=payment_of(ask.order), amount=amount, day=_DAY,
        )  # fmt: skip
        return History(**found[0])

    def _paid(self, tx: Transaction, found: Intent, psp_refund_id: str) -> bool:
        """The money was moved. False, and nothing is changed, when the provider's id is another refund's."""
        of = {"tenant": found.tenant_id, "payment": found.payment_id}
        (now,) = tx.rows(
            """SELECT captured_minor, refunded_minor, reserved_minor FROM payment
               WHERE tenant_id = :tenant AND payment_id = :payment {for_update}""",
            **of,
        )
        after = OrderMoney(
            captured_minor=now["captured_minor"],
            refunded_minor=now["refunded_minor"] + found.amount_minor,
            reserved_minor=now["reserved_minor"] - found.amount_minor,
        )
        try:
            tx.change(
                """UPDATE refund_intent SET state = 'succeeded', psp_refund_id = :paid, response = :response,
                   lease_until = NULL, next_attempt_at = NULL, updated_at = {now} WHERE refund_id = :id""",
                paid=psp_refund_id,
                response=dumps(answers.done(found, after)).decode(),
                id=found.refund_id,
            )
        except Conflict:
            return False
        tx.change(
            """UPDATE payment SET refunded_minor = :refunded, reserved_minor = :reserved
               WHERE tenant_id = :tenant AND payment_id = :payment""",
            **of,
            refunded=after.refunded_minor,
            reserved=after.reserved_minor,
        )
        rows.note(tx, found, "succeeded", psp_refund_id=psp_refund_id)
        return True

    def _again(self, tx: Transaction, found: Intent, end: Again) -> None:
        """The money stays reserved. An attempt that was not sent does not count, but those before it do."""
        attempts = found.attempts if end.sent else found.attempts - 1
        tx.change(
            """UPDATE refund_intent SET state = :state, attempts = :attempts, lease_until = NULL,
               first_dispatch_at = CASE WHEN :attempts = 0 THEN NULL ELSE first_dispatch_at END,
               next_attempt_at = {now} + :pause, updated_at = {now} WHERE refund_id = :id""",
            state="unknown" if attempts else "reserved",
            attempts=attempts,
            pause=end.seconds,
            id=found.refund_id,
        )
        rows.note(tx, found, "unknown" if attempts else "not_sent", why=end.why)

    def _leave(self, tx: Transaction, found: Intent, present: str) -> bool:
        """False when that is noted already. A call whose lease is over may still end, and is fenced then."""
        if rows.left(tx, found):
            return False
        tx.change(
            """UPDATE refund_intent SET state = 'unknown', lease_until = NULL, updated_at = {now}
               WHERE refund_id = :id""",
            id=found.refund_id,
        )
        rows.note(tx, found, rows.LEFT, provider=found.psp, present=present)
        return True

    def _postpone(self, tx: Transaction, found: Intent) -> None:
        """Let others go first, so that what cannot be carried out now does not fill the completer's rounds."""
        tx.change(
            "UPDATE refund_intent SET next_attempt_at = {now} + :pause WHERE refund_id = :id",
            pause=self._lease, id=found.refund_id,
        )  # fmt: skip

    def _review(self, tx: Transaction, found: Intent, why: str) -> None:
        """Left to a person; the money stays reserved."""
        tx.change(
            """UPDATE refund_intent SET state = 'manual_review', lease_until = NULL, next_attempt_at = NULL,
               updated_at = {now} WHERE refund_id = :id""",
            id=found.refund_id,
        )
        rows.note(tx, found, "manual_review", why=why)


_INSERT_PAYMENT = """INSERT INTO payment (tenant_id, payment_id, order_id, owner_sub, psp_payment_ref, currency,
        captured_minor)
    VALUES (:tenant, :payment, :order_id, :customer, :ref, :currency, :captured) ON CONFLICT DO NOTHING"""
# For the length of a lease it is left to the call that makes it; then the completer may take it.
_INSERT_INTENT = """INSERT INTO refund_intent (refund_id, tenant_id, idem_key, asked, fingerprint, payment_id, order_id,
        psp_payment_ref, amount_minor, currency, customer, actor, run, task, reason, state, psp, psp_key, serialise,
        next_attempt_at, created_at, updated_at)
    VALUES (:id, :tenant, :key, :asked, :fingerprint, :payment, :order_id, :ref, :amount, :currency, :customer, :actor,
        :run, :task, :reason, :state, '', :psp_key, 0, {now} + :grace, {now}, {now})
    ON CONFLICT (tenant_id, idem_key) DO NOTHING"""
