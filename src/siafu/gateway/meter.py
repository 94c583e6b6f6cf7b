"""Money: one ledger line per physical attempt, opened before it is sent and settled when it has ended.

What an attempt is charged: an answer with usage, its price; a refusal or an error status, nothing; whatever was sent
and then cancelled, cut, timed out or answered without usage, its reservation, as nobody knows better.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any, Literal

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


class _Attempt(msgspec.Struct, eq=False):
    """One physical attempt between its opening and its one settlement. rates: of the model that was asked; served: of
    the one that answered, else the same. began: monotonic seconds; when it was sent, once it is.
    """

    metered: Metered
    context: CallContext
    line: AttemptOpened
    hold: Hold
    prices: Prices
    rates: Rates | None
    served: Rates | None
    began: float
    sent: bool = False

    def priced(self, answer: ChatAnswer) -> ChatAnswer:
        """The answer with its cost and the number of the attempt."""
        if answer.model and answer.model != self.line.model:
            self.served = self.prices.rates(answer.model, self.metered.clock.wall()) or self.rates
        rates = self.served
        cost = None if rates is None or answer.usage is None else rates.cost(answer.usage)
        return msgspec.structs.replace(answer, usd_pico=cost, attempts=self.context.attempts + 1)

    def answered(self, answer: ChatAnswer, first_token: float | None = None) -> None:
        """Settle an attempt that gave an answer, which is priced."""
        usage, rates = answer.usage, self.served
        known = usage is not None
        usage = usage or _NOTHING
        saved = 0 if rates is None or answer.usd_pico is None else rates.saved(usage)
        self._settle(
            AttemptSettled(
                attempt=self.line.attempt,
                outcome="ok",
                settled_at=self.metered.clock.wall(),
                status=200,
                code=DOUBTFUL if usage.doubtful else "",
                served_model=answer.model,
                input_tokens=usage.input,
                cached_tokens=usage.cached,
                cache_write_tokens=usage.cache_write,
                output_tokens=usage.output,
                reasoning_tokens=usage.reasoning,
                usage_known=known,
                usd_pico=answer.usd_pico if known else self.line.reserved_pico,
                saved_pico=saved,
                price_source="" if rates is None else rates.source,
                price_date="" if rates is None else rates.date,
                seconds=self.metered.clock.now() - self.began,
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
                attempt=self.line.attempt,
                outcome=_outcome(end),
                settled_at=self.metered.clock.wall(),
                status=getattr(end.error, "status", None),
                code=HEDGE_LOST if self._lost(end) else _code(end.error),
                usage_known=free,
                usd_pico=0 if free else self.line.reserved_pico,
                price_source="" if rates is None else rates.source,
                price_date="" if rates is None else rates.date,
                seconds=self.metered.clock.now() - self.began,
                first_token=end.first_token,
            )
        )

    def _lost(self, end: End) -> bool:
        """Whether it was given up, as another request for the same call was quicker."""
        given_up = end.outcome == "abandoned" or isinstance(end.error, asyncio.CancelledError)
        return given_up and self.context.heat is not None and self.context.heat.lost

    def _settle(self, line: AttemptSettled) -> None:
        """Give the reservation back, charge, write the line, tell the observer."""
        metered, context, accounts = self.metered, self.context, self.metered.books.accounts
        account = accounts.of(context.run)
        if line.code == HEDGE_LOST:
            account.hedged += line.usd_pico or 0
        account.unpriced += self.rates is None
        account.unknown += not line.usage_known
        accounts.settle(self.hold, line.usd_pico or 0)
        metered.books.ledger.settle(line)
        metered.observer(
            AttemptEnded(
                run=context.run,
                task=context.task,
                role=context.role,
                model=line.served_model or self.line.model,
                upstream=metered.upstream,
                key=metered.key,
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
        books, prices, run, began = self.books, self.books.prices, context.run, self.clock.now()
        rates, amount = prices.rates(request.model, self.clock.wall()), None
        output = None if rates is None else max_output(request)
        if output is None and books.accounts.limited(run):
            request, output = self._bounded(request, rates, run)
        if rates is None or output is None:  # nobody can tell its cost before
            hold = Hold(books.accounts.path(run, context.task, context.agent))
        else:
            amount = rates.ceiling(len(encode(request)), output)
            hold = await books.accounts.reserve(run, amount, task=context.task, agent=context.agent)
        line = self._line(context, request.model, amount)
        attempt = _Attempt(self, context, line, hold, prices, rates, rates, began)
        try:
            await books.ledger.open(line)
        except asyncio.CancelledError as error:  # the line may have been written
            attempt.ended(End(outcome="abandoned", error=error))
            raise
        except BaseException:
            books.accounts.settle(hold, 0)
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

    def _bounded(self, request: ChatRequest, rates: Rates | None, run: str) -> tuple[ChatRequest, int | None]:
        """The request with a maximum of output, as there is a budget to keep, and that; None = it may go unpriced."""
        if rates is None:
            if self.books.accounts.of(run).allow_unpriced:
                return request, None
            raise UnpricedModel(
                f"there is a budget, but no price for exactly the model {request.model!r}: nothing was sent; check the "
                "spelling, set its price, or allow unpriced models",
                attempts=0,
            )
        request = msgspec.structs.replace(request, max_tokens=self.books.max_output)
        return request, max_output(request)

    def _line(self, context: CallContext, model: str, amount: int | None) -> AttemptOpened:
        self._count += 1
        return AttemptOpened(
            attempt=f"{self._prefix}-{self._count}",
            run=context.run,
            task=context.task,
            step=context.step,
            agent=context.agent,
            role=context.role,
            upstream=self.upstream,
            model=model,
            opened_at=self.clock.wall(),
            reserved_pico=amount,
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
    most, extra = _positive(request.max_tokens), request.extra
    if extra:
        most = max(most, *(_positive(extra.get(name)) for name in _OUTPUT_LIMITS)) * max(1, _positive(extra.get("n")))
    return most or None


def _positive(value: Any) -> int:
    """0 for everything else."""
    return value if isinstance(value, int) and value > 0 else 0


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
