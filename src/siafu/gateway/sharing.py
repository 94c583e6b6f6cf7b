"""Limits that several processes share through Redis: leases in small batches, so that a round trip is rare.

Redis holds, for each upstream and key, where the buckets of requests and tokens stand, and who holds how many slots
until when. One script does it in one step, by Redis' own clock. A Redis that is empty, new or wiped begins with empty
buckets, so nothing is granted twice. One that does not answer holds nobody up: each process then takes its fair part
(`pace/share.py`) and says so, and asks again in the background.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable

from siafu.errors import StoreError
from siafu.gateway.upstream import Upstream
from siafu.observe.events import LimitsShared, Observer
from siafu.pace.clock import Clock
from siafu.pace.share import HELD, Ask, Lease, Share, Whole
from siafu.store.redis import RedisDoor

BEAT = 0.5  # seconds between two asks of a process with calls under way
GAP = 0.02  # seconds between two asks, at least
AGAIN = 1.0  # seconds between two asks of a Redis that did not answer
KEPT = 3600  # seconds without calls after which Redis forgets a limit

# KEYS: buckets, members. ARGV: me, concurrency, slots wanted, in flight, held ms; then for requests and for tokens:
# micros of time a unit (0 = no limit), units at once, units wanted; then tokens owed, kept s.
# Answers: requests, tokens, slots, ms to wait, members.
SCRIPT = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function grant(field, unit, burst, wanted, owed)
  if unit == 0 then return 0, 0 end
  local full = tonumber(redis.call('HGET', KEYS[1], field)) or (now + (burst - 1) * unit)
  full = math.max(full + owed * unit, now)
  local count = math.max(0, math.min(wanted, math.floor((burst * unit - (full - now)) / unit + 1e-6)))
  local wait = 0
  if count == 0 and wanted > 0 then wait = full + unit - burst * unit - now end
  redis.call('HSET', KEYS[1], field, string.format('%.0f', full + count * unit))
  return count, math.max(0, wait)
end
local me, concurrency = ARGV[1], tonumber(ARGV[2])
local wanted, flying, held = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local members, others, taken = 1, {}, 0
local found = redis.call('HGETALL', KEYS[2])
for i = 1, #found, 2 do
  local slots, wants, till = string.match(found[i + 1], '(%d+) (%d+) (%d+)')
  if tonumber(till) < now then redis.call('HDEL', KEYS[2], found[i])
  elseif found[i] ~= me then
    members, taken = members + 1, taken + slots
    others[#others + 1] = {tonumber(slots), tonumber(wants)}
  end
end
local fair, unmet = math.max(1, math.floor(concurrency / members)), 0
for _, other in ipairs(others) do unmet = unmet + math.max(0, math.min(other[2], fair) - other[1]) end
local free = math.max(0, concurrency - taken)
local slots = math.min(wanted, math.max(free - unmet, math.min(fair, free)))
if wanted > 0 or flying > 0 then
  local till = now + held * 1000
  redis.call('HSET', KEYS[2], me, string.format('%d %d %.0f', math.max(slots, flying), wanted, till))
else redis.call('HDEL', KEYS[2], me) end
local requests, wait = grant('requests', tonumber(ARGV[6]), tonumber(ARGV[7]), math.min(tonumber(ARGV[8]), slots), 0)
local tokens, later = grant('tokens', tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]))
redis.call('EXPIRE', KEYS[1], ARGV[13])
redis.call('EXPIRE', KEYS[2], ARGV[13])
return {requests, tokens, slots, math.ceil(math.max(wait, later) / 1000), members}
"""


def limits_key(upstream: Upstream) -> str:
    """The name under which processes with this upstream and key share. The key cannot be read from it."""
    secret = "" if upstream.key is None else upstream.key.reveal()
    return "siafu:{" + hashlib.sha256(f"{upstream.base_url}\0{secret}".encode()).hexdigest()[:32] + "}"


class Sharing:
    """This process's side of the limits of one upstream and key. `whole`: those of all processes together. `door`:
    others may use it too; it stays the caller's to close.
    """

    def __init__(self, door: RedisDoor, whole: Whole, upstream: Upstream, *, clock: Clock, observer: Observer) -> None:
        self.share = Share(whole)
        self._door = door
        name = limits_key(upstream)
        self._keys = (f"{name}:buckets", f"{name}:members")
        self._me = uuid.uuid4().hex
        self._clock = clock
        self._upstream = upstream.name
        self._observer = observer
        self._task: asyncio.Task[None] | None = None
        self._asking = False
        self._asked_at = 0.0
        self._need = (0, 0, 0)  # in flight, waiting, tokens of the next one
        self._look = asyncio.Event()

    def keep(self, in_flight: int, waiting: int, tokens: int, then: Callable[[], None]) -> None:
        """Say what this process has under way and who waits; `then` is called when a new lease has come. A task asks
        while there is anything, and ends after it has said that there is nothing more.
        """
        self._need = (in_flight, waiting, tokens)
        if self._task is None or self._task.done() or self._task.get_loop() is not asyncio.get_running_loop():
            if not (in_flight or waiting):
                return
            self._look = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run(then))
        elif self.share.short or not (in_flight or waiting):
            self._look.set()

    async def _run(self, then: Callable[[], None]) -> None:
        while True:
            self._look.clear()
            in_flight, waiting, tokens = self._need
            await self._renew(self.share.ask(self._clock.now(), in_flight, waiting, tokens))
            if not (in_flight or waiting) and self._need[:2] == (0, 0):
                return
            then()
            await self._pause()

    async def _pause(self) -> None:
        """Until somebody needs something that may be there by now, or the next beat."""
        if self.share.alone:
            await asyncio.sleep(AGAIN)
            return
        try:
            async with asyncio.timeout(BEAT):
                await self._look.wait()
        except TimeoutError:
            return
        now = self._clock.now()
        await asyncio.sleep(max(GAP - (now - self._asked_at), self.share.until_more(now)))

    async def _renew(self, ask: Ask) -> None:
        was_alone, whole, self._asked_at = self.share.alone, self.share.whole, self._clock.now()
        values = (
            self._me, whole.concurrency, ask.slots, ask.in_flight, int(HELD * 1000),
            _micros(whole.requests), whole.burst, ask.requests,
            _micros(whole.tokens), int(whole.token_burst), ask.tokens, ask.owed, KEPT,
        )  # fmt: skip
        try:
            requests, tokens, slots, wait, members = await self._door.run(SCRIPT, self._keys, values)
        except StoreError as error:
            self.share.lost(ask, self._clock.now())
            if not was_alone:
                self._tell(error.message)
            return
        lease = Lease(requests=requests, tokens=tokens, slots=slots, wait=wait / 1000, processes=members)
        self.share.leased(lease, self._clock.now(), self._asked_at)
        if was_alone:
            self._tell("")

    def _tell(self, why: str) -> None:
        self._observer(LimitsShared(upstream=self._upstream, processes=self.share.processes, alone=bool(why), why=why))

    async def aclose(self) -> None:
        """Stop asking. Slots are free for others after `HELD`. Idempotent."""
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _micros(rate: float | None) -> str:
    return "0" if rate is None else repr(1_000_000 / rate)
