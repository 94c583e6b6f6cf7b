"""`/v1/swarm/tasks`: tasks are accepted and told of. The work is done by `siafu worker`, here or elsewhere."""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from typing import Any

import msgspec

from siafu.apps.support.requests import CustomerRequest, new_task, parse_request
from siafu.border.secrets import Secret
from siafu.config.task_house import TaskHouse
from siafu.errors import StoreError
from siafu.pace.clock import Clock
from siafu.service.access import Holder
from siafu.service.exchange import Exchange
from siafu.service.refusals import INTERNAL, Refused, invalid
from siafu.service.route import Route
from siafu.service.shapes import MAX_ONCE, TRACED, given, once_of, read_body, read_query, word
from siafu.service.swarms import CUSTOMER, SUPPORT, customer_of
from siafu.service.tasks import shapes
from siafu.service.tasks.events import Listeners, Stream
from siafu.service.tasks.shapes import (
    MAX_NAME,
    TASK_ID,
    NotTaken,
    PageQuery,
    Submission,
    TaskBody,
    TaskPage,
    TasksTaken,
    shown,
)
from siafu.store.task_events import Seen, Whose
from siafu.store.task_records import BOUND, TERMINAL, Accepted, NewTask, NotAccepted, task_key

TASKS, EVENTS = "/v1/swarm/tasks", "/v1/swarm/events"
MAX_BODY = 2**20  # bytes
NOTICE_SECONDS = 60.0  # between two warnings that nobody works
_WHO = {CUSTOMER.decode(): word("A signed token that proves for which customer; see `siafu keys sign`")}
_ONCE = word("Names tasks without an id: sent again they are the same", max_length=MAX_ONCE)
_FROM = {
    "last-event-id": word("The id of the last event that was seen; it goes on behind it", pattern=f"{shapes.PLACE}|^$")
}
_ONE = {200: shapes.TaskShown}
ROUTES = (
    Route(
        method="POST", path=TASKS, name="submitTasks", summary="Submit a task, or a list of them",
        body=Submission, says={202: shapes.TaskShown | TasksTaken},
        headers={"idempotency-key": _ONCE, **_WHO, **TRACED},
    ),
    Route(method="GET", path=TASKS, name="listTasks", summary="List tasks", query=PageQuery, says={200: TaskPage}),
    Route(method="GET", path=TASKS + "/{id}", name="getTask", summary="Look at a task", says=_ONE, id=shapes.TaskId),
    Route(
        method="POST", path=TASKS + "/{id}/cancel", name="cancelTask", summary="Cancel a task", says=_ONE,
        id=shapes.TaskId,
    ),
    Route(
        method="POST", path=TASKS + "/{id}/retry", name="retryTask", says=_ONE, id=shapes.TaskId,
        summary="Have a task begin again that ended otherwise than well",
    ),
    Route(
        method="GET", path=TASKS + "/{id}/events", name="followTask", summary="Follow a task until it has ended",
        query=shapes.OneQuery, headers=_FROM, says={200: shapes.EventShown, 204: None}, stream="only",
        id=shapes.TaskId,
    ),
    Route(
        method="GET", path=EVENTS, name="followTasks", summary="Follow all tasks",
        query=shapes.EventsQuery, headers=_FROM, says={200: shapes.EventShown}, stream="only",
    ),
)  # fmt: skip
log = logging.getLogger("siafu")


