"""What a process does that is going to be killed or stopped: it makes refunds, the same ones as its siblings.

one ORDER   one refund, of 3,000 under the order's number as its key
ten NAME    ten refunds of 600 at once on order 1001, and ten that are one request on order 1002, both of 1,000
many NAME   refunds without end, chosen at random from a growing list; NAME is "<when the list began>-<number>"
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time

from siafu.apps.support.shop.money.payments import HttpPayments
from siafu.errors import StoreError

from .kit import LEASE, ask, open_db, order, shop

ORDERS, TOTAL = 500, 1_000_000_000
BEGUN_A_SECOND = 10


def run(database: str, payments: str, what: str, name: str) -> None:
    logging.disable()
    asyncio.run({"one": one, "ten": ten, "many": many}[what](database, payments, name))


async def one(database: str, payments: str, order_id: str) -> None:
    await shop(open_db(database), HttpPayments(payments)).refund(ask(order_id, 3_000, order=order(order_id)))


async def ten(database: str, payments: str, name: str) -> None:
    refunds = shop(open_db(database), HttpPayments(payments), owner=name)
    own = [ask(f"{name}{n}", 600, order=order("1001", 1_000)) for n in range(10)]
    same = [ask("same", 600, order=order("1002", 1_000))] * 10
    await asyncio.gather(*map(refunds.refund, own + same))


async def many(database: str, payments: str, name: str) -> None:
    db = None
    while db is None:
        with contextlib.suppress(StoreError):  # a stopped sibling may hold SQLite's lock
            db = open_db(database)
    refunds = shop(db, HttpPayments(payments), owner=name, lease=LEASE)
    rng, began = random.Random(name), float(name.partition("-")[0])

    async def asker() -> None:
        while True:
            newest = int((time.time() - began) * BEGUN_A_SECOND) + 1
            n = rng.randrange(max(0, newest - 20), newest)
            with contextlib.suppress(StoreError):  # asking again is safe
                # Each request has an amount of its own, so the provider's ledger alone shows what was paid twice.
                await refunds.refund(ask(f"n{n}", 100 + n, order=order(str(3000 + n % ORDERS), TOTAL), run=name))
            await asyncio.sleep(0.1)

    async def completer() -> None:
        while True:
            with contextlib.suppress(StoreError):
                await refunds.complete()
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(asker())
        tasks.create_task(completer())
