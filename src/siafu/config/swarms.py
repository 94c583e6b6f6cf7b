"""The support swarm behind `siafu serve`: its tools opened, its work ready to be asked for one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from siafu.agents.task import Surroundings
from siafu.apps.support.asking import answered
from siafu.apps.support.job import SupportJob
from siafu.apps.support.requests import CustomerRequest
from siafu.apps.support.routes import Tier
from siafu.apps.support.swarm import Support
from siafu.border.secrets import Secret
from siafu.config.assembly import tool_patience
from siafu.config.servers import support_desk
from siafu.config.settings import Settings
from siafu.errors import ConfigError, StoreError
from siafu.gateway.endpoint import Endpoint
from siafu.observe import spans
from siafu.observe.events import Observer
from siafu.pace.clock import SystemClock
from siafu.swarm.results import MapResult
from siafu.tools.traced import TracedTools

NAMESPACE = "siafu/"  # how the names of models begin that are swarms


class SupportSwarm:
    """Answers one customer's request at a time, any number at once. The tool servers start with the first."""

    def __init__(self, job: SupportJob, around: Surroundings, key: Secret | None) -> None:
        self._job = job
        self._around = around
        self._key = key
        self._ready = False
        self._lock = asyncio.Lock()

    async def ask(self, request: CustomerRequest, *, run: str, tenant: str) -> MapResult:
        """As `answered`. Raises: ConfigError, ToolUnavailable when the shop's tools cannot be used."""
        await self._prepare()
        return await answered(self._job, request, self._around, run=run, tenant=tenant)

    async def _prepare(self) -> None:
        async with self._lock:
            if not self._ready and self._around.tools is not None:
                await self._job.ready(self._around.tools, self._key)
                self._ready = True


@contextlib.asynccontextmanager
async def support_swarm(
    settings: Settings, endpoint: Endpoint, observer: Observer
) -> AsyncIterator[SupportSwarm | str]:
    """The swarm, its models called through `endpoint`; or why the settings do not allow for one."""
    async with contextlib.AsyncExitStack() as stack:
        swarm: SupportSwarm | str
        try:
            models: dict[Tier, str] = {"strong": settings.model("strong"), "cheap": settings.model("cheap")}
            desk = await stack.enter_async_context(support_desk(settings))
        except (ConfigError, StoreError) as error:
            swarm = error.message
        else:
            tools = desk.tools if (tracer := spans.tracer()) is None else TracedTools(desk.tools, tracer)
            around = Surroundings(
                endpoint=endpoint,
                clock=SystemClock(),
                tools=tools,
                denied=desk.denied,
                observer=observer,
                patience=tool_patience(settings, observer, served=True),
            )
            swarm = SupportSwarm(SupportJob(Support(models=models)), around, desk.identity_key)
        yield swarm
