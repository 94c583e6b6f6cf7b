"""The policies beside each other on a real model server with slots, which answers so many calls at once and lets others
wait. Agents, more than slots, ask all the time through siafu as its users have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple, get_args
from urllib.parse import urlsplit

import msgspec

from siafu.bench.demo.servers import model_server
from siafu.border.text import preview
from siafu.config.assembly import Front, open_gateway
from siafu.config.budgets import open_accounts
from siafu.config.settings import Settings
from siafu.config.upstreams import open_ways
from siafu.errors import MeasurementInvalid, SiafuError
from siafu.gateway.chat import ChatRequest
from siafu.gateway.client import Gateway
from siafu.gateway.endpoint import End
from siafu.gateway.limits import PolicyName
from siafu.gateway.meter import MemoryLedger
from siafu.observe.calls import CallContext
from siafu.observe.figures import nearest_rank
from siafu.pace.clock import SystemClock

POLICIES = ("slots", *get_args(PolicyName))  # slots: fixed at the server's slots; the others know nothing of them
PROMPTS = ("short", "long", "mixed", "whole")
WORDS = ("river", "stone", "market", "garden", "window", "letter", "silver", "engine", "bridge", "forest", "winter")
SHORT, LONG = 6, 60  # words of a prompt
MOST_TOKENS = range(4, 13)  # of an answer
KEYS = ("SIAFU_API_KEY", "OPENAI_API_KEY")  # for servers that want one
WATCH = 0.02  # seconds between looks at the limiter
PATIENCE = 600.0  # seconds without a sign of life from the server


class Server(NamedTuple):
    """`restart`: come back at the same address with so many slots; None = it cannot be told to."""

    url: str
    model: str
    restart: Callable[[int], Awaitable[None]] | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`calls` of each row, by `agents` at once. `policies`: of `POLICIES`. `prompts`: of `PROMPTS`; "whole" is mixed
    ones, answered in one piece instead of as a stream.
    """

    slots: int
    agents: int
    calls: int
    policies: Sequence[str] = POLICIES
    prompts: Sequence[str] = PROMPTS


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy with one kind of prompts, at `slots` slots. `limit` and `at_once`: calls that were allowed and under
    way, medians of the last third. Seconds of a call from its sending on: `p50`, `p95`, and to the `first_token` at p50
    (None = answers came in one piece). `failed`: calls without an answer.
    """

    prompts: str
    policy: str
    slots: int
    limit: float
    at_once: float
    answers_per_s: float
    p50: float
    p95: float
    first_token: float | None
    failed: int


async def compare(server: Server, load: Load, say: Callable[[str], None]) -> list[Row]:
    """A row for each policy and kind of prompts; another after half of the slots are gone, where that can be had.

    Raises: MeasurementInvalid when a row has no answers; ConfigError, DemoFailed.
    """
    found, running = [], load.slots
    halves = [load.slots // 2] if server.restart is not None and load.slots > 1 else []
    for prompts in load.prompts:
        for name in load.policies:
            limits = {"concurrency": load.slots} if name == "slots" else {"policy": name}
            async with _gateway(server.url, limits) as gateway:
                for slots in (load.slots, *halves):
                    say(f"{prompts} prompts, {name}, {slots} slots")
                    if server.restart is not None and slots != running:
                        await server.restart(slots)
                        running = slots
                    crowd = _Crowd(gateway, server.model, prompts, Random(f"{prompts} {name} {slots}"))
                    found.append(await crowd.row(load, name, slots))
    return found


@contextlib.asynccontextmanager
async def model_file(path: Path, slots: int, folder: Path) -> AsyncIterator[Server]:
    """Serve a model file while the block runs. Raises: ConfigError, DemoFailed."""
    async with contextlib.AsyncExitStack() as stack:
        url, model = await stack.enter_async_context(model_server(path, folder, slots=slots))

        async def restart(count: int) -> None:
            await stack.aclose()
            port = urlsplit(url).port or 0
            await stack.enter_async_context(model_server(path, folder, slots=count, port=port))

        yield Server(url, model, restart)


@contextlib.asynccontextmanager
async def _gateway(url: str, limits: Mapping[str, Any]) -> AsyncIterator[Gateway]:
    key = next((f"env:{name}" for name in KEYS if os.environ.get(name)), "sk-bench")
    endpoint = {"base_url": url, "api_key": key, "idle_seconds": PATIENCE, "total_seconds": PATIENCE}
    settings = Settings.model_validate({"endpoint": endpoint, "limits": limits})
    async with (
        open_accounts(settings, None, SystemClock()) as accounts,
        open_ways(settings) as ways,
        open_gateway(settings, ways, MemoryLedger(), accounts, Front()) as gateway,
    ):
        yield gateway


class _Crowd:
    """Agents that always have a next call."""

    def __init__(self, gateway: Gateway, model: str, prompts: str, rng: Random) -> None:
        self._gateway, self._model, self._prompts, self._rng = gateway, model, prompts, rng
        self._done: list[End] = []
        self._errors: list[str] = []
        self._seen: list[tuple[int, int]] = []  # calls that were allowed and under way, again and again

    async def row(self, load: Load, policy: str, slots: int) -> Row:
        began = time.monotonic()
        calls = iter(range(load.calls))

        async def agent() -> None:
            for number in calls:
                await self._call(number)
            watch.cancel()  # from now on there are fewer agents

        watch = asyncio.create_task(self._watch())
        try:
            await asyncio.gather(*(agent() for _ in range(load.agents)))
        finally:
            watch.cancel()
        took = time.monotonic() - began
        if not self._done:
            raise MeasurementInvalid(f"no call was answered: {self._errors[0]}")
        last = self._seen[len(self._seen) * 2 // 3 :]
        seconds = [end.seconds for end in self._done]
        first = [end.first_token for end in self._done if end.first_token is not None]
        return Row(
            prompts=self._prompts,
            policy=policy,
            slots=slots,
            limit=median(limit for limit, _ in last),
            at_once=median(at_once for _, at_once in last),
            answers_per_s=len(self._done) / took,
            p50=nearest_rank(seconds, 50),
            p95=nearest_rank(seconds, 95),
            first_token=nearest_rank(first, 50) if first else None,
            failed=len(self._errors),
        )

    async def _watch(self) -> None:
        lane = self._gateway.lanes[0].endpoint
        while True:
            self._seen.append((lane.limit, lane.in_flight))
            await asyncio.sleep(WATCH)

    async def _call(self, number: int) -> None:
        try:
            reply = await self._gateway.open(self._request(), CallContext(run="bench", task=str(number)))
            await reply.message()
        except SiafuError as error:
            self._errors.append(preview(error.message))
        else:
            reply.on_end(self._done.append)

    def _request(self) -> ChatRequest:
        """Words at random, so that the server hardly knows the beginning of a prompt."""
        length = {"short": SHORT, "long": LONG}.get(self._prompts) or self._rng.choice((SHORT, LONG))
        text = " ".join(self._rng.choices(WORDS, k=length))
        return ChatRequest(
            model=self._model,
            messages=[{"role": "user", "content": f"{text}. Tell a story with these words."}],
            max_tokens=self._rng.choice(MOST_TOKENS),
            stream=self._prompts != "whole",
        )
