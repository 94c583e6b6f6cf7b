"""Who may come in: hosts and origins, client keys, and what each key may do at a time. Pure but for `KeyRing.watch`."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from siafu.border.text import preview
from siafu.border.urls import is_loopback
from siafu.errors import StoreError
from siafu.pace.bucket import Bucket
from siafu.pace.clock import Clock
from siafu.service.refusals import Refused
from siafu.service.together import Together
from siafu.store.client_keys import ClientKey, ClientKeys, hash_of

WATCH_SECONDS = 0.5  # a revoked key is refused within this and the time a query takes
MINUTE = 60.0
WRONG_KEYS_A_SECOND, WRONG_KEYS_AT_ONCE = 5.0, 20  # from one address
_ADDRESSES = 4096  # remembered for that
log = logging.getLogger("siafu")


def check_browser(host: str, origin: str, allowed: Iterable[str], *, loopback: bool) -> None:
    """Refuse what only a browser on another's page would send: a host name that is not ours (DNS rebinding), an origin
    that is not ours. host, origin: the headers. allowed: host names besides this machine's. loopback: the server
    listens there; elsewhere any IP address will do as the host, as no page can be loaded from a foreign one.

    Raises: Refused.
    """
    name = host_of(host)
    if not (name in allowed or is_loopback(name) or (not loopback and _is_address(name))):
        raise Refused(421, f"this server does not go by the name {preview(name, 100)!r}; see --allow-host", again=False)
    if origin:
        page = _named(origin)
        if not (page and (page == name or page in allowed or (loopback and is_loopback(page)))):
            raise Refused(403, "requests from pages of other sites are refused", code="origin_refused", again=False)


def priority_of(told: str, key: ClientKey | None) -> int:
    """The priority of a request, 1 to 3. told: the header's value, "" = none; a client with a key gets no better one
    than the key has.

    Raises: Refused.
    """
    best = 1 if key is None else key.terms.priority
    if not told:
        return 2 if key is None else best
    if told not in ("1", "2", "3"):
        message = f"x-siafu-priority is 1 (first), 2 or 3, not {preview(told, 20)!r}"
        raise Refused(400, message, code="bad_header", again=False)
    return max(best, int(told))


def host_of(host: str) -> str:
    """The name in a Host header, without its port; empty when there is none."""
    return _named(f"//{host}")


def _named(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Minute:
    """At most `count` events in any 60 seconds, exactly."""

    def __init__(self, count: int) -> None:
        self._times: deque[float] = deque(maxlen=count)

    def take(self, now: float) -> float:
        """Note an event and return 0.0; or note nothing and return the seconds until one may happen."""
        if len(self._times) == self._times.maxlen and (wait := self._times[0] + MINUTE - now) > 0:
            return wait
        self._times.append(now)
        return 0.0


class Holder:
    """What a key does at the moment. together: at other servers too; None = nobody knows."""

    def __init__(self, key: ClientKey, together: Together | None = None) -> None:
        self.key = key
        self.running = 0
        self._together = together
        self._minute = None if key.terms.rpm is None else Minute(key.terms.rpm)

    def check(self, scope: str) -> None:
        """Raises: Refused when the key may not do that."""
        if scope not in self.key.terms.scopes:
            message = f"this client key may only {' and '.join(self.key.terms.scopes)}: this needs the scope {scope}"
            raise Refused(403, message, code="scope_missing", again=False)

    @contextmanager
    def request(self, now: float) -> Iterator[None]:
        """A request runs. Raises: Refused when the key may not have another one now."""
        terms = self.key.terms
        if terms.concurrency is not None and self.running >= terms.concurrency:
            message = f"this key may have {terms.concurrency} requests at once, and has"
            raise Refused(429, message, code="rate_limit_exceeded", wait=1.0)
        if self._together is None:
            self._count(now)
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            if self._together is not None and self.limited:
                self._together.ended(self.key, lambda: self.running)

    async def join(self, now: float) -> None:
        """The same at all servers together, for a request that runs. Raises: Refused."""
        if self._together is not None and self.limited and not await self._together.begin(self.key, self.running):
            self._count(now)

    async def hold(self) -> None:
        """Tell other servers again of what runs."""
        if self._together is not None and self.running and self.limited:
            await self._together.hold(self.key, lambda: self.running)

    @property
    def limited(self) -> bool:
        return self.key.terms.concurrency is not None or self._minute is not None

    def _count(self, now: float) -> None:
        if self._minute is not None and (wait := self._minute.take(now)):
            message = f"this key may make {self.key.terms.rpm} requests a minute, and has; again in {wait:,.1f} s"
            raise Refused(429, message, code="rate_limit_exceeded", wait=wait)


class KeyRing:
    """The keys, kept in memory so that no request waits for a database. open_until_first: on loopback nobody needs a
    key until one was created, even if it was revoked since.
    """

    def __init__(
        self, keys: ClientKeys, clock: Clock, *, open_until_first: bool, together: Together | None = None
    ) -> None:
        self._keys = keys
        self._together = together
        self._clock = clock
        self._open_until_first = open_until_first
        self._edition = (-1, -1)
        self._holders: Mapping[str, Holder] = {}
        self._wrong: OrderedDict[str, Bucket] = OrderedDict()

    @property
    def open(self) -> bool:
        """Whether nobody needs a key."""
        return not self._holders and self._open_until_first

    async def refresh(self) -> None:
        """Read the keys if any changed. Raises: StoreError; then the former ones go on."""
        edition = await self._keys.edition()
        if edition != self._edition:
            before = self._holders
            found = {}
            for key in await self._keys.all():
                holder = before.get(key.hash) or Holder(key, self._together)
                holder.key = key
                found[key.hash] = holder
            self._holders, self._edition = found, edition

    async def watch(self) -> None:
        """Refresh for ever. While the database cannot be read nothing can be revoked in it, so what is known holds."""
        failed = False
        while True:
            await self._clock.sleep(WATCH_SECONDS)
            try:
                await asyncio.gather(*(holder.hold() for holder in self._holders.values()))
                await self.refresh()
                failed = False
            except StoreError as error:
                if not failed:
                    log.warning("client keys cannot be read, the known ones go on: %s", error.message)
                failed = True
            except Exception:
                if not failed:
                    log.exception("client keys cannot be read, the known ones go on; it is tried again")
                failed = True

    def known(self, id: str) -> ClientKey | None:
        """The key of this id, while it is good."""
        now = self._clock.wall()
        keys = (holder.key for holder in self._holders.values())
        return next((key for key in keys if key.id == id and key.state(now) == "active"), None)

    @property
    def limited(self) -> bool:
        """Whether any key has limits of its own."""
        return any(holder.limited for holder in self._holders.values())

    @property
    def active(self) -> int:
        now = self._clock.wall()
        return sum(holder.key.state(now) == "active" for holder in self._holders.values())

    def admit(self, authorization: list[bytes], address: str) -> Holder | None:
        """The holder of the key in the Authorization headers; None when nobody needs a key. address: who asks.

        Raises: Refused.
        """
        if self.open:
            return None
        scheme, _, text = b", ".join(authorization).decode("latin-1").partition(" ")
        holder = self._holders.get(hash_of(text.strip())) if scheme.lower() == "bearer" else None
        if holder is not None and holder.key.state(self._clock.wall()) == "active":
            return holder
        self._count_wrong(address)
        if not authorization:
            message = "a client key is needed: send it as `Authorization: Bearer sk-siafu-...`"
        else:
            message = "this is no valid client key of this siafu; its operator makes one with: siafu keys create"
        raise Refused(401, message, code="invalid_api_key", again=False)

    def _count_wrong(self, address: str) -> None:
        now = self._clock.now()
        bucket = self._wrong.pop(address, None) or Bucket(WRONG_KEYS_A_SECOND, WRONG_KEYS_AT_ONCE)
        self._wrong[address] = bucket
        if len(self._wrong) > _ADDRESSES:
            self._wrong.popitem(last=False)
        wait = bucket.ready(now)
        if wait:
            raise Refused(429, "too many requests with a wrong key", code="rate_limit_exceeded", wait=wait)
        bucket.take(now)
