"""Budgets of roles beside those of runs: a call of an agent whose role has one must fit into that too."""

from __future__ import annotations

import asyncio

import msgspec

from siafu.errors import DeadlineReached, ModelError, UnpricedModel
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import End, Endpoint, Reply
from siafu.gateway.meter import Books, max_output, was_free
from siafu.gateway.wire import encode
from siafu.observe.calls import CallContext
from siafu.pace.clock import Clock

_SENT = (ModelError, DeadlineReached, asyncio.CancelledError)  # what a request that was sent may end with


class RoleBudgeted:
    """The wrapper that reserves in the budget of the agent's role, and settles there what the call was charged."""

    def __init__(self, inner: Endpoint, books: Books, clock: Clock) -> None:
        self._inner = inner
        self._books = books
        self._clock = clock

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        """Raises, before anything is sent: BudgetReached, UnpricedModel."""
        books, accounts = self._books, self._books.accounts
        today = accounts.roles.get(context.role)
        if today is None:
            return await self._inner.open(request, context)
        rates = books.prices.rates(request.model, self._clock.wall())
        if rates is None:
            if accounts.of(context.run).allow_unpriced:
                return await self._inner.open(request, context)
            raise UnpricedModel(
                f"the role {context.role} has a budget, and there is no price for exactly {request.model!r}: nothing "
                "was sent; set its price, or allow unpriced models",
                attempts=0,
            )
        most = max_output(request)
        if most is None:
            most = books.max_output
            request = msgspec.structs.replace(request, max_tokens=most)
        amount = rates.ceiling(len(encode(request)), most)
        hold = await accounts.reserve_in((today(),), amount)
        try:
            reply = await self._inner.open(request, context)
        except BaseException as error:
            accounts.settle(hold, amount if _may_cost(error) else 0)
            raise
        reply.on_end(lambda end: accounts.settle(hold, _charged(end, amount)))
        return reply


def _may_cost(error: BaseException) -> bool:
    """Whether a call that failed so may have been sent, and is not known to be free."""
    unsent = isinstance(error, ModelError) and not error.attempts
    return isinstance(error, _SENT) and not unsent and not was_free(error)


def _charged(end: End, reserved: int) -> int:
    """As the ledger does: an answer whose usage is known its price, what cannot have cost anything nothing."""
    if end.answer is not None:
        known = end.answer.usage is not None and end.answer.usd_pico is not None
        return end.answer.usd_pico or 0 if known else reserved
    return 0 if end.first_token is None and was_free(end.error) else reserved
