"""What is sent and answered about tasks, as types."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from siafu.apps.support.requests import KIND, LIMITS
from siafu.errors import DeadlineReached
from siafu.service.refusals import invalid
from siafu.store.task_events import Cursor, Seen, TaskEvent
from siafu.store.task_records import MAX_NEEDS, State, name_of
from siafu.store.webhooks import Told

MOST = 100  # tasks of one request, or page
MAX_RUN, MAX_NAME = 64, 128  # characters; with a customer's name they are a key of 400
# Words that are about the task alone, and may be told to whoever submitted it.
_OWN_WORDS = ("cancelled", "need_failed", "worker_lost", "customer_forgotten", DeadlineReached.code)
PLACE = "^[0-9]{1,18}$"  # of an event
_LINE = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"  # one line that is not blank


TASK_ID = "^t_[0-9a-f]{32}$"
TaskId = Annotated[str, msgspec.Meta(pattern=TASK_ID)]


def _text(most: int, pattern: str = r"\S") -> Any:
    return msgspec.Meta(min_length=1, max_length=most, pattern=pattern)


class SupportInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a customer asks. created_at: ISO 8601. lang: a language tag such as ko."""

    text: Annotated[str, _text(LIMITS["text"])]
    created_at: Annotated[str, _text(LIMITS["created_at"])] | None = None
    lang: Annotated[str, _text(LIMITS["lang"])] | None = None


class TaskBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task to be done. id: names it within its run: submitted again it is the same task. priority: 1 is first.
    deadline_seconds: after which it expires. needs: tasks that have to succeed first: ids, or names of
    earlier requests' tasks of the same run and key. customer_token: proves for
    whom it is, as the header x-siafu-customer does for the whole request.
    """

    kind: Literal["support"]
    input: SupportInput
    id: Annotated[str, _text(MAX_NAME, _LINE)] | None = None
    run: Annotated[str, _text(MAX_RUN, _LINE)] = KIND
    priority: Annotated[int, msgspec.Meta(ge=1, le=3)] = 2
    deadline_seconds: Annotated[float, msgspec.Meta(gt=0, le=100_000_000)] | None = None
    needs: Annotated[list[Annotated[str, _text(MAX_NAME, _LINE)]], msgspec.Meta(max_length=MAX_NEEDS)] = []
    customer_token: Annotated[str, msgspec.Meta(max_length=4096)] | None = None


Submission = TaskBody | Annotated[list[TaskBody], msgspec.Meta(min_length=1, max_length=MOST)]


class TaskError(msgspec.Struct, frozen=True):
    code: str
    message: str


class WebhookShown(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a webhook was told of an end of the task. event: its type. sent_at: when it took that in; next_at: when
    it is tried next. status: of its last answer; null = it gave none.
    """

    name: str
    event: str
    state: Literal["sent", "waiting", "given_up"]
    attempts: int
    sent_at: float | None
    next_at: float | None
    status: int | None


class TaskShown(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="swarm.task"):
    """A task. Times are seconds since 1970. name: the id it was submitted with. attempts: deliveries that came to
    nothing, the present one included. waits_for: the code of what it waits for. error: of its last delivery. result: of
    a task that succeeded, or waits for a person; never in lists. webhooks: what they were told, the oldest end first;
    null in lists.
    """

    id: str
    kind: str
    run: str
    name: str | None
    state: State
    priority: int
    created_at: float
    deadline_at: float | None
    ended_at: float | None
    attempts: int
    cancel_requested: bool
    waits_for: str | None
    error: TaskError | None
    result: Any = None
    webhooks: list[WebhookShown] | None = None


class NotTaken(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="error"):
    """A task of a list that was not accepted."""

    error: TaskError
    name: str | None = None


class TasksTaken(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """What became of a list, in its order."""

    data: list[TaskShown | NotTaken]


class TaskPage(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """The oldest first. next: what `after` has to be for what comes behind; None = nothing was ever accepted. has_more:
    there may be more already.
    """

    data: list[TaskShown]
    has_more: bool
    next: str | None


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """after: `next` of the page before."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = 20
    after: Annotated[str, msgspec.Meta(max_length=200)] | UnsetType = UNSET
    run: Annotated[str, msgspec.Meta(max_length=400)] | UnsetType = UNSET
    state: State | UnsetType = UNSET
    kind: Annotated[str, msgspec.Meta(max_length=400)] | UnsetType = UNSET


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """after: as Last-Event-ID, for clients that cannot set it; 0 = all that is kept."""

    after: Annotated[str, msgspec.Meta(pattern=PLACE)] | UnsetType = UNSET
    run: Annotated[str, msgspec.Meta(max_length=400)] | UnsetType = UNSET
    kind: Annotated[str, msgspec.Meta(max_length=400)] | UnsetType = UNSET


class OneQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """after: as Last-Event-ID, for clients that cannot set it."""

    after: Annotated[str, msgspec.Meta(pattern=PLACE)] | UnsetType = UNSET


class TaskNamed(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    run: str
    name: str | None


class EventShown(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="swarm.event"):
    """What happened to a task, as the data of an event. type: `task.accepted`, `task.cancel_requested`, or `task.` and
    the state that the task got into. created_at: seconds since 1970. attempt: how often it had been leased. code: the
    error that it had then.
    """

    id: str
    type: str
    created_at: float
    task: TaskNamed
    attempt: int
    code: str | None


def shown(task: Seen, told: Sequence[Told] | None = None) -> TaskShown:
    """A task as its client may see it: without words about what stands behind siafu. told: None = it is not shown."""
    error = None
    if task.code and task.state != "succeeded":
        words = task.message if task.code in _OWN_WORDS else f"its operator sees more: siafu tasks show {task.id}"
        error = TaskError(task.code, words)
    tells = task.state == "succeeded" or (task.state == "waiting" and not task.code)
    return TaskShown(
        id=task.id,
        kind=task.kind,
        run=task.run,
        name=name_of(task.once, task.run),
        state=task.state,
        priority=task.priority,
        created_at=task.created_at,
        deadline_at=task.deadline_at,
        ended_at=task.ended_at,
        attempts=task.deliveries,
        cancel_requested=bool(task.cancel_requested),
        waits_for=task.waits_for or None,
        error=error,
        result=msgspec.Raw(task.result.encode()) if tells and task.result is not None else None,
        webhooks=None if told is None else [_webhook_shown(each) for each in told],
    )


def _webhook_shown(told: Told) -> WebhookShown:
    return WebhookShown(
        name=told.webhook,
        event=f"task.{told.what}",
        state=told.state,
        attempts=told.attempts,
        sent_at=told.told_at,
        next_at=told.next_at,
        status=told.status,
    )


def event_shown(event: TaskEvent) -> EventShown:
    return EventShown(
        id=str(event.place),
        type=f"task.{event.what}",
        created_at=event.at,
        task=TaskNamed(id=event.task, kind=event.kind, run=event.run, name=name_of(event.once, event.run)),
        attempt=event.epoch,
        code=event.code or None,
    )


def cursor(place: Cursor) -> str:
    """A place in lists, as clients get it; nothing that they take apart."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def read_cursor(text: str) -> Cursor:
    """Raises: Refused."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text.encode()), type=tuple[float, TaskId])
    except (ValueError, msgspec.DecodeError):
        raise invalid("after", "after is `next` of a page of this list, and nothing else") from None
