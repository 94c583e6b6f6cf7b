"""Budgets of a day beside those of runs: of the agent's role, and of the upstream's key that is asked with. A call must
fit into them too.
"""

from __future__ import annotations

import msgspec

from siafu.errors import Overloaded, UnpricedModel
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import End, Endpoint, Reply
from siafu.gateway.meter import Books, max_output, was_free
from siafu.gateway.wire import encode
from siafu.observe.calls import CallContext, Heat
from siafu.pace.clock import Clock

DAY = 86_400.0  # seconds, of UTC as Unix counts it
MOMENT = 0.25  # seconds until a call under way may have given something back


class DayBudgeted:
    """The wrapper that reserves in the budgets of the agent's role and of the key, and settles there what the call was
    charged. key: as `siafu upstream-keys` names it.
    """

    def __init__(self, inner: Endpoint, books: Books, clock: Clock, key: str = "") -> None:
        self._inner = inner
        self._books = books
        self._clock = clock
        self._key = key

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        """Raises, before anything is sent: BudgetReached, UnpricedModel; Overloaded for a second request that would
        have to wait.
        """
        books, accounts = self._books, self._books.accounts
        of_role, of_key = accounts.roles.get(context.role), accounts.keys.get(self._key)
        path = tuple(share.today() for share in (of_role, of_key) if share is not None)
        if not path:
            return await self._inner.open(request, context)
        bounded = request
        if max_output(request) is None:
            bounded = msgspec.structs.replace(request, max_tokens=books.max_output)
        amount = self._most(bounded, request.model)
        if amount is None:
            if accounts.of(context.run).allow_unpriced:
                return await self._inner.open(request, context)
            whose = f"the key {self._key}" if of_role is None else f"the role {context.role}"
            raise UnpricedModel(
                f"{whose} has a budget, and there is no price for exactly {request.model!r}: nothing was sent; set its "
                "price, or allow unpriced models",
                attempts=0,
            )
        if context.heat is not None and context.heat.spare and not accounts.room_in(path, amount):
            raise Overloaded("there is no room in a budget for a second request", attempts=0)
        hold = await accounts.reserve_in(path, amount)
        heat = Heat() if context.heat is None else context.heat  # tells whether it was sent
        heat.left_at = None  # an earlier attempt of this request may have been
        try:
            reply = await self._inner.open(bounded, msgspec.structs.replace(context, heat=heat))
        except BaseException as error:
            accounts.settle(hold, amount if _may_cost(heat, error) else 0)
            raise
        reply.on_end(lambda end: accounts.settle(hold, _charged(end, amount)))
        return reply

    def lacks(self, request: ChatRequest, model: str) -> float:
        """Seconds until the key's budget may have room for `request` to `model`, as far as is known: until midnight
        when what is left is too little, a moment when calls under way hold it. It may be wrong by what others spend,
        and by what the request's size changes on its way.
        """
        share = self._books.accounts.keys.get(self._key)
        amount = None if share is None else self._most(request, model)
        if share is None or amount is None:
            return 0.0
        account = share.today()
        used, limit = account.used() or (0, amount)
        short = used + amount - limit
        if short <= 0:
            return 0.0
        return MOMENT if short <= account.reserved else DAY - self._clock.wall() % DAY

    def _most(self, request: ChatRequest, model: str) -> int | None:
        """The largest possible cost of a request in pico-dollars; None = it has no price."""
        rates = self._books.prices.rates(model, self._clock.wall())
        output = max_output(request) or self._books.max_output
        return None if rates is None else rates.ceiling(len(encode(request)), output)


def _may_cost(heat: Heat, error: BaseException) -> bool:
    """Whether a request that failed so was sent, and is not known to be free; as the ledger has it."""
    return heat.left_at is not None and not was_free(error)


def _charged(end: End, reserved: int) -> int:
    """As the ledger does: an answer whose usage is known its price, what cannot have cost anything nothing."""
    if end.answer is not None:
        known = end.answer.usage is not None and end.answer.usd_pico is not None
        return end.answer.usd_pico or 0 if known else reserved
    return 0 if end.first_token is None and was_free(end.error) else reserved
