"""Asking again: the one place in the program that repeats a model call.

Two kinds of failure. A fault (5xx, cut, malformed, timeout) costs one of the attempts of the step and is paid from
the retry budget; with an empty one only another upstream or model is still asked, which had no try yet. A refusal for
now (429, overloaded) is admission: the limiter holds everybody back, and the call asks again with its place kept,
bounded by its deadline and by `patience`.
"""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

from siafu.errors import (
    CallTimeout,
    DeadlineReached,
    ModelError,
    Outage,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    SiafuError,
    UpstreamFault,
)
from siafu.gateway.chat import ChatRequest
from siafu.gateway.classify import ambiguous_quota
from siafu.gateway.endpoint import Endpoint, Reply
from siafu.observe.calls import CallContext
from siafu.observe.events import Observer, Waited
from siafu.pace.allowance import Allowance
from siafu.pace.backoff import full_jitter
from siafu.pace.clock import Clock

Kind = Literal["fault", "admission", "final"]


class RetryRules(msgspec.Struct, frozen=True, kw_only=True):
    """`attempts`: requests a step may lose to faults; one that is delivered again is asked once even when they are used
    up, as nobody knows what became of the last. `max_wait`: seconds, the longest server-given wait that is waited
    out. `patience`: seconds a call goes on asking while it is refused for now. `quota_tries`: tries
    while the refusal may mean a quota of the month as well as one of the minute. leaves: what the retry budget does not
    repeat is left to a later run, as an Outage.
    """

    attempts: int = 3
    max_wait: float = 60.0
    patience: float = 600.0
    quota_tries: int = 3
    leaves: bool = False


def kind_of(error: ModelError) -> Kind:
    """What a failure is to the retry rules."""
    if isinstance(error, RateLimited | Overloaded):
        return "admission"
    return "fault" if isinstance(error, UpstreamFault | CallTimeout) else "final"


def again(why: str) -> Overloaded:
    """For a call that was not sent and is to choose again where it goes."""
    error = Overloaded(why, attempts=0)
    error.held = True
    return error


def used_up(error: ModelError, asked: str) -> QuotaExhausted:
    """A refusal that may have meant a limit of this minute, told as what it must be."""
    return QuotaExhausted(
        f"{error.message}; asked {asked}: taken as used up",
        status=error.status,
        provider_code=error.provider_code,
        wait=error.wait,
        attempts=error.attempts,
    )


class Progress(msgspec.Struct):
    """What one call has been through. `faults` starts at the attempts of an earlier delivery of the step. refused_at:
    since when it is refused for now.
    """

    faults: int
    unsure: int = 0
    refused_at: float | None = None

    def next_wait(self, error: ModelError, rules: RetryRules, now: float, rng: Random) -> float | None:
        """Seconds to wait before asking again after `error`; None = give up. Counts the error.

        For a refusal for now it is 0: the limiter waits. Also when another upstream or key takes the call, or when it
        waits in front of the upstream that failed (`held`). What was refused here, and not so, is refused for good.
        """
        kind, taken = kind_of(error), error.elsewhere or error.held
        self.faults += error.attempts if kind == "fault" else 0
        if not taken and (kind == "final" or not error.attempts or (error.wait or 0.0) > rules.max_wait):
            return None
        if kind == "fault":
            if self.faults >= rules.attempts:
                return None
            return 0.0 if taken else max(full_jitter(self.faults, rng), error.wait or 0.0)
        if error.held or kind == "final":
            self.refused_at = None
            return 0.0
        self.unsure += ambiguous_quota(error.provider_code)
        self.refused_at = now if self.refused_at is None else self.refused_at
        waited_out = now - self.refused_at > rules.patience or self.unsure >= rules.quota_tries
        return None if waited_out and not taken else 0.0


class Retrying:
    """The wrapper that repeats. Only what happens before the first delta is repeated; a stream that breaks later is
    its reader's failure.
    """

    def __init__(
        self, inner: Endpoint, rules: RetryRules, *, clock: Clock, rng: Random, upstream: str, observer: Observer
    ) -> None:
        self.inner = inner  # it and the rules may be replaced: calls that are asked again go by them too
        self.rules = rules
        self._clock = clock
        self._rng = rng
        self._upstream = upstream
        self._observer = observer
        self._allowance = Allowance()

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        self._allowance.earn()
        first = context.attempts
        began, progress = self._clock.now(), Progress(faults=first)
        while True:
            try:
                return await self.inner.open(request, context)
            except ModelError as error:
                now = self._clock.now()
                sent = context.attempts + error.attempts  # 0: it was refused here and never sent
                wait = progress.next_wait(error, self.rules, now, self._rng)
                late = wait is not None and context.deadline is not None and now + wait >= context.deadline
                if wait is None or late or not self._paid(error):
                    error.attempts = sent - first
                    last = self._last_word(error, progress, unpaid=wait is not None and not late)
                    if last is error:
                        raise
                    raise last from error
                tried = context.tried
                if error.tried is not None and kind_of(error) != "admission":
                    tried = (*tried, error.tried)
            context = msgspec.structs.replace(context, attempts=sent, since=began, tried=tried)
            if wait:
                self._observer(
                    Waited(run=context.run, task=context.task, upstream=self._upstream, reason="backoff", seconds=wait)
                )
                await self._clock.sleep(wait)

    def _paid(self, error: ModelError) -> bool:
        if kind_of(error) != "fault":
            return True
        paid = self._allowance.spend()  # also by who need not pay, so that those who must see what has been repeated
        return paid or error.elsewhere or error.held

    def _last_word(self, error: ModelError, progress: Progress, *, unpaid: bool) -> SiafuError:
        """The error to raise. A refusal that kept naming a quota is told as one. Who has no time to wait for credit, as
        others do, ran out of time. The last attempt of a step is an outage when all calls there fail, and so is one
        that could be repeated and is `unpaid`, as many fail.
        """
        if isinstance(error, QuotaExhausted) and error.late:
            return DeadlineReached(f"the deadline of this call comes before the next look: {error.message}")
        if (error.common or (unpaid and self.rules.leaves)) and not error.elsewhere:
            why = f"{error.message} (other calls fail too)"
            outage = Outage(why, status=error.status, attempts=error.attempts)
            outage.lasts = error.common and not error.held and not error.late
            return outage
        if progress.unsure < self.rules.quota_tries or not ambiguous_quota(error.provider_code):
            return error
        return used_up(error, f"{progress.unsure} times")
