"""The support swarm behind `siafu serve`: its tools opened, its work ready to be asked for one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from siafu.agents.task import Surroundings
from siafu.apps.filerun.job import Task
from siafu.apps.support.job import SupportJob
from siafu.apps.support.requests import CustomerRequest
from siafu.apps.support.routes import Tier
from siafu.apps.support.swarm import Support
from siafu.border.secrets import Secret
from siafu.config.servers import support_desk
from siafu.config.settings import Settings
from siafu.errors import ConfigError, StoreError
from siafu.gateway.endpoint import Endpoint
from siafu.pace.clock import SystemClock
from siafu.swarm.map import map_items
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapError, MapResult


class SupportSwarm:
    """Answers one customer's request at a time, any number at once. The tool servers start with the first."""

    def __init__(self, job: SupportJob, around: Surroundings, key: Secret | None) -> None:
        self._job = job
        self._around = around
        self._key = key
        self._ready = False
        self._lock = asyncio.Lock()

    async def ask(self, request: CustomerRequest, *, run: str, tenant: str) -> MapResult:
        """The result of `request`, whose value is an `Answer`. run: the account that pays for its model calls.

        Raises: ConfigError, ToolUnavailable when the shop's tools cannot be used. Cancelling gives the work up; what it
        did to the world is kept by the effect contract.
        """
        await self._prepare()

        async def work(task: Task, ctx: Any) -> Any:
            return await self._job.work(task.item, ctx)

        item = Task(request.id, request)
        options = MapOptions(
            run=run,
            concurrency=1,
            key=lambda task: task.key,
            user=lambda task: task.item.customer,
            tenant=lambda _: tenant,
        )
        async with map_items(work, [item], around=self._around, store=None, options=options) as results:
            async for result in results:
                return result
        end = results.summary
        error = MapError(end.stopped, end.stop_message)
        return MapResult(key=request.id, index=0, item=item, status="error", error=error)

    async def _prepare(self) -> None:
        async with self._lock:
            if not self._ready and self._around.tools is not None:
                await self._job.ready(self._around.tools, self._key)
                self._ready = True


@contextlib.asynccontextmanager
async def support_swarm(settings: Settings, endpoint: Endpoint) -> AsyncIterator[SupportSwarm | str]:
    """The swarm, its models called through `endpoint`; or why the settings do not allow for one."""
    async with contextlib.AsyncExitStack() as stack:
        swarm: SupportSwarm | str
        try:
            models: dict[Tier, str] = {"strong": settings.model("strong"), "cheap": settings.model("cheap")}
            desk = await stack.enter_async_context(support_desk(settings))
        except (ConfigError, StoreError) as error:
            swarm = error.message
        else:
            around = Surroundings(endpoint=endpoint, clock=SystemClock(), tools=desk.tools, denied=desk.denied)
            swarm = SupportSwarm(SupportJob(Support(models=models)), around, desk.identity_key)
        yield swarm
