"""A process to be killed or stopped: makes refunds, the same ones as its siblings.

python -m money.child DATABASE PAYMENTS one        one refund, of 3,000 on order 1001 under the key 1
python -m money.child DATABASE PAYMENTS many SEED  refunds without end, chosen at random from a growing list
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from siafu.apps.support.shop.money.payments import HttpPayments

from .kit import LEASE, ask, open_db, order, shop

ORDERS, TOTAL, AMOUNT = 20, 10_000_000, 100
BEGUN_A_SECOND = 20


async def one(database: str, payments: str, order_id: str) -> None:
    await shop(open_db(database), HttpPayments(payments)).refund(ask(order_id, 3_000, order=order(order_id)))


async def many(database: str, payments: str, seed: str) -> None:
    refunds = shop(open_db(database), HttpPayments(payments), owner=seed, lease=LEASE)
    rng, epoch = random.Random(seed), float(seed.partition("-")[0])

    async def asker() -> None:
        while True:
            newest = int((time.time() - epoch) * BEGUN_A_SECOND) + 1
            n = rng.randrange(max(0, newest - 30), newest)
            await refunds.refund(ask(f"n{n}", AMOUNT, order=order(str(3000 + n % ORDERS), TOTAL)))
            await asyncio.sleep(0.005)

    async def completer() -> None:
        while True:
            await refunds.complete()
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(asker())
        tasks.create_task(completer())


if __name__ == "__main__":
    where, provider, what, name = sys.argv[1:]
    asyncio.run({"one": one, "many": many}[what](where, provider, name))
