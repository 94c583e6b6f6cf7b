"""Refunds carried out: the steps between the transactions, and the completer that goes on where a process stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NamedTuple, TypeVar

from siafu.apps.support.shop.money import answers, approvals, rows
from siafu.apps.support.shop.money.books import Again, Books, End, Refused, Review, Terms, call_of
from siafu.apps.support.shop.money.payments import (
    Capabilities,
    Declined,
    NotSent,
    Outcome,
    Paid,
    Payments,
    Unclear,
)
from siafu.apps.support.shop.money.policy import RefundPolicy
from siafu.apps.support.shop.money.records import Intent, OrderMoney, RefundAsk, RefundOutcome
from siafu.errors import SiafuError, StoreError, ToolUnavailable
from siafu.pace.backoff import full_jitter
from siafu.pace.clock import Clock
from siafu.store.crash import crash_point
from siafu.store.database import Database

CALL_SHARE = 0.7  # of a lease, that looking and calling may take together
KEY_SECONDS = 23 * 3600.0  # after which a provider may have forgotten a key
ATTEMPTS = 20  # with an unclear end, before a person is asked
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
COMPLETER_SECONDS = 5.0
AT_ONCE, A_ROUND = 8, 50
SILENT, SILENT_SECONDS = 5, 10.0  # after so many calls without an answer, no refund is begun for so long
log = logging.getLogger(__name__)
T = TypeVar("T")


def _nobody(_: Intent) -> None:
    pass


class Provider(NamedTuple):
    payments: Payments
    can: Capabilities


class Refunds:
    """The refunds of a shop. `db` has the shop's tables and the money's.

    payments: None = no refund can be asked for. clock: `wall` is what the policy's windows are measured with; leases
    go by the database's clock. owner: names this process in the records. lease: seconds one attempt may take before
    another process may go on; a call gets at most 0.7 of it.

    Begin, then `aclose` when done: an attempt under way is waited for. Attributes: fenced: attempts whose result was
    not kept, as another process had gone on.
    """

    def __init__(
        self,
        db: Database,
        payments: Payments | None,
        policy: RefundPolicy,
        *,
        clock: Clock,
        owner: str,
        lease: float = 15.0,
    ) -> None:
        self._db, self._payments, self._clock = db, payments, clock
        self._lease = lease
        self._books = Books(policy, owner=owner, lease=lease)
        self._rng = Random()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._silent, self._silent_at = 0, 0.0
        self.fenced = 0

    async def refund(self, ask: RefundAsk) -> RefundOutcome:
        """Make the refund once, or say why not.

        The same key again gives the same answer. Cancelling this ends the waiting and never the refund.

        Raises: StoreError, when nothing is known; asking again with the same key is safe.
        """
        return await asyncio.shield(self._start(self._refund(ask)))

    async def state(self, tenant: str, customer: str, order_id: str) -> OrderMoney | None:
        """The money of the customer's order; None when no refund was ever asked for on it (`books.order_money` knows
        the order's total then).
        """
        row = await self._db.run(
            lambda tx: tx.row(
                """SELECT captured_minor, refunded_minor, reserved_minor FROM payment
                   WHERE tenant_id = :tenant AND owner_sub = :customer AND order_id = :order_id""",
                tenant=tenant,
                customer=customer,
                order_id=order_id,
            )
        )
        return OrderMoney(**row) if row else None

    async def run_completer(self) -> None:
        """Carry out what is left over, every few seconds, until cancelled."""
        while True:
            try:
                await self.complete()
            except SiafuError as error:
                log.error("the refunds that are left over wait: %s", error.message)
            except Exception:  # a mistake of ours in one round must not end all rounds: nobody else would go on
                log.exception("the refunds that are left over wait")
            await self._clock.sleep(COMPLETER_SECONDS * self._rng.uniform(0.5, 1.5))

    async def complete(self, told: Callable[[Intent], None] = _nobody) -> int:
        """One round of the completer: what waited too long for a person, or after one, is given up, what is due is
        carried out, and what another provider has is noted and left alone.

        told: gets each refund that was given up or that an attempt was made for, as it is after it. Returns how many
        refunds were begun to be carried on; the error that one of them ends with is logged. Raises: StoreError;
        ToolUnavailable when the provider is away.
        """
        for late in await self._db.run(approvals.expire):
            told(late)
        if self._payments is None:
            return 0
        provider = Provider(self._payments, await self._payments.capabilities(fresh=True))
        for left in await self._db.run(lambda tx: self._books.leave(tx, provider.can.name)):
            log.error("refund %s was sent to %s, which is not the provider that is there now", left.refund_id, left.psp)
        due = await self._db.run(lambda tx: self._books.due(tx, provider.can.name, A_ROUND))
        turns = asyncio.Semaphore(AT_ONCE)

        async def carry_on(found: Intent) -> None:
            async with turns:
                await self._carry_out(found, provider, told)

        attempts = (asyncio.shield(self._start(carry_on(found))) for found in due)
        await asyncio.gather(*attempts, return_exceptions=True)
        return len(due)

    async def next_due(self) -> float | None:
        """Seconds until time alone makes a refund due at this provider; None = there is none.

        Raises: StoreError; ToolUnavailable when the provider is away.
        """
        if self._payments is None:
            return None
        name = (await self._payments.capabilities()).name
        return await self._db.run(lambda tx: self._books.next_due(tx, name))

    async def resolve(self, refund_id: str, *, psp_refund_id: str | None, by: str) -> None:
        """Close a refund under review: a person found it at the provider under this id, or (None) that it was not made.

        Raises: InputError when it is not under review, the id is another refund's, or `by` asked for it.
        """
        await self._db.run(lambda tx: self._books.resolve(tx, refund_id, psp_refund_id=psp_refund_id, by=by))

    async def aclose(self) -> None:
        """Wait for the attempts under way, which end within their leases."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _refund(self, ask: RefundAsk) -> RefundOutcome:
        provider = await self._provider()
        terms = Terms(open=provider is not None and self._answers(), today=self._clock.wall())
        try:
            claimed = await self._db.run(lambda tx: self._books.claim(tx, ask, terms))
        except Refused as refused:
            return refused.refusal
        crash_point("refund_claimed")
        if claimed.intent.attempts and not claimed.intent.busy_ms:
            provider = await self._provider(fresh=True)
        if provider is not None and (claimed.first or not claimed.intent.busy_ms):
            return await self._carry_out(claimed.intent, provider)
        return answers.answer(claimed.intent)

    async def _provider(self, *, fresh: bool = False) -> Provider | None:
        """None when it is away: then no refund is begun, and what became of those that were is told all the same.
        fresh: before anything is asked or sent again, as there may be another one at its address by now.
        """
        if self._payments is None:
            return None
        try:
            return Provider(self._payments, await self._payments.capabilities(fresh=fresh))
        except ToolUnavailable as error:
            log.warning("%s", error.message)
            return None

    async def _carry_out(
        self, found: Intent, provider: Provider, told: Callable[[Intent], None] = _nobody
    ) -> RefundOutcome:
        """One attempt, if the refund is open and nobody else makes one."""
        until = self._clock.now() + CALL_SHARE * self._lease
        taken = await self._db.run(
            lambda tx: self._books.take(tx, found.refund_id, seen=found.lease_epoch, can=provider.can)
        )
        if taken is None:
            return answers.answer(await self._db.run(lambda tx: rows.intent(tx, found.refund_id)))
        crash_point("refund_dispatching")
        end = await self._attempt(provider, taken, until)
        crash_point("refund_called")
        if isinstance(end, Review):
            log.error("refund %s needs a person: %s", found.refund_id, end.why)
        try:
            kept = await self._db.run(lambda tx: self._books.settle(tx, taken, end))
            crash_point("refund_finalised")
            now = await self._db.run(lambda tx: rows.intent(tx, found.refund_id))
        except StoreError as error:  # what is stored says that a call may have been made, so it will be found out
            log.error("the end of refund %s could not be written down: %s", found.refund_id, error.message)
            return answers.lost(taken)
        self.fenced += not kept
        told(now)
        return answers.answer(now, replayed=not kept)

    async def _attempt(self, provider: Provider, taken: Intent, until: float) -> End:
        """Look first if a call may have been made before; then call, if a second one can do no harm."""
        payments, can = provider
        call, may_call = call_of(taken), True
        if taken.attempts > 1:
            if can.lookup:
                found = await payments.find(call, until - self._clock.now())
                if _spoke(found):
                    self._silent = 0
                if found is not None:
                    return found if isinstance(found, Paid) else self._unclear(taken, can, found)
            age = taken.now - (taken.first_dispatch_at or taken.now)
            may_call = can.idempotency and age < KEY_SECONDS
            if not may_call and (not can.lookup or age >= KEY_SECONDS):
                return Review("a call was made, and the provider does not say what became of it")
        left = until - self._clock.now()
        if not may_call:
            return self._unclear(taken, can, Unclear("the provider has no such refund so far"))
        if left <= 0:
            return self._unclear(taken, can, NotSent("this process was stopped for too long"))
        outcome = await payments.refund(call, left)
        if isinstance(outcome, Declined) and taken.attempts > 1 and not outcome.at_all:
            outcome = Unclear(
                f"an earlier call may have been made, and this one is refused: {outcome.code}", answered=True
            )
        self._silent, self._silent_at = 0 if _spoke(outcome) else self._silent + 1, self._clock.now()
        return outcome if isinstance(outcome, Paid | Declined) else self._unclear(taken, can, outcome)

    def _answers(self) -> bool:
        return self._silent < SILENT or self._clock.now() > self._silent_at + SILENT_SECONDS

    def _unclear(self, taken: Intent, can: Capabilities, outcome: Unclear | NotSent) -> Again | Review:
        pause = full_jitter(taken.lease_epoch, self._rng, base=FIRST_PAUSE, cap=LONGEST_PAUSE)
        if isinstance(outcome, NotSent):
            return Again(outcome.why, pause, sent=False)
        if taken.attempts >= ATTEMPTS or not (can.idempotency or can.lookup):
            return Review(outcome.why)
        return Again(outcome.why, pause)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that no caller's cancellation reaches."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a refund ended with %s: %s", type(error).__name__, error)


def _spoke(outcome: Outcome | None) -> bool:
    """Whether the provider answered, be it with an error; None = a look-up that found nothing."""
    return not isinstance(outcome, NotSent) and (not isinstance(outcome, Unclear) or outcome.answered)
