"""One process's part of limits that several processes share: what it has on lease, and what it may do on its own.

While the place that hands out leases answers, calls are paid from small batches of requests and tokens, and no more
are under way than slots are held. When it does not answer, the process takes its fair part: the limits divided by as
many processes as were there last. Pure: who asks for leases is told what to ask for.
"""

from __future__ import annotations

import math

import msgspec

from siafu.pace.bucket import Bucket
from siafu.pace.tokens import SECONDS_AT_ONCE, TokenBucket

BATCH = 0.1  # seconds' worth of the limit that a process leases at a time
HOLD = 1.0  # seconds after which what was leased and not used is lost
HELD = 3.0  # seconds after which the slots of a process that is not heard of are free
LOOK_AGAIN = 0.05  # seconds; after it a caller that found nothing on lease looks again
AT_ONCE = 1.0  # seconds' worth of requests that may leave at once, all processes together


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of all processes together. Rates a second, None = no limit. `processes`: how many there are at least,
    for the time when nobody can say.
    """

    concurrency: int
    requests: float | None = None
    tokens: float | None = None
    processes: int = 1

    @property
    def burst(self) -> int:
        return max(1, int((self.requests or 0.0) * AT_ONCE))

    @property
    def token_burst(self) -> float:
        return (self.tokens or 0.0) * SECONDS_AT_ONCE


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask for. `owed`: tokens used beyond those that were leased; negative: not used. `in_flight`: calls under
    way; `slots`: calls that would be if they were let.
    """

    requests: int
    tokens: int
    owed: int
    in_flight: int
    slots: int


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """What was handed out. `wait`: seconds until asking again makes sense. `processes`: how many share now."""

    requests: int
    tokens: int
    slots: int
    wait: float
    processes: int


class Share:
    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.alone = False
        self.processes = whole.processes
        self.short = False  # a call found too little on lease
        self._slots, self._slots_until = 0, -math.inf
        self._requests, self._tokens, self._until = 0, 0, -math.inf
        self._owed = 0
        self._not_before = -math.inf
        self._bucket: Bucket | None = None
        self._token_bucket: TokenBucket | None = None

    def ready(self, now: float, in_flight: int, tokens: int) -> float:
        """Seconds until a call may leave: 0.0 = now, infinite = when another has ended. On lease it is a guess: look
        again when a lease has come.
        """
        if self.alone:
            return self._ready_alone(now, in_flight, tokens)
        held = now < self._until
        enough = (
            in_flight < self._slots
            and now < self._slots_until
            and (self.whole.requests is None or (held and self._requests > 0))
            and (self.whole.tokens is None or (held and self._tokens >= self._charge(tokens)))
        )
        if enough:
            return 0.0
        self.short = True
        return max(LOOK_AGAIN, self._not_before - now)

    def _charge(self, tokens: int) -> int:
        """A call of more than may be used at once is paid for with all of that; the rest is owed."""
        return min(tokens, int(self.whole.token_burst))

    def _ready_alone(self, now: float, in_flight: int, tokens: int) -> float:
        if in_flight >= max(1, self.whole.concurrency // self.processes):
            return math.inf
        wait = 0.0 if self._bucket is None else self._bucket.ready(now)
        return wait if self._token_bucket is None else max(wait, self._token_bucket.ready(now, tokens))

    def take(self, now: float, tokens: int) -> None:
        if not self.alone:
            self._requests -= 1
            self._tokens -= self._charge(tokens)
            self._owed += tokens - self._charge(tokens)
            return
        if self._bucket is not None:
            self._bucket.take(now)
        if self._token_bucket is not None:
            self._token_bucket.take(now, tokens)

    def settle(self, tokens: int, used: int) -> None:
        """A call for which `tokens` were taken used `used`. Told with the next lease."""
        if self.whole.tokens is not None:
            self._owed += used - tokens

    def ask(self, now: float, in_flight: int, waiting: int, tokens: int) -> Ask:
        """What to ask for now. `tokens`: what the next of those `waiting` will use."""
        self.short = False
        held = now < self._until
        batch = math.ceil((self.whole.requests or 0.0) * BATCH)
        wanted = max(0, min(waiting, max(1, batch)) - (self._requests if held else 0))
        enough = max(self._charge(tokens), math.ceil((self.whole.tokens or 0.0) * BATCH)) if waiting else 0
        owed, self._owed = self._owed, 0
        return Ask(
            requests=wanted if self.whole.requests else 0,
            tokens=max(0, enough - (self._tokens if held else 0)) if self.whole.tokens else 0,
            owed=owed,
            in_flight=in_flight,
            slots=min(self.whole.concurrency, in_flight + waiting),
        )

    def leased(self, lease: Lease, now: float, asked_at: float) -> None:
        """What was asked for at `asked_at` was answered at `now`."""
        if now >= self._until:
            self._requests = self._tokens = 0
        self.alone, self.processes = False, max(1, lease.processes)
        self._bucket = self._token_bucket = None
        self._requests += lease.requests
        self._tokens += lease.tokens
        self._slots, self._slots_until = lease.slots, asked_at + HELD
        self._until = now + HOLD
        self._not_before = now + lease.wait

    def until_more(self, now: float) -> float:
        """Seconds until asking for more makes sense."""
        return max(0.0, self._not_before - now)

    def lost(self, ask: Ask, now: float) -> None:
        """An ask was not answered: from now on alone, with nothing in hand."""
        self._owed += ask.owed
        if self.alone:
            return
        self.alone = True
        self._stand_alone(now)

    def change(self, whole: Whole, now: float) -> None:
        """All processes together have other limits from now on. What is on lease is used up under the old ones."""
        self.whole = whole
        if self.alone:
            self._stand_alone(now)

    def _stand_alone(self, now: float) -> None:
        self.processes = max(self.processes, self.whole.processes)
        self._bucket = self._token_bucket = None
        if self.whole.requests is not None:
            self._bucket = Bucket(self.whole.requests / self.processes, start=now)
        if self.whole.tokens is not None:
            rate = self.whole.tokens / self.processes
            self._token_bucket = TokenBucket(rate, start=now + SECONDS_AT_ONCE)
