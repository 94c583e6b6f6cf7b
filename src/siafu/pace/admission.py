"""One decision for all limits of one upstream: may this call leave now, and if not, when to look again.

`ready` and `take` belong to one step without waiting in between, so a crowd of callers gets exactly what is allowed.
Pure: the clock is an argument.
"""

from __future__ import annotations

import math

from siafu.pace.announced import Announced, Left
from siafu.pace.concurrency import Outcome, Policy, Sample
from siafu.pace.share import Share
from siafu.pace.throttle import Grant, Throttle
from siafu.pace.tokens import Reserved, TokenBucket

INTERACTIVE = 1  # the priority whose part of the concurrency is kept free for it


class Permit:
    """One call that was let through, until it has ended."""

    __slots__ = ("at", "grant", "in_flight", "marks", "priority", "reserved", "tokens")

    def __init__(self, at: float, priority: int, tokens: int, in_flight: int, grant: Grant) -> None:
        self.at = at
        self.priority = priority
        self.tokens = tokens
        self.in_flight = in_flight
        self.grant = grant
        self.reserved: Reserved | None = None
        self.marks = (0, 0)


class Admission:
    """`tokens`: None = calls are not counted in tokens. `interactive`: the part of the concurrency that only calls of
    priority 1 may use. `share`: this process's part of limits that others share; None = the limits are its own.
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

    @property
    def counts_tokens(self) -> bool:
        """Whether it matters now how many tokens a call is expected to use."""
        if self._tokens is not None or (self._share is not None and self._share.whole.tokens is not None):
            return True
        return self._tokens_left is not None and self._tokens_left.tight

    def ready(self, now: float, priority: int, tokens: int) -> float:
        """Seconds until a call may leave: 0.0 = now, infinite = when another has ended."""
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
        self._others += priority > INTERACTIVE
        self.policy.take(now)
        permit = Permit(now, priority, tokens, self.in_flight, self.throttle.take(now))
        if self._tokens is not None:
            permit.reserved = self._tokens.take(now, tokens)
        self._sent += 1
        self._sent_tokens += tokens
        permit.marks = (self._sent, self._sent_tokens)
        if self._requests_left is not None:
            self._requests_left.take(now)
        if self._tokens_left is not None:
            self._tokens_left.take(now)
        if self._share is not None:
            self._share.take(now, tokens)
        return permit

    def undo(self, permit: Permit, now: float) -> None:
        """A call that was let through and sent nothing."""
        self._leave(permit)
        self.policy.undo(permit.at)
        self.throttle.undo(permit.grant)
        self._settle(permit, 0, now)
        self._sent -= 1
        self._sent_tokens -= permit.tokens

    def heard(self, permit: Permit, requests: Left | None, tokens: Left | None) -> None:
        """What an answer says is left of the limits; None = it does not say."""
        if requests is not None:
            self._requests_left = self._requests_left or Announced()
            self._requests_left.heard(requests, permit.at, permit.marks[0])
        if tokens is not None:
            self._tokens_left = self._tokens_left or Announced()
            self._tokens_left.heard(tokens, permit.at, permit.marks[1])

    def ended(
        self, permit: Permit, now: float, outcome: Outcome, *, used: int | None = None, latency: float | None = None
    ) -> None:
        """A call has ended. `used`: its tokens, None = unknown: what was reserved is taken for them."""
        self._leave(permit)
        self._settle(permit, used, now)
        if self.policy.learns:
            self.policy.ended(
                Sample(sent_at=permit.at, now=now, in_flight=permit.in_flight, outcome=outcome, latency=latency)
            )

    def _leave(self, permit: Permit) -> None:
        self.in_flight -= 1
        self._others -= permit.priority > INTERACTIVE

    def _settle(self, permit: Permit, used: int | None, now: float) -> None:
        if used is None:
            return
        if permit.reserved is not None and self._tokens is not None:
            self._tokens.settle(permit.reserved, used, now)
        if self._share is not None:
            self._share.settle(permit.tokens, used)
