"""Work items as records, and what is decided about them. Pure: the database's clock is an argument.

A task is ready, is leased to a worker under an epoch, and ends once: succeeded, failed, cancelled, expired or
dead_letter. In between it may be blocked (by tasks that it needs) or waiting (until `ready_at`).

Who is next: by priority, then in turn. Turns are tags that a task gets when it can begin (start-time fair queueing:
Goyal, Vin and Cheng, SIGCOMM 1996): a tenant's next tag is one more than its last, but not less than the tag that is
next now. So tenants alternate however much each of them has submitted, and who was idle has saved nothing up. What
ends before it began gives its tag back, but for those in the midst of what its tenant has in line still. One
claim in AGED_SHARE goes to what has been ready the longest, if that is AGED_SECONDS or more: so a low priority is slow
under load, but never starves, and a high one keeps the rest.

A task that kills its worker takes its neighbours down with it. So those that two workers died with are suspects: a
worker holds one suspect at a time, and the one that kills the third worker takes no other suspect along.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from siafu.border.canonical import fingerprint
from siafu.border.text import clean, preview
from siafu.errors import InputError
from siafu.observe.spans import traceparent

State = Literal["blocked", "ready", "leased", "waiting", "succeeded", "failed", "cancelled", "expired", "dead_letter"]
TERMINAL = ("succeeded", "failed", "cancelled", "expired", "dead_letter")
OPEN = ("blocked", "ready", "waiting", "leased")

MOST_DELIVERIES = 3  # that came to nothing, by a crash or an error that may pass
MAX_PAYLOAD = 4 * 1024 * 1024  # bytes
MAX_NEEDS = 100
AGED_SHARE, AGED_SECONDS = 8, 60.0
RETRY_SECONDS = 5.0  # before the second delivery; twice that before the third
LOOK_SECONDS = (5.0, 300.0)  # between two looks at a task that waits: the least and the most


class NewTask(msgspec.Struct, frozen=True, kw_only=True):
    """What is submitted. kind: which work it is. payload: JSON. run: a name under which tasks are found together.
    customer: whose data it holds. once: idempotency key within the tenant; None = none. priority: 1 (first) to 3.
    deadline: seconds from its acceptance after which it expires; None = never. needs: ids of tasks of the same tenant
    that must succeed first. trace: the traceparent under which it is done, empty = none.
    """

    kind: str
    payload: str
    run: str = ""
    tenant: str = ""
    customer: str = ""
    once: str | None = None
    priority: int = 2
    deadline: float | None = None
    needs: tuple[str, ...] = ()
    trace: str = ""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is there for good. fresh: it was not there before. state: at that moment."""

    id: str
    state: State
    fresh: bool


BOUND = "\x1f"  # between the name of a task and the customer whom its key is for
_SLASH = "\x1e"  # for those of a run in keys, where a slash ends it


def task_key(run: str, name: str) -> str:
    """Under which key (`NewTask.once`) the task `name` is submitted in a run, whatever slashes are in either."""
    return f"{run.replace('/', _SLASH)}/{name}"


def name_of(once: str | None, run: str) -> str | None:
    """The name that a task was submitted with; None = with none."""
    return None if once is None else once.removeprefix(task_key(run, "")).partition(BOUND)[0]


def full_name(once: str | None, run: str) -> str:
    """RUN/NAME of a task, for people; empty = it was submitted with no name."""
    return "" if once is None else f"{run}/{name_of(once, run)}"


class NotAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """code: key_reused (`once` stands for a task with another body, `id`), need_unknown (there is no task `id`) or
    need_failed (it has ended otherwise than well).
    """

    code: Literal["key_reused", "need_unknown", "need_failed"]
    id: str


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A row. Times are seconds since 1970 by the database's clock. `code`, `message`: of the last error that a delivery
    ended with; they stay until it succeeds. `waits_for`: the code of what it waits for. deliveries: that came to
    nothing, the present one included; lapses: those that ended with the worker. lease_epoch: how often it was leased.
    fenced: writes by workers that no longer held it.
    """

    id: str
    kind: str
    run: str
    tenant: str
    customer: str
    once: str | None
    payload: str
    print: str
    priority: int
    turn: int
    state: State
    deps_left: int
    created_at: float
    ready_at: float
    deadline_at: float | None
    deliveries: int
    lapses: int
    lease_epoch: int
    lease_until: float | None
    worker: str
    fenced: int
    cancel_requested: int
    waits_since: float | None
    waits_for: str
    code: str
    message: str
    result: str | None
    ended_at: float | None
    trace: str


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A task in a worker's hands. seconds_left: until its deadline, when it was claimed; None = it has none. retried:
    its last delivery ended with an error, not with a crash. begun: it was leased before. suspect: two workers died
    while they held it, perhaps of it.
    """

    id: str
    epoch: int
    kind: str
    run: str
    tenant: str
    customer: str
    payload: str
    priority: int
    seconds_left: float | None
    retried: bool
    begun: bool
    suspect: bool
    trace: str = ""


class Succeeded(msgspec.Struct, frozen=True):
    """`result`: a JSON text."""

    result: str


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """passing: tried again it may succeed. result: what can be told nevertheless, as JSON; None = nothing."""

    code: str
    message: str
    passing: bool = False
    result: str | None = None


class Later(msgspec.Struct, frozen=True, kw_only=True):
    """It cannot go on now. code: what it waits for. result: what can be told meanwhile, as JSON; None = nothing.
    failed: it waits as a call failed, which is made anew when it goes on.
    """

    code: str
    message: str = ""
    result: str | None = None
    failed: bool = False


