"""One customer's request answered by itself: no file, no journal."""

from __future__ import annotations

from typing import Any

from siafu.agents.task import Surroundings
from siafu.apps.filerun.job import Task
from siafu.apps.support.job import SupportJob
from siafu.apps.support.requests import CustomerRequest
from siafu.swarm.map import map_items
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapError, MapResult


async def answered(
    job: SupportJob, request: CustomerRequest, around: Surroundings, *, run: str, tenant: str = ""
) -> MapResult:
    """The result of `request`, whose value is an `Answer`; an error also when the work stopped before it (no key, no
    credit, ...). job: ready to use the tools of `around`. run: the account that pays for its model calls.

    Cancelling gives the work up; what it did to the world is kept by the effect contract.
    """

    async def work(task: Task, ctx: Any) -> Any:
        return await job.work(task.item, ctx)

    item = Task(request.id, request)
    options = MapOptions(
        run=run,
        concurrency=1,
        key=lambda task: task.key,
        user=lambda task: task.item.customer,
        tenant=lambda _: tenant,
    )
    async with map_items(work, [item], around=around, store=None, options=options) as results:
        async for result in results:
            return result
    end = results.summary
    error = MapError(end.stopped, end.stop_message)
    return MapResult(key=request.id, index=0, item=item, status="error", error=error)
