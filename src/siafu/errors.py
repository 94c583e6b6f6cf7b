"""Everything that can go wrong, as one tree.

::

    SiafuError                       code, retryable, exit_code
    ├── UsageError                   wrong use; exit 2
    │   ├── ConfigError              a setting is missing, unknown or unsafe
    │   │   └── ConfigErrors         several are
    │   └── InputError               an input file, line or item cannot be used
    ├── BoundaryError                text from outside breaks a rule of the border
    │   ├── TooLarge                 more bytes, items or depth than the stated maximum
    │   ├── NotJson                  not JSON, or JSON with NaN, Infinity or a repeated key
    │   └── IdentityInvalid          a token that does not prove who calls
    ├── ModelError                   a model call did not give an answer
    │   ├── RateLimited              429 or its like: wait, then ask again
    │   ├── Overloaded               503, 529: the upstream is full
    │   ├── UpstreamFault            5xx, 408, 409, connection reset, cut stream
    │   │   ├── Unreachable          no connection was made, nothing was sent
    │   │   ├── Outage               the upstream fails for everybody: left to a later run; exit 3
    │   │   └── MalformedReply       200 whose body is no answer (HTML, no choices, not JSON)
    │   ├── CallTimeout              connect, first byte, idle or total limit reached
    │   ├── RequestRefused           400, 404, 422 ...: the request itself is wrong
    │   ├── AccessRefused            401, 403: the key is wrong for this endpoint; exit 2
    │   ├── QuotaExhausted           no credit left; waiting does not help; exit 3
    │   └── UnpricedModel            a USD budget is set and the model has no price; exit 2
    ├── BudgetReached                the next call could exceed the budget of the run, the day or a key; exit 3
    ├── Paused                       whoever runs the work wants no further call for now
    ├── ItemBudgetReached            it could exceed the item's or the agent's own; that item fails, others go on
    ├── DeadlineReached              the time given to the item, run or call is over
    ├── NotNow                       it cannot be done now; the item waits, neither finished nor failed
    │   └── ApprovalPending          a person has to decide first
    ├── ToolFault                    a tool call did not give a result
    │   ├── ToolUnavailable          the server cannot be reached or has died
    │   ├── ToolTimeout              no answer in time
    │   ├── ToolDenied               the role may not use this tool; nothing was sent
    │   ├── ToolArgumentsInvalid     the arguments do not fit the schema; nothing was sent
    │   └── OutcomeUnknown           the call was sent, its effect is unknown; never retried blindly
    ├── AgentStopped                 an agent reached a limit before it answered
    │   ├── StepLimit
    │   ├── TokenLimit
    │   └── ReplyTruncated           the model's last message was cut and could not be repaired
    ├── OutputInvalid                the answer does not fit the declared schema
    ├── StoreError                   the store cannot be opened or written
    │   ├── StoreBusy                another process holds this journal
    │   ├── DiskFull                 there is no room; nothing was changed
    │   ├── StoreLocked              another transaction was waited for too long; nothing was changed
    │   ├── Fenced                   this worker no longer holds the task it works on; nothing was changed
    │   └── Conflict                 a constraint of the database forbids the change
    ├── BacklogFull                  too many tasks are open; nothing more is accepted for now
    ├── MeasurementInvalid           a measurement failed its own checks; its figures are not shown
    └── Interrupted                  stopped from outside; state is kept; exit 130

`code` is a stable word for machines (records, JSON, metrics); the message is for people and says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol


class SiafuError(Exception):
    """Base of every error siafu raises on purpose."""

    code: ClassVar[str] = "siafu_error"
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    @property
    def message(self) -> str:
        """The text for people, without the class name."""
        return str(self.args[0]) if self.args else self.code


class UsageError(SiafuError):
    code = "usage"
    exit_code = 2


class ConfigError(UsageError):
    code = "config"


class ConfigErrors(ConfigError):
    """`all`: what is wrong, one text each; the message holds the first five."""

    def __init__(self, wrong: Sequence[str]) -> None:
        more = f"; and {len(wrong) - 5} more: siafu config check" if len(wrong) > 5 else ""
        super().__init__("; ".join(wrong[:5]) + more)
        self.all = tuple(wrong)


class InputError(UsageError):
    code = "input"


class BoundaryError(SiafuError):
    code = "boundary"


class TooLarge(BoundaryError):
    code = "too_large"


class NotJson(BoundaryError):
    code = "not_json"


class IdentityInvalid(BoundaryError):
    """`reason`: too_large, malformed, wrong_algorithm, bad_signature, wrong_audience, expired, not_yet_valid,
    too_long_lived, no_key or contradiction.
    """

    code = "identity_invalid"

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Tried(NamedTuple):
    """A model at `place`: an upstream, or one of its keys. `final`: asked again it would say the same."""

    place: str
    model: str
    final: bool


class ModelError(SiafuError):
    """A model call gave no answer.

    `status`: HTTP status, None when there was none. `provider_code`: the upstream's own word for it, `param`: the field
    of the request that it names; each at most 100 characters. `wait`: seconds the upstream asked us to wait, None when
    it did not say. `attempts`: physical requests made for this call. `tried`: what failed, of several upstreams, keys
    and models; `elsewhere`: another of them would take the call; `held`: asked again, it waits here until it is worth a
    request, or would, were its deadline not too soon (`late`); `common`: calls of other tasks fail there too, so that
    it may be left to a later run. `sent_at`: when the last request left (monotonic seconds), None = none did. The
    gateway sets these.
    """

    code = "model_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        provider_code: str | None = None,
        param: str | None = None,
        wait: float | None = None,
        attempts: int = 1,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.provider_code = provider_code
        self.param = param
        self.wait = wait
        self.attempts = attempts
        self.tried: Tried | None = None
        self.elsewhere = self.held = self.late = self.common = False
        self.sent_at: float | None = None


class RateLimited(ModelError):
    code = "rate_limited"
    retryable = True


class Overloaded(ModelError):
    code = "overloaded"
    retryable = True


class UpstreamFault(ModelError):
    code = "upstream_fault"
    retryable = True


class Unreachable(UpstreamFault):
    code = "unreachable"


class Outage(UpstreamFault):
    """`lasts`: it has failed for longer than a run waits; else this call had all its attempts meanwhile."""

    code = "outage"
    exit_code = 3
    lasts = False


class MalformedReply(UpstreamFault):
    """`web_page`: it was HTML."""

    code = "malformed_reply"
    web_page = False


class CallTimeout(ModelError):
    """`phase`: connect, first_byte, idle or total."""

    code = "call_timeout"
    retryable = True

    def __init__(self, message: str, *, phase: str, attempts: int = 1) -> None:
        super().__init__(message, attempts=attempts)
        self.phase = phase


class RequestRefused(ModelError):
    code = "request_refused"


class AccessRefused(ModelError):
    code = "access_refused"
    exit_code = 2


class QuotaExhausted(ModelError):
    code = "quota_exhausted"
    exit_code = 3


class UnpricedModel(ModelError):
    code = "unpriced_model"
    exit_code = 2


class BudgetReached(SiafuError):
    """`budget`: which one: run, day, role, key (of an upstream) or client (key of `siafu serve`). `needs_pico`: what
    the next call could cost, in pico-dollars.
    """

    code = "budget_reached"
    exit_code = 3

    def __init__(self, message: str, *, budget: str = "run", needs_pico: int = 0) -> None:
        super().__init__(message)
        self.budget = budget
        self.needs_pico = needs_pico


class Paused(SiafuError):
    code = "paused"


class ItemBudgetReached(SiafuError):
    code = "item_budget_reached"


class DeadlineReached(SiafuError):
    code = "deadline_reached"


class NotNow(SiafuError):
    """Raised by work that can go on only later. Nothing is recorded: the item runs again. `reason`: the code of what it
    waits for.
    """

    code = "not_now"

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or self.code


class ApprovalPending(NotNow):
    """Raised by work that can go on only when a person has decided."""

    code = "pending_approval"


class Away(Protocol):
    """A tool server that has answered before and cannot be reached now. name: as its tools have it in `Tool.server`."""

    @property
    def name(self) -> str: ...

    async def knock(self) -> bool:
        """Whether it answers now."""
        ...


class ToolFault(SiafuError):
    """`tool`: the name as the model knows it. `away`: the same call may be made again once this server is back; None =
    waiting does not help, or the call may not be made again.
    """

    code = "tool_fault"
    away: Away | None = None

    def __init__(self, message: str, *, tool: str = "") -> None:
        super().__init__(message)
        self.tool = tool


class ToolUnavailable(ToolFault):
    code = "tool_unavailable"
    retryable = True


class ToolTimeout(ToolFault):
    code = "tool_timeout"


class ToolDenied(ToolFault):
    code = "tool_denied"


class ToolArgumentsInvalid(ToolFault):
    code = "tool_arguments_invalid"


class OutcomeUnknown(ToolFault):
    code = "outcome_unknown"


class AgentStopped(SiafuError):
    code = "agent_stopped"


class StepLimit(AgentStopped):
    code = "step_limit"


class TokenLimit(AgentStopped):
    code = "token_limit"


class ReplyTruncated(AgentStopped):
    code = "reply_truncated"


class OutputInvalid(SiafuError):
    code = "output_invalid"


class StoreError(SiafuError):
    code = "store"


class StoreBusy(StoreError):
    code = "store_busy"
    exit_code = 2


class DiskFull(StoreError):
    code = "disk_full"


class StoreLocked(StoreError):
    code = "store_locked"
    retryable = True


class Fenced(StoreError):
    code = "fenced"


class Conflict(StoreError):
    """`constraint`: what forbids it, as the database names it: a constraint's name or its columns, else its words."""

    code = "conflict"

    def __init__(self, message: str, *, constraint: str) -> None:
        super().__init__(message)
        self.constraint = constraint


class BacklogFull(SiafuError):
    """`retry_after`: seconds until there may be room."""

    code = "backlog_full"
    retryable = True

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MeasurementInvalid(SiafuError):
    code = "measurement_invalid"


class Interrupted(SiafuError):
    code = "interrupted"
    exit_code = 130