class HandedBack(msgspec.Struct, frozen=True):
    """The worker gives it up unfinished, in good order."""


class Cancelled(msgspec.Struct, frozen=True):
    """The worker has stopped it, as was asked for."""


class Expired(msgspec.Struct, frozen=True):
    """Its deadline came while it was worked on."""


class Lapsed(msgspec.Struct, frozen=True):
    """Its worker did not renew the lease: it has died, hangs or cannot reach the database."""


Verdict = Succeeded | Failed | Later | HandedBack | Cancelled | Expired | Lapsed


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a leased task. seconds: until it is ready again. counted: the delivery came to nothing; lapsed:
    as its worker was lost. result: None = as before, unless it ends.
    """

    state: State
    seconds: float = 0.0
    counted: bool = True
    lapsed: bool = False
    code: str = ""
    message: str = ""
    result: str | None = None
    waits_for: str = ""


def move(task: Task, verdict: Verdict, now: float) -> Move:
    """What becomes of `task`, which is leased, by what its worker says or by its silence."""
    if isinstance(verdict, Succeeded):
        return Move(state="succeeded", result=verdict.result, counted=False)
    if isinstance(verdict, Failed) and not verdict.passing:
        return Move(state="failed", code=verdict.code, message=verdict.message, result=verdict.result)
    if task.cancel_requested or isinstance(verdict, Cancelled):
        return Move(state="cancelled", code="cancelled")
    if isinstance(verdict, Expired) or (task.deadline_at is not None and task.deadline_at <= now):
        return Move(state="expired", code="deadline_reached", message="not done before its deadline")
    if isinstance(verdict, HandedBack):
        return Move(state="ready", counted=False, code=task.code, message=task.message, waits_for=task.waits_for)
    if isinstance(verdict, Later):
        pause = look_again(now - (task.waits_since or now))
        code, message = (verdict.code, verdict.message) if verdict.failed else (task.code, task.message)
        return Move(
            state="waiting", seconds=pause, counted=False, code=code, message=message,
            waits_for=verdict.code, result=verdict.result,
        )  # fmt: skip
    if isinstance(verdict, Lapsed):
        code, message, seconds = "worker_lost", "its worker died, or could not renew its lease", 0.0
    else:
        code, message, seconds = verdict.code, verdict.message, retry_after(task.deliveries)
    if task.deliveries >= MOST_DELIVERIES:
        return Move(state="dead_letter", code=code, message=message)
    if isinstance(verdict, Lapsed):
        return Move(state="ready", lapsed=True, code=task.code, message=task.message, waits_for=task.waits_for)
    return Move(state="waiting", seconds=seconds, code=code, message=message)


def retry_after(deliveries: int) -> float:
    """Seconds until the next delivery, after so many that came to nothing."""
    return RETRY_SECONDS * float(2 ** (deliveries - 1))


def look_again(waited: float) -> float:
    """Seconds until a task that has waited so long is looked at again: a tenth of that, within LOOK_SECONDS."""
    least, most = LOOK_SECONDS
    return min(max(waited / 10, least), most)


def aged_claims(before: int, wanted: int) -> int:
    """How many of the next `wanted` claims go to what has been ready the longest, after `before` claims."""
    return (before + wanted) // AGED_SHARE - before // AGED_SHARE


def first_turn(last: int | None, waiting: int | None, served: int | None, ever: int | None) -> int:
    """The tag of a tenant's next task. last: the tenant's own last tag. waiting: the lowest of ready tasks that were
    never leased: it is next, and no task that has come back with an old tag. served: the highest of leased tasks; it
    may have gone before its turn, as it had waited for long. ever: the highest of all tenants. None = there is none.
    """
    now = next((each for each in (waiting, served, ever) if each is not None), 0)
    return max(now, 0 if last is None else last + 1)


def checked(task: NewTask) -> NewTask:
    """The task in words that every store takes. Raises: InputError when it cannot be kept."""
    size = len(task.payload.encode("utf-8", "replace"))
    if size > MAX_PAYLOAD:
        raise InputError(f"the task has {size:,} bytes; the limit is {MAX_PAYLOAD:,}")
    if task.priority not in (1, 2, 3):
        raise InputError(f"a priority is 1 (first), 2 or 3, not {task.priority}")
    if task.deadline is not None and not 0 < task.deadline < 1e9:
        raise InputError(f"a deadline is in more than 0 seconds, not {task.deadline}")
    if len(set(task.needs)) > MAX_NEEDS:
        raise InputError(f"the task needs {len(set(task.needs))} others; the limit is {MAX_NEEDS}")
    for name in ("kind", "run", "tenant", "customer", "once"):
        value = getattr(task, name) or ""
        if len(value) > 400 or (name in ("kind", "once") and getattr(task, name) == ""):
            raise InputError(f"the {name} of a task has 1 to 400 characters, not {len(value)}: {preview(value, 40)!r}")
    cleaned = {
        name: clean(value)
        for name, value in msgspec.structs.asdict(task).items()
        if isinstance(value, str) and name != "trace"
    }
    return msgspec.structs.replace(task, **cleaned, trace=traceparent(task.trace))


def body_print(task: NewTask) -> str:
    """What two submissions under one key must share: what is to be done, and for whom."""
    return fingerprint([task.kind, task.customer, task.payload, task.needs])
