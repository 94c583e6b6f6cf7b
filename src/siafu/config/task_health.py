"""A doctor's look at the tasks: does somebody do them, is something stuck, and are the clocks right?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from siafu.config.advice import Row
from siafu.config.databases import kept, stand
from siafu.config.settings import Settings
from siafu.config.tasks import task_workers
from siafu.errors import ConfigError, StoreError
from siafu.store.workers import Health, Present

SKEW = 2.0  # seconds by which a host's clock may be wrong
SLOW = 600.0  # seconds for which a task may be ready before somebody should know


async def task_rows(settings: Settings, shop: str | None) -> list[Row]:
    """Nothing when there are no tasks yet, or their database cannot be read, which is told elsewhere."""
    try:
        (one,) = [each for each in kept(settings, shop) if each.name == "tasks"]
        if (await asyncio.to_thread(stand, one)).state != "current":
            return []
        async with task_workers(settings) as workers:
            present = await workers.all()
            before = time.time()
            health = await workers.health()
            after = time.time()
    except (ConfigError, StoreError):
        return []
    return [backlog_row(health, present), clock_row((before + after) / 2 - health.now, (after - before) / 2, present)]


def backlog_row(health: Health, present: Sequence[Present]) -> Row:
    """What there is to do, who does it, and what is stuck."""
    alive = sum(worker.state != "stale" for worker in present)
    since = "" if health.oldest_ready is None else f" (the oldest for {health.oldest_ready:,.0f} s)"
    found = f"{health.ready:,} ready{since}, {health.leased:,} leased, {health.waiting:,} waiting, {health.dead:,} dead"
    found += f"; {alive} {'worker is' if alive == 1 else 'workers are'} alive"
    if health.ready + health.leased and not alive:
        return Row(check="tasks", state="warn", found=found, advice="nobody does them: siafu worker")
    if health.overdue:
        found += f"; {health.overdue:,} leases are over and were not taken back"
        return Row(check="tasks", state="warn", found=found, advice="look at the workers' logs: siafu workers")
    if (health.oldest_ready or 0.0) > SLOW:
        return Row(
            check="tasks", state="warn", found=found, advice="start more workers, or give them more slots (--max)"
        )
    advice = "to see what was given up: siafu dead list" if health.dead else ""
    return Row(check="tasks", state="ok", found=found, advice=advice)


def clock_row(skew: float, error: float, present: Sequence[Present]) -> Row:
    """skew: seconds by which this host's clock is ahead of the database's, give or take `error`."""
    wrong = {worker.host: worker.skew for worker in present if abs(worker.skew) > SKEW}
    if abs(skew) - error > SKEW:
        wrong["this host"] = skew
    if not wrong:
        return Row(check="clocks", state="ok", found=f"within {max(SKEW, error):,.0f} s of the database's")
    told = ", ".join(f"{host} by {seconds:+,.0f} s" for host, seconds in sorted(wrong.items()))
    advice = "leases go by the database's clock and hold; identities and days' budgets do not: set the clocks (NTP)"
    return Row(check="clocks", state="warn", found=f"differ from the database's: {told}", advice=advice)
