"""How the lines of batches ask models: behind everybody who waits for an answer, within what their owner's key allows,
and not at all once the batch is to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Protocol

import msgspec

from siafu.agents.faults import unasked
from siafu.errors import ModelError, Outage, Paused, RateLimited, RequestRefused, UnpricedModel
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Endpoint, Reply
from siafu.observe.calls import CallContext
from siafu.pace.bucket import Bucket
from siafu.pace.clock import Clock
from siafu.store.client_keys import KeyTerms
from siafu.swarm.results import MapError

LAST = 3  # priority
AWAY = 2.0  # seconds until an endpoint that could not be reached is asked again
TRIES = 3  # of a line, when its call failed in a way that may pass; after each the wait is twice as long
log = logging.getLogger("siafu")


class Patrons(Protocol):
    """For whom batches are run. `owner`: the id of a client key, "" = nobody needs one."""

    def terms(self, owner: str, /) -> KeyTerms | None:
        """What the key allows; None when it is good no more."""
        ...

    def account(self, owner: str, /) -> Awaitable[str]:
        """The name of the account that pays now. Raises: StoreError, Paused when the key is good no more."""
        ...

    def tell(self, code: str, message: str, /) -> MapError:
        """How a client is told of an error."""
        ...


class Purse:
    """What all batches of one owner share: the key's requests a minute and at once, apart from those of its requests
    over HTTP.
    """

    def __init__(self, terms: KeyTerms) -> None:
        self.places = None if terms.concurrency is None else asyncio.Semaphore(terms.concurrency)
        self.minute = None if terms.rpm is None else Bucket(terms.rpm / 60)


class Asking:
    """The Endpoint that one batch asks. `stop`: once it is set no further call leaves."""

    def __init__(
        self, inner: Endpoint, patrons: Patrons, purse: Purse, *, owner: str, batch: str, clock: Clock
    ) -> None:
        self._inner = inner
        self._patrons = patrons
        self._purse = purse
        self._owner = owner
        self._batch = batch
        self._clock = clock
        self.stop = asyncio.Event()
        self.full = False  # the disk: no further call leaves for now
        self.away: tuple[str, str] | None = None  # code and message of why the endpoint cannot be reached now

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        """As the endpoint within. While that cannot be reached, or is full, it is asked again as long as the batch has
        time: that says nothing about the line. What failed otherwise and may pass has three tries, as a task has.

        Raises: ModelError, BudgetReached, StoreError; Paused when the batch is to stop.
        """
        tries = 0
        async with self._purse.places or contextlib.nullcontext():
            while True:
                await self._turn()
                labelled = await self._labelled(context)
                try:
                    reply = await self._inner.open(request, labelled)
                except UnpricedModel as error:  # of this line alone
                    raise RequestRefused(error.message, provider_code=error.code, attempts=0) from None
                except ModelError as error:
                    wait = error.wait or AWAY
                    if unasked(error) or isinstance(error, RateLimited | Outage):
                        if self.away is None:
                            log.warning("%s waits: %s", self._batch, error.message)
                        self.away = error.code, error.message
                    elif (tries := tries + 1) >= TRIES or not error.retryable:
                        raise
                    else:
                        wait = max(wait, AWAY * 2**tries)
                else:
                    self.away = None
                    return reply
                await self._clock.sleep(wait)

    async def _turn(self) -> None:
        minute = self._purse.minute
        while not self.stop.is_set() and minute is not None:
            wait = minute.ready(self._clock.now())
            if not wait:
                minute.take(self._clock.now())
                break
            await self._clock.sleep(wait)
        if self.stop.is_set() or self.full:
            raise Paused("the batch is being stopped")

    async def _labelled(self, context: CallContext) -> CallContext:
        terms = self._patrons.terms(self._owner)
        if terms is None:
            raise Paused("the client key is good no more")
        task = f"{self._batch}/{context.task}"
        return msgspec.structs.replace(
            context,
            run=await self._patrons.account(self._owner),
            task=f"{self._owner}/{task}" if self._owner else task,
            agent=self._owner,
            tenant=terms.tenant,
            user=terms.customer,
            priority=LAST,
        )
