"""One decision for all limits of one upstream: may this call leave now, and if not, when to look again.

`ready` and `take` belong to one step without waiting in between, so a crowd of callers gets exactly what is allowed.
Pure: the clock is an argument.
"""

from __future__ import annotations

import math

import msgspec

from siafu.pace.announced import Announced, Left
from siafu.pace.concurrency import Outcome, Policy, Sample
from siafu.pace.share import Share
from siafu.pace.throttle import Grant, Throttle
from siafu.pace.tokens import SECONDS_AT_ONCE, Reserved, TokenBucket

INTERACTIVE = 1  # the priority whose part of the concurrency is kept free for it


class Permit(msgspec.Struct, eq=False):
    """One call that was let through, until it has ended. `tokens`: expected; 0 = nobody counts them. `sent`,
    `sent_tokens`, `in_flight`: when it had left, the former two in all.
    """

    at: float
    priority: int
    tokens: int
    grant: Grant
    sent: int
    sent_tokens: int
    in_flight: int = 0
    reserved: Reserved | None = None


class Admission:
    """`tokens`: None = calls are not counted in tokens. `interactive`: the part of the concurrency that only calls of
    priority 1 may use. `share`: this process's part of limits that others share; None = the limits are its own.
    `counts_tokens` says whether it matters now how many tokens a call will probably use.
    """

    def __init__(
        self,
        throttle: Throttle,
        policy: Policy,
        *,
        tokens: TokenBucket | None = None,
        interactive: float = 0.0,
        share: Share | None = None,
    ) -> None:
        self.throttle = throttle
        self.policy = policy
        self.in_flight = 0
        self._others = 0  # of them, those that are not interactive
        self._sent = self._sent_tokens = 0  # in all
        self._tokens = tokens
        self._interactive = interactive
        self._share = share
        self._requests_left: Announced | None = None
        self._tokens_left: Announced | None = None
        self._settle()

    def _settle(self) -> None:
        # Nothing but a fixed concurrency and the throttle: what most calls meet is kept short.
        more = self._tokens or self._interactive or self._share or self._requests_left or self._tokens_left
        self._plain = not (self.policy.moves or more)
        self._most = math.inf if self.policy.moves else self.policy.limit
        shared = self._share is not None and self._share.whole.tokens is not None
        tight = self._tokens_left is not None and self._tokens_left.tight
        self.counts_tokens = self._tokens is not None or shared or tight

    def change(self, now: float, *, most: int, rpm: float | None, tpm: float | None) -> None:
        """Let `most` calls at once from now on, and `tpm` tokens a minute (None = calls are not counted in tokens).
        rpm: what the provider allows, None = unknown. Calls under way count as before.
        """
        self.policy.resize(most, rpm)
        if tpm is None:
            self._tokens = None
        elif self._tokens is None:  # empty, as nobody knows what was used of late
            self._tokens = TokenBucket(tpm / 60, start=now + SECONDS_AT_ONCE)
        else:
            self._tokens.change(tpm / 60, now)
        self._settle()

    @property
    def full(self) -> bool:
        """Whether surely nobody may leave before a call has ended."""
        return self.in_flight >= self._most

    def ready(self, now: float, priority: int, tokens: int) -> float:
        """Seconds until a call may leave: 0.0 = now, infinite = when another has ended."""
        if self._plain:
            return self.throttle.ready(now) if self.in_flight < self._most else math.inf
        taken = self.in_flight
        if self._interactive and priority > INTERACTIVE:
            kept = min(self.policy.limit - 1, math.ceil(self._interactive * self.policy.limit))
            taken = max(taken, self._others + kept)
        wait = max(self.policy.ready(now, taken), self.throttle.ready(now))
        if self._tokens is not None:
            wait = max(wait, self._tokens.ready(now, tokens))
        if self._requests_left is not None:
            wait = max(wait, self._requests_left.ready(now, 1, self._sent))
        if self._tokens_left is not None:
            wait = max(wait, self._tokens_left.ready(now, tokens, self._sent_tokens))
        if self._share is not None and wait == 0.0:
            wait = self._share.ready(now, self.in_flight, tokens)
        return wait

    def take(self, now: float, priority: int, tokens: int) -> Permit:
        """Let a call through for which `ready` was 0.0 in this step."""
        self.in_flight += 1
        self._sent += 1
        self._sent_tokens += tokens
        permit = Permit(now, priority, tokens, self.throttle.take(now), self._sent, self._sent_tokens)
        if self._plain:
            return permit
        permit.in_flight = self.in_flight
        if self._interactive:
            self._others += priority > INTERACTIVE
        if self.policy.moves:
            self.policy.take(now)
        if self._tokens is not None:
            permit.reserved = self._tokens.take(now, tokens)
        if self._requests_left is not None:
            self._requests_left.take(now)
        if self._tokens_left is not None:
            self._tokens_left.take(now)
        if self._share is not None:
            self._share.take(now, tokens)
        return permit

    def undo(self, permit: Permit, now: float) -> None:
        """A call that was let through has sent nothing."""
        self.ended(permit, now, used=0)
        self.throttle.undo(permit.grant)
        self._sent -= 1
        self._sent_tokens -= permit.tokens
        if self.policy.moves:
            self.policy.undo(permit.at)

    def heard(self, permit: Permit, requests: Left | None, tokens: Left | None) -> None:
        """What an answer says is left of the limits; None = it does not say."""
        if requests is not None:
            self._requests_left = self._requests_left or Announced()
            self._requests_left.heard(requests, permit.at, permit.sent)
        if tokens is not None:
            self._tokens_left = self._tokens_left or Announced()
            self._tokens_left.heard(tokens, permit.at, permit.sent_tokens)
        self._settle()

    def ended(self, permit: Permit, now: float, *, used: int | None = None) -> None:
        """A call has ended. `used`: its tokens, None = unknown: what was expected is taken for them."""
        self.in_flight -= 1
        if self._plain:
            return
        if self._interactive:
            self._others -= permit.priority > INTERACTIVE
        if used is None:
            return
        if permit.reserved is not None and self._tokens is not None:
            self._tokens.settle(permit.reserved, used, now)
        if self._share is not None:
            self._share.settle(permit.tokens, used)

    def learn(
        self, permit: Permit, now: float, outcome: Outcome, first_token: float | None = None, tokens: int | None = None
    ) -> None:
        """How a call that was sent has ended, for a policy that moves; as in `Sample`."""
        self.policy.ended(
            Sample(
                sent_at=permit.at,
                now=now,
                in_flight=permit.in_flight,
                outcome=outcome,
                first_token=first_token,
                tokens=tokens,
            )
        )