class TaskApi:
    """identity_key: checks who a customer is; None = tokens cannot be checked."""

    def __init__(self, house: TaskHouse, identity_key: Secret | None, clock: Clock) -> None:
        self._house = house
        self._identity_key = identity_key
        self._clock = clock
        self._warned = float("-inf")
        self.listeners = Listeners(house.views, house.bell, clock)

    async def answer(self, x: Exchange, route: Route, id: str, holder: Holder | None, body: bytes) -> Stream | None:
        """Answer a request. What is returned is a stream that is still to be sent. Raises: Refused."""
        try:
            if route.name == "submitTasks":
                await self._submit(x, holder, body)
            elif route.name == "listTasks":
                await self._list(x, holder)
            elif route.name == "followTasks":
                return await self._follow(x, holder)
            elif route.name == "followTask":
                return await self._follow_one(x, id, holder)
            else:
                task = await self._task(id, holder)
                if route.name != "getTask":
                    task = await (self._cancel if route.name == "cancelTask" else self._retry)(task, holder)
                await x.answer(msgspec.json.encode(shown(task, await self._house.deliveries.told(task.id))))
        except StoreError as error:
            message = f"{INTERNAL}: its store cannot be used now. What was sent may have been done or not; try again"
            raise Refused(503, message, code="store_unavailable", log=error.message) from error
        return None

    # ---- submitting ---------------------------------------------------------------------------------------------

    async def _submit(self, x: Exchange, holder: Holder | None, body: bytes) -> None:
        asked: TaskBody | list[TaskBody] = read_body(body, Submission)
        many = asked if isinstance(asked, list) else [asked]
        _check_terms(holder)
        once = once_of(x)
        names = [each.id or (_name(once, n) if once else f"req_{uuid.uuid4().hex}") for n, each in enumerate(many)]
        tasks = [self._new(x, holder, each, name) for each, name in zip(many, names, strict=True)]
        if len({task.once for task in tasks}) < len(tasks):
            raise invalid("id", "two tasks of the list have the same id in the same run")
        answers = await self._house.store.accept(await self._needing(tasks, holder))
        seen = await self._house.views.these([each.id for each in answers], whose(holder))
        found = [_taken(name, answer, seen.get(answer.id)) for name, answer in zip(names, answers, strict=True)]
        told: Any = TasksTaken(data=found)
        if not isinstance(asked, list):
            told = found[0]
            if isinstance(told, NotTaken):
                raise Refused(409, told.error.message, code=told.error.code, param="id", again=False)
        await x.answer(msgspec.json.encode(told), await self._notice(), status=202)

    def _new(self, x: Exchange, holder: Holder | None, asked: TaskBody, name: str) -> NewTask:
        key = None if holder is None else holder.key
        customer = customer_of(x, key, self._identity_key, self._clock.wall(), token=asked.customer_token)
        fields = msgspec.structs.asdict(asked.input)
        request: CustomerRequest = parse_request({"id": name, "customer": customer, **fields})
        task = new_task(
            request, run=asked.run, tenant="" if key is None else key.terms.tenant, priority=asked.priority,
            deadline=asked.deadline_seconds,
        )  # fmt: skip
        bound = whose(holder).customer  # keys of different customers have names of their own
        once = task.once if bound is None else f"{task.once}{BOUND}{bound}"
        return msgspec.structs.replace(task, once=once, needs=tuple(asked.needs), trace=x.header(b"traceparent"))

    async def _needing(self, tasks: list[NewTask], holder: Holder | None) -> list[NewTask]:
        """The tasks, with ids for the names of what they need; a name that there is not stays, and is unknown."""
        bound = whose(holder).customer
        tail = "" if bound is None else f"{BOUND}{bound}"
        keys = {
            (task.run, need): f"{task_key(task.run, need)}{tail}"
            for task in tasks for need in task.needs if not re.fullmatch(TASK_ID, need)
        }  # fmt: skip
        known = await self._house.desk.known(whose(holder).tenant, sorted(set(keys.values())))
        return [
            msgspec.structs.replace(
                task, needs=tuple(known.get(keys.get((task.run, need), ""), need) for need in task.needs)
            )
            for task in tasks
        ]

    async def _notice(self) -> list[tuple[bytes, bytes]]:
        """A header that says so when nobody does the work; the operator is told, too."""
        if await self._house.workers.anybody():
            return []
        if (now := self._clock.now()) > self._warned + NOTICE_SECONDS:
            self._warned = now
            log.warning("a task was accepted, and no worker is there; start one: siafu worker")
        return [(b"x-siafu-notice", b"accepted, but no worker is there")]

    # ---- looking and changing -----------------------------------------------------------------------------------

    async def _task(self, id: str, holder: Holder | None) -> Seen:
        task = (await self._house.views.these([id], whose(holder))).get(id)
        if task is None:
            raise Refused(404, f"there is no task {id[:60]!r}", code="task_not_found", param="id", again=False)
        return task

    async def _list(self, x: Exchange, holder: Holder | None) -> None:
        query = read_query(x.scope["query_string"], PageQuery)
        after = shapes.read_cursor(query.after) if query.after else None
        filters = given(query, "run", "state", "kind")
        page, more = await self._house.views.page(whose(holder), filters, limit=query.limit, after=after)
        last = more or ((page[-1].created_at, page[-1].id) if page else after)
        told = TaskPage(
            data=[shown(each) for each in page],
            has_more=more is not None,
            next=None if last is None else shapes.cursor(last),
        )
        await x.answer(msgspec.json.encode(told))

    async def _cancel(self, task: Seen, holder: Holder | None) -> Seen:
        await self._house.desk.cancel([task.id])
        return await self._task(task.id, holder)

    async def _retry(self, task: Seen, holder: Holder | None) -> Seen:
        if not await self._house.desk.retry([task.id]):
            why = "something that it needs did not succeed" if task.state in TERMINAL else f"it is {task.state}"
            why = "it has succeeded" if task.state == "succeeded" else why
            raise Refused(409, f"the task cannot begin again: {why}", code="not_retryable", again=False)
        return await self._task(task.id, holder)

    # ---- following ----------------------------------------------------------------------------------------------

    async def _follow(self, x: Exchange, holder: Holder | None) -> Stream:
        query = read_query(x.scope["query_string"], shapes.EventsQuery)
        filters = given(query, "run", "kind")
        return await self.listeners.join(x, whose(holder), filters, holder, after=_after(x, query))

    async def _follow_one(self, x: Exchange, id: str, holder: Holder | None) -> Stream | None:
        after = _after(x, read_query(x.scope["query_string"], shapes.OneQuery)) or 0
        mine, task, views = whose(holder), await self._task(id, holder), self._house.views
        only = {"id": task.id}
        if task.state in TERMINAL and not await views.events_of(
            mine, only, after=after, upto=await views.settle(), limit=1
        ):
            await x.begin(204, [])  # which says: a client that has seen the end has no reason to come again
            await x.write(b"", more=False)
            return None
        return await self.listeners.join(x, mine, only, holder, after=after)


