"""What client keys do in all servers that share a Redis: requests in any minute, and at once.

Redis holds, for each key, when its requests of the last minute came, and how many each server has under way, until
when that is known. It may be wiped: then they are counted anew. While it does not answer, each server keeps the limits
for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import uuid
from collections.abc import Callable

from siafu.errors import StoreError
from siafu.service.refusals import Refused
from siafu.store.client_keys import ClientKey
from siafu.store.redis import RedisDoor

HELD = 3.0  # seconds for which a count holds without being told again
LOOK_AGAIN = 0.05  # seconds; a server tells that a request has ended just after its client knows it
log = logging.getLogger("siafu")

# KEYS: times of requests, counts of servers. ARGV: me, mine (this request included), held ms, at once, a minute, its
# name (0 = no limit; without a name nothing is asked for). Answers: 0 = it may begin, 1 = too many at once, 2 = in this
# minute; and ms until there may be another.
SCRIPT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me, mine, held = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local most, rpm, name = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local others, found = 0, redis.call('HGETALL', KEYS[2])
for i = 1, #found, 2 do
  local count, till = string.match(found[i + 1], '(%d+) (%d+)')
  if tonumber(till) < now then redis.call('HDEL', KEYS[2], found[i])
  elseif found[i] ~= me then others = others + count end
end
if name ~= '' then
  if most > 0 and others + mine > most then return {1, 0} end
  if rpm > 0 then
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 60000)
    if redis.call('ZCARD', KEYS[1]) >= rpm then
      local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
      return {2, first[2] + 60000 - now}
    end
    redis.call('ZADD', KEYS[1], now, name)
    redis.call('PEXPIRE', KEYS[1], 60000)
  end
end
if mine > 0 then redis.call('HSET', KEYS[2], me, mine .. ' ' .. string.format('%.0f', now + held))
else redis.call('HDEL', KEYS[2], me) end
redis.call('PEXPIRE', KEYS[2], 10 * held)
return {0, 0}
"""


class Together:
    """This server's side. `door`: stays the caller's to close."""

    def __init__(self, door: RedisDoor) -> None:
        self._door = door
        self._me = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._alone = False
        self._telling: set[asyncio.Task[None]] = set()

    async def begin(self, key: ClientKey, running: int) -> bool:
        """A request of `key` is about to begin; `running`: with it, of this server. False when Redis does not say.

        Raises: Refused when the key may not have another one now.
        """
        verdict = wait = 0
        for pause in (0.0, LOOK_AGAIN):
            await asyncio.sleep(pause)
            try:
                verdict, wait = await self._ask(key, running, f"{self._me}{next(self._numbers)}")
            except StoreError as error:
                if not self._alone:
                    log.warning("client keys' limits hold for this server alone for now: %s", error.message)
                self._alone = True
                return False
            self._alone = False
            if verdict != 1:
                break
        if verdict == 1:
            message = f"this key may have {key.terms.concurrency} requests at once, and has, at all servers together"
            raise Refused(429, message, code="rate_limit_exceeded", wait=1.0)
        if verdict == 2:
            message = f"this key may make {key.terms.rpm} requests a minute, at all servers together, and has"
            raise Refused(429, message, code="rate_limit_exceeded", wait=wait / 1000)
        return True

    def ended(self, key: ClientKey, running: Callable[[], int]) -> None:
        """A request has ended; so many of this server go on. Others hear of it in the background."""
        task = asyncio.get_running_loop().create_task(self.hold(key, running))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def hold(self, key: ClientKey, running: Callable[[], int]) -> None:
        """Say how many requests go on; again at least every second while any does."""
        with contextlib.suppress(StoreError):  # the next request is told
            await self._ask(key, running(), "")

    async def _ask(self, key: ClientKey, running: int, name: str) -> list[int]:
        place = "siafu:{client:" + key.id + "}"
        limits = (key.terms.concurrency or 0, key.terms.rpm or 0)
        return await self._door.run(
            SCRIPT, (f"{place}:minute", f"{place}:running"), (self._me, running, int(HELD * 1000), *limits, name)
        )
