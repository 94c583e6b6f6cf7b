"""Money: one ledger line per physical attempt, opened before it is sent and settled when it has ended.

What an attempt is charged: an answer with usage, its price; a refusal or an error status, nothing; whatever was sent
and then cancelled, cut, timed out or answered without usage, its reservation, as nobody knows better.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Literal

import msgspec

from siafu.errors import (
    AccessRefused,
    CallTimeout,
    DeadlineReached,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    SiafuError,
    UnpricedModel,
    Unreachable,
)
from siafu.gateway.accounts import Accounts, Hold
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.endpoint import End, Endpoint, PlainReply, Reply, ToldReply
from siafu.gateway.pricing import Prices, Rates
from siafu.gateway.wire import encode
from siafu.observe.calls import CallContext
from siafu.observe.events import AttemptEnded, Observer
from siafu.pace.clock import Clock
from siafu.store.records import DOUBTFUL, HEDGE_LOST, AttemptOpened, AttemptSettled, Ledger

DEFAULT_MAX_OUTPUT = 4096
_OUTPUT_LIMITS = ("max_completion_tokens", "max_output_tokens")
_REFUSALS = (RateLimited, RequestRefused, AccessRefused, QuotaExhausted)
_NOTHING = Usage()
_Outcome = Literal["ok", "refused", "failed", "abandoned"]


class Books(msgspec.Struct, kw_only=True):
    """Where money is written down. `prices` may be replaced: an attempt keeps those under which it was reserved.
    `max_output`: tokens of output set for calls under a budget that name no limit."""

    prices: Prices
    ledger: Ledger
    accounts: Accounts
    max_output: int = DEFAULT_MAX_OUTPUT


class _Attempt:
    """One physical attempt between its opening and its one settlement."""

    __slots__ = ("_metered", "began", "context", "hold", "id", "model", "prices", "rates", "reserved", "sent")

    hold: Hold  # once it is reserved, before the line is opened

    def __init__(self, metered: Metered, id: str, context: CallContext, model: str, rates: Rates | None) -> None:
        self._metered = metered
        self.id = id
        self.context = context
        self.model = model
        self.prices = metered.books.prices
        self.rates = rates
        self.reserved: int | None = None
        self.sent = False
        self.began = metered.clock.now()

    def priced(self, answer: ChatAnswer) -> ChatAnswer:
        """The answer with its cost and the number of the attempt."""
        rates = self._rates_of(answer.model)
        cost = None if rates is None or answer.usage is None else rates.cost(answer.usage)
        return msgspec.structs.replace(answer, usd_pico=cost, attempts=self.context.attempts + 1)

    def _rates_of(self, served: str) -> Rates | None:
        """The rates of the model that answered, else those of the model that was asked."""
        if not served or served == self.model:
            return self.rates
        return self.prices.rates(served, self._metered.clock.wall()) or self.rates

    def answered(self, answer: ChatAnswer, first_token: float | None = None) -> None:
        """Settle an attempt that gave a (priced) answer."""
        usage = answer.usage
        rates = self._rates_of(answer.model)
        known = usage is not None
        usage = usage or _NOTHING
        saved = 0 if rates is None or answer.usd_pico is None else rates.saved(usage)
        self._settle(
            AttemptSettled(
                attempt=self.id,
                outcome="ok",
                settled_at=self._metered.clock.wall(),
                status=200,
                code=DOUBTFUL if usage.doubtful else "",
                served_model=answer.model,
                input_tokens=usage.input,
                cached_tokens=usage.cached,
                cache_write_tokens=usage.cache_write,
                output_tokens=usage.output,
                reasoning_tokens=usage.reasoning,
                usage_known=known,
                usd_pico=answer.usd_pico if known else self.reserved,
                saved_pico=saved,
                price_source="" if rates is None else rates.source,
                price_date="" if rates is None else rates.date,
                seconds=self._metered.clock.now() - self.began,
                first_token=first_token,
            )
        )

    def ended(self, end: End) -> None:
        """Settle an attempt that ended in any way."""
        if end.answer is not None:
            self.answered(self.priced(end.answer), end.first_token)
            return
        free = not self.sent or (end.first_token is None and was_free(end.error))
        rates = self.rates
        self._settle(
            AttemptSettled(
                attempt=self.id,
                outcome=_outcome(end),
                settled_at=self._metered.clock.wall(),
                status=getattr(end.error, "status", None),
                code=HEDGE_LOST if self._lost(end) else _code(end.error),
                usage_known=free,
                usd_pico=0 if free else self.reserved,
                price_source="" if rates is None else rates.source,
                price_date="" if rates is None else rates.date,
                seconds=self._metered.clock.now() - self.began,
                first_token=end.first_token,
            )
        )

    def _lost(self, end: End) -> bool:
        """Whether it was given up, as another request for the same call was quicker."""
        given_up = end.outcome == "abandoned" or isinstance(end.error, asyncio.CancelledError)
        return given_up and self.context.heat is not None and self.context.heat.lost

    def _settle(self, line: AttemptSettled) -> None:
        """Give the reservation back, charge, write the line, tell the observer."""
        accounts, context = self._metered.books.accounts, self.context
        account = accounts.of(context.run)
        if line.code == HEDGE_LOST:
            account.hedged += line.usd_pico or 0
        account.unpriced += self.rates is None
        account.unknown += not line.usage_known
        accounts.settle(self.hold, line.usd_pico or 0)
        self._metered.books.ledger.settle(line)
        self._metered.observer(
            AttemptEnded(
                run=context.run,
                task=context.task,
                role=context.role,
                model=line.served_model or self.model,
                upstream=self._metered.upstream,
                key=self._metered.key,
                bucket=context.bucket,
                outcome=line.outcome,
                code=line.code,
                status=line.status,
                seconds=line.seconds,
                input_tokens=line.input_tokens,
                cached_tokens=line.cached_tokens,
                output_tokens=line.output_tokens,
                usd_pico=line.usd_pico,
                saved_pico=line.saved_pico,
            )
        )


class Metered:
    """The wrapper that reserves, writes the ledger and prices answers. key: of the upstream, as the ledger names it."""

    def __init__(
        self, inner: Endpoint, books: Books, *, clock: Clock, upstream: str, observer: Observer, key: str = ""
    ) -> None:
        self.books = books
        self.clock = clock
        self.upstream = upstream
        self.key = key
        self.observer = observer
        self._inner = inner
        self._prefix = books.accounts.owner + uuid.uuid4().hex
        self._count = 0

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        """Reserve, open the ledger line, send.

        Raises, before anything is sent: UnpricedModel, BudgetReached, ItemBudgetReached.
        """
        books = self.books
        rates = books.prices.rates(request.model, self.clock.wall())
        request = self._bounded(request, rates, context.run)
        self._count += 1
        attempt = _Attempt(self, f"{self._prefix}-{self._count}", context, request.model, rates)
        output = max_output(request)
        if rates is not None and output is not None:
            amount = rates.ceiling(len(encode(request)), output)
            attempt.hold = await books.accounts.reserve(context.run, amount, task=context.task, agent=context.agent)
            attempt.reserved = amount
        else:
            attempt.hold = books.accounts.unreserved(context.run, task=context.task, agent=context.agent)
        try:
            await books.ledger.open(self._opened(attempt))
        except asyncio.CancelledError as error:  # the line may have been written
            attempt.ended(End(outcome="abandoned", error=error))
            raise
        except BaseException:
            books.accounts.settle(attempt.hold, 0)
            raise
        attempt.sent, attempt.began = True, self.clock.now()
        if context.heat is not None:
            context.heat.left_at = attempt.began
        try:
            reply = await self._inner.open(request, context)
        except BaseException as error:
            attempt.ended(End(outcome="failed", error=error))
            raise
        if isinstance(reply, PlainReply):
            answer = attempt.priced(reply.answer)
            attempt.answered(answer)
            return PlainReply(answer, reply.head, self.clock.now() - attempt.began)
        reply.on_end(attempt.ended)
        return ToldReply(reply, attempt.priced)

    def _bounded(self, request: ChatRequest, rates: Rates | None, run: str) -> ChatRequest:
        """The request with a maximum of output, when there is a budget to keep."""
        if not self.books.accounts.limited(run):
            return request
        if rates is None:
            if self.books.accounts.of(run).allow_unpriced:
                return request
            raise UnpricedModel(
                f"there is a budget, but no price for exactly the model {request.model!r}: nothing was sent; check the "
                "spelling, set its price, or allow unpriced models",
                attempts=0,
            )
        if max_output(request) is None:
            return msgspec.structs.replace(request, max_tokens=self.books.max_output)
        return request

    def _opened(self, attempt: _Attempt) -> AttemptOpened:
        context = attempt.context
        return AttemptOpened(
            attempt=attempt.id,
            run=context.run,
            task=context.task,
            step=context.step,
            agent=context.agent,
            role=context.role,
            upstream=self.upstream,
            model=attempt.model,
            opened_at=self.clock.wall(),
            reserved_pico=attempt.reserved,
            key=self.key,
            bucket=context.bucket,
        )


class MemoryLedger:
    """A ledger for runs without a store: keeps the open lines and totals, not the settled lines."""

    def __init__(self) -> None:
        self.lines: dict[str, AttemptOpened] = {}
        self.settled = 0
        self.usd_pico = 0

    async def open(self, line: AttemptOpened) -> None:
        self.lines[line.attempt] = line

    def settle(self, line: AttemptSettled) -> None:
        if self.lines.pop(line.attempt, None) is not None:
            self.settled += 1
            self.usd_pico += line.usd_pico or 0

    async def spent_on(self, task: str) -> Mapping[str, int]:
        return {}


def max_output(request: ChatRequest) -> int | None:
    """The most tokens of output that a request allows, of all its alternatives (`n`); None = it names no limit. Zero
    and negative numbers are none: some servers take them for "without end".
    """
    extra = request.extra
    given = [request.max_tokens, *(extra.get(name) for name in _OUTPUT_LIMITS)] if extra else [request.max_tokens]
    limits = [limit for limit in given if isinstance(limit, int) and limit > 0]
    count = extra.get("n")
    return max(limits) * (count if isinstance(count, int) and count > 1 else 1) if limits else None


def _outcome(end: End) -> _Outcome:
    error = end.error
    if end.outcome == "completed":
        return "ok"
    if end.outcome == "abandoned" or isinstance(error, CallTimeout | DeadlineReached | asyncio.CancelledError):
        return "abandoned"
    status = getattr(error, "status", None) or 0
    return "refused" if isinstance(error, _REFUSALS) or 400 <= status < 500 else "failed"


def was_free(error: BaseException | None) -> bool:
    """Whether an attempt that gave no answer cannot have cost anything: never sent, refused, or an error status."""
    if isinstance(error, CallTimeout):
        return error.phase == "connect"
    return isinstance(error, (*_REFUSALS, Overloaded, Unreachable)) or (getattr(error, "status", None) or 0) >= 300


def _code(error: BaseException | None) -> str:
    if error is None or isinstance(error, SiafuError):
        return "" if error is None else error.code
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "internal_error"