def whose(holder: Holder | None) -> Whose:
    """Whose tasks the holder of a key may see: those of its tenant, and of its customer if it is bound to one."""
    if holder is None:
        return Whose(tenant="")
    return Whose(tenant=holder.key.terms.tenant, customer=holder.key.terms.customer or None)


_REFUSED = {
    "key_reused": "this id, or Idempotency-Key, stands for another task of this run, {}; give it another one",
    "need_unknown": "it needs the task {}, which there is not: needs are ids, or names of tasks that an "
    "earlier request submitted in the same run",
    "need_failed": "it needs the task {}, which did not succeed",
    "task_not_found": "the task {} was accepted, and removed at once",
}


def _check_terms(holder: Holder | None) -> None:
    """Raises: Refused when the key may not submit tasks."""
    if holder is None:
        return
    if not holder.key.terms.allows(SUPPORT):
        message = f"this client key may not use {SUPPORT}, so it may not submit such tasks"
        raise Refused(403, message, code="model_not_allowed", param="kind", again=False)
    if holder.key.terms.has_budget:
        message = "this client key has a budget, and workers do not charge tasks to it: use a key without one"
        raise Refused(403, message, code="budget_not_kept", again=False)


def _name(once: str, n: int) -> str:
    return f"once_{hashlib.sha256(once.encode()).hexdigest()[:32]}_{n}"[:MAX_NAME]


def _taken(name: str, answer: Accepted | NotAccepted, seen: Seen | None) -> shapes.TaskShown | NotTaken:
    """seen: None when it was removed in this moment."""
    if isinstance(answer, Accepted) and seen is not None:
        return shown(seen)
    code = answer.code if isinstance(answer, NotAccepted) else "task_not_found"
    return NotTaken(name=name, error=shapes.TaskError(code, _REFUSED[code].format(answer.id)))


def _after(x: Exchange, query: shapes.OneQuery | shapes.EventsQuery) -> int | None:
    """The place that a client has seen; None = it says none. Raises: Refused."""
    text = x.header(b"last-event-id") or given(query, "after").get("after")
    if not text:
        return None
    if not re.search(shapes.PLACE, text):
        raise invalid("last-event-id", "Last-Event-ID is the id of an event that was seen")
    return int(text)
