"""Waiting for a tool server that has answered before and is away: one call knocks for all, with back-off and jitter.

Only faults that name their server (`ToolFault.away`) are waited for: the call was not sent, or only reads, or is made
again under the effect contract. A call begins anew at the outermost tool set, so that identities, arguments and
definitions are looked at again: what comes back may be another version.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from random import Random
from typing import Any

from siafu.errors import Away, ToolFault, ToolUnavailable
from siafu.observe.calls import CallContext
from siafu.observe.events import LaneClosed, LaneOpened, Observer, Waited, nobody
from siafu.pace.clock import Clock, SystemClock
from siafu.tools.toolset import ToolResult, ToolSet

TIMES = 3  # that one call waits: it may be what the server dies of
FIRST, SOON, LONGEST = 0.5, 2.0, 30.0  # seconds between knocks
SPREAD = 0.02  # seconds for each call that has waited, over which they leave: it has just started


def rest(knocks: int, away: float, rng: Random) -> float:
    """Seconds until the next knock, after so many. away: seconds since it could not be reached first.

    Doubled from 0.5 to 2 s; then a twentieth of the time it is away, up to 30 s, so that the end is seen soon. Up to a
    half is taken off at random, as other processes knock too.
    """
    most = min(FIRST * 2.0 ** min(knocks, 10), max(SOON, away / 20), LONGEST)
    return most * rng.uniform(0.5, 1.0)


class _Gate:
    """One server that is away. knocks_at: when the next knock is due. knocking: somebody waits for that moment, or
    knocks just now. news: set when that is over. waiting: calls that wait for it.
    """

    def __init__(self, server: Away, now: float, pause: float) -> None:
        self.server = server
        self.lane = f"MCP server {server.name}"
        self.began = self.failed_at = now
        self.knocks = 0
        self.knocks_at = now + pause
        self.knocking = self.back = False
        self.news = asyncio.Event()
        self.waiting = 0


class ToolPatience:
    """Makes tool calls, which wait for servers that are away. seconds: for how long since one could not be reached
    first; 0 = not at all. After that calls fail at once, until it answers.
    """

    def __init__(self, seconds: float, *, clock: Clock, rng: Random, observer: Observer = nobody) -> None:
        self._seconds = seconds
        self._clock = clock
        self._rng = rng
        self._observer = observer
        self._gates: dict[Away, _Gate] = {}

    @property
    def away(self) -> bool:
        """Whether a server is away now, as far as is known."""
        return any(not self._old(gate) for gate in self._gates.values())

    async def call(self, tools: ToolSet, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """`tools.call`, when its server can be reached.

        Raises: as that does; the fault of a server that is away when it does not come back in time, or when the call's
        deadline comes before the next knock. Cancelling ends the wait.
        """
        if self._gates and (gate := await self._before(tools, name)):
            await self._back(gate, context)  # if not, the call says why
        for _ in range(TIMES):
            try:
                return await tools.call(name, arguments, context)
            except ToolFault as fault:
                if fault.away is None or not self._seconds:
                    raise
                if not await self._back(self._shut(fault.away, context.run), context):
                    raise
        return await tools.call(name, arguments, context)

    async def _before(self, tools: ToolSet, name: str) -> _Gate | None:
        """What the tool stands behind: nothing is begun that cannot be done now."""
        server = next((tool.server for tool in await tools.list() if tool.name == name), "")
        return next((gate for gate in self._gates.values() if gate.server.name == server and not self._old(gate)), None)

    def _old(self, gate: _Gate) -> bool:
        """Nobody has called for so long that it says nothing about now."""
        return self._clock.now() - gate.failed_at > max(self._seconds, LONGEST)

    def _shut(self, server: Away, run: str) -> _Gate:
        now, gate = self._clock.now(), self._gates.get(server)
        if gate is None or self._old(gate):
            gate = self._gates[server] = _Gate(server, now, rest(0, 0.0, self._rng))
            self._observer(LaneClosed(run=run, lane=gate.lane, reason=ToolUnavailable.code))
        gate.failed_at = now
        return gate

    async def _back(self, gate: _Gate, context: CallContext) -> bool:
        """Wait for it. False when it does not come back in time."""
        until = min(gate.began + self._seconds, math.inf if context.deadline is None else context.deadline)
        gate.waiting += 1
        try:
            while not gate.back:
                due = gate.knocks_at <= self._clock.now() and not gate.knocking
                if gate.knocks_at >= until and not due:
                    return False
                await (gate.news.wait() if gate.knocking else self._knock(gate, context.run))
            crowd = gate.waiting
        finally:
            gate.waiting -= 1
        await self._clock.sleep(self._rng.uniform(0.0, min(SOON, SPREAD * crowd)))
        return True

    async def _knock(self, gate: _Gate, run: str) -> None:
        gate.knocking = True
        try:
            await self._clock.sleep(gate.knocks_at - self._clock.now())
            gate.back = await gate.server.knock()
            if gate.back:
                self._gates = {server: each for server, each in self._gates.items() if each is not gate}
                self._observer(LaneOpened(run=run, lane=gate.lane))
            else:
                gate.knocks += 1
                gate.failed_at = self._clock.now()
                pause = rest(gate.knocks, gate.failed_at - gate.began, self._rng)
                gate.knocks_at = gate.failed_at + pause
                if gate.knocks_at < gate.began + self._seconds:
                    self._observer(Waited(run=run, upstream=gate.lane, reason="tools", seconds=pause))
        finally:
            gate.knocking = False
            gate.news.set()
            gate.news = asyncio.Event()


AT_ONCE = ToolPatience(0.0, clock=SystemClock(), rng=Random())
