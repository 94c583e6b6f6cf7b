"""Webhooks: the end of a task is told to the addresses that the settings name, at least once, signed as Standard
Webhooks 1.0 says. What is to be told stands in the store until it was taken, so nothing is lost with this process, and
several processes may share the work.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import hashlib
import hmac
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from siafu.config.task_house import TaskHouse
from siafu.config.webhooks import Webhook, signing_key
from siafu.errors import StoreError
from siafu.pace.clock import Clock
from siafu.service.tasks.posting import SECONDS, Poster
from siafu.store.task_records import name_of
from siafu.store.webhooks import Delivery

AT_ONCE = 8  # deliveries to one webhook
LOOK_SECONDS = 1.0
CLAIM_SECONDS = 4 * SECONDS  # after which a delivery is another process's, if this one says nothing of it
# Seconds from one try to the next, about 28 hours in all; then it is given up.
PAUSES = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 36_000.0)
GONE = 410  # the answer of who wants to hear no more of it
log = logging.getLogger("siafu")


def pause(attempts: int, draw: float) -> float | None:
    """Seconds until the next try, after so many; None = there is no further one. draw: 0 to 1, spreads them out."""
    if attempts > len(PAUSES):
        return None
    return PAUSES[attempts - 1] * (0.9 + 0.2 * draw)


def message(delivery: Delivery) -> bytes:
    """What is posted: the same whenever it is told. It names the task and its end; what came of it is to be asked for,
    so that no customer's words go where they were not meant to.
    """
    at = datetime.datetime.fromtimestamp(delivery.at, tz=datetime.UTC)
    told = {
        "type": f"task.{delivery.what}",
        "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "data": {
            "id": delivery.task,
            "object": "swarm.task",
            "kind": delivery.kind,
            "run": delivery.run,
            "name": name_of(delivery.once, delivery.run),
            "tenant": delivery.tenant,
            "state": delivery.what,
            "code": delivery.code or None,
        },
    }
    return msgspec.json.encode(told)


def signed(key: bytes, id: str, at: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks. at: seconds since 1970."""
    digest = hmac.new(key, f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


class Teller:
    """Tells one webhook. Runs until it is cancelled; what it is about to tell then is told by the next one."""

    def __init__(self, name: str, webhook: Webhook, house: TaskHouse, clock: Clock, poster: Poster) -> None:
        self._name = name
        self._webhook = webhook
        self._key = signing_key(webhook.secret)
        self._house = house
        self._clock = clock
        self._poster = poster
        self._under_way: set[asyncio.Task[Any]] = set()
        self._well = True

    async def run(self) -> None:
        begun = False
        try:
            while True:
                try:
                    if not begun:
                        await self._house.views.settle()
                        await self._house.deliveries.begin(self._name)
                        begun = True
                    await self._look()
                except StoreError as error:
                    self._say(f"its deliveries cannot be read: {error.message}")
                except Exception:
                    if self._well:
                        log.exception("webhook %s cannot be told; it is tried again", self._name)
                    self._well = False
                await self._clock.sleep(LOOK_SECONDS)
        finally:
            for task in self._under_way:
                task.cancel()

    async def _look(self) -> None:
        """Start what is due, as much as there is room for."""
        await self._house.views.settle()
        while await self._house.deliveries.collect(self._name, self._webhook.tenants):
            pass
        while room := AT_ONCE - len(self._under_way):
            found = await self._house.deliveries.claim(self._name, room, CLAIM_SECONDS)
            for each in found:
                task = asyncio.create_task(self._tell(each))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            if len(found) < room:
                return
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)

    async def _tell(self, delivery: Delivery) -> None:
        body = message(delivery)
        headers = signed(self._key, delivery.id, int(self._clock.wall()), body)
        answer = await self._poster.post(self._webhook.url, body, headers)
        try:
            if isinstance(answer, int) and 200 <= answer < 300:
                await self._house.deliveries.done(delivery.id, answer)
                self._well = True
                return
            wait = None if answer == GONE else pause(delivery.attempts, random.random())
            status = answer if isinstance(answer, int) else None
            said = f"it answered {answer}" if isinstance(answer, int) else answer
            await self._house.deliveries.failed(delivery.id, said, wait, status=status)
        except StoreError as error:  # it is due again by itself
            self._say(f"it cannot be noted what became of a delivery: {error.message}")
            return
        if wait is None:
            log.warning("webhook %s: %s; the end of task %s is not told", self._name, said, delivery.task)
        else:
            self._say(f"{said}; it is tried again")

    def _say(self, text: str) -> None:
        """Once, until it goes well again."""
        if self._well:
            log.warning("webhook %s: %s", self._name, text)
        self._well = False


@contextlib.asynccontextmanager
async def told_webhooks(house: TaskHouse | str, clock: Clock) -> AsyncIterator[None]:
    """Tell all webhooks while the block runs."""
    async with contextlib.AsyncExitStack() as stack:
        if not isinstance(house, str):
            for name, webhook in house.webhooks.items():
                poster = Poster(anywhere=webhook.anywhere)
                stack.push_async_callback(poster.aclose)
                telling = Teller(name, webhook, house, clock, poster).run()
                stack.push_async_callback(_ended, asyncio.create_task(telling, name=f"siafu webhook {name}"))
        yield


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
