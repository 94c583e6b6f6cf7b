"""The payment provider: what can be asked of it, and its HTTP client.

The one hard thing about it is a call without an answer. So every outcome says what is known: it happened (Paid), it
did not and will not (Declined), it cannot have happened (NotSent), or nobody knows (Unclear).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

import httpx2
import msgspec

from siafu.border.canonical import dumps, loads
from siafu.border.secrets import redact
from siafu.border.text import clean, preview
from siafu.border.urls import check_web_url
from siafu.errors import BoundaryError, ConfigError, ToolUnavailable

MAX_ANSWER = 1 << 18  # bytes
MAX_NAME = 200
CONNECT_SECONDS = 5.0
ASKING_SECONDS = 5.0  # for questions without an effect
# A no to this very refund; only the first of them comes after a look at the key. Other 4xx (a wrong key, too many
# calls, one that is still running) say nothing of what became of an earlier attempt.
_DEFINITE = (402, 400, 422)
_NEVER_LEFT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
T = TypeVar("T")


class Capabilities(msgspec.Struct, frozen=True):
    """idempotency: a repeated key has one effect. lookup: refunds can be found by our reference. name: of the provider,
    the scope of its keys and ids: what was sent to one is never looked up or repeated at another.
    """

    idempotency: bool
    lookup: bool
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One refund at the provider. key: the same for every attempt; also the reference by which it is found."""

    key: str
    payment: str
    amount: int
    currency: str
    metadata: Mapping[str, str | int] = {}


class Paid(msgspec.Struct, frozen=True, kw_only=True):
    """A refund that the provider made. `id`: its own name for it."""

    id: str
    payment: str
    amount: int
    currency: str
    reference: str
    status: Literal["succeeded"] = "succeeded"


class Declined(msgspec.Struct, frozen=True):
    """The provider will not make this refund. `code`: its word for why. at_all: also no earlier call has made it, as
    far as the provider honours keys; False = it did not look further than at this call.
    """

    code: str
    at_all: bool = True


class Unclear(msgspec.Struct, frozen=True):
    """It may have been made or not. answered: the provider did answer, only not so that it can be told."""

    why: str
    answered: bool = False


class NotSent(msgspec.Struct, frozen=True):
    """The provider cannot have seen the call."""

    why: str


Outcome: TypeAlias = Paid | Declined | Unclear | NotSent


class Payments(Protocol):
    """A payment provider."""

    async def capabilities(self, *, fresh: bool = False) -> Capabilities:
        """Who it is, and what it can do. fresh: as it says now; else as it said once.

        Raises: ToolUnavailable when it cannot be asked.
        """
        ...

    async def refund(self, call: Call, seconds: float) -> Outcome:
        """Make one call, once, within `seconds`. Raises nothing: every failure is an outcome."""
        ...

    async def find(self, call: Call, seconds: float) -> Paid | Unclear | NotSent | None:
        """The refund made for this call, None when there is none so far. Unclear, NotSent: that cannot be told."""
        ...


class HttpPayments:
    """A provider over HTTP: POST /v1/refunds, GET /v1/refunds?reference=, GET /v1/refunds, GET /v1/capabilities.

    given: what it can do; None = it is asked. name: which provider this is; "" = what it calls itself, else its
    address. Nothing is retried here.

    Raises: ConfigError when `url` is no safe web address, or `name` is too long.
    """

    def __init__(self, url: str, *, given: Capabilities | None = None, name: str = "") -> None:
        check_web_url(url, "the payments address", like="https://payments.example.com", instead="leave it away")
        if len(name) > MAX_NAME:
            raise ConfigError(f"the name of the payment provider has more than {MAX_NAME} characters")
        place = urlsplit(url)
        self._name, self._address = _plain(name), f"{place.scheme}://{place.netloc.lower()}{place.path}".rstrip("/")
        self._given, self._asked = given, given
        # A kept connection may be closed by the other side just as a refund is sent, which would look like a lost one.
        limits = httpx2.Limits(max_connections=64, max_keepalive_connections=0)
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        self._http = httpx2.AsyncClient(base_url=url, timeout=timeout, limits=limits)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def capabilities(self, *, fresh: bool = False) -> Capabilities:
        found = self._given if fresh else self._asked
        if found is None:
            answer = await self._ask("/v1/capabilities", {}, Capabilities, ASKING_SECONDS)
            if not isinstance(answer, Capabilities):
                raise ToolUnavailable(f"the payment provider cannot be asked what it can do: {answer.why}")
            found = self._asked = answer
        return msgspec.structs.replace(found, name=self._name or _plain(found.name) or self._address)

    async def refund(self, call: Call, seconds: float) -> Outcome:
        body = {
            "payment": call.payment,
            "amount": call.amount,
            "currency": call.currency,
            "reference": call.key,
            "metadata": dict(call.metadata),
        }
        sent = dumps(body)
        headers = {
            "Idempotency-Key": call.key,
            "Content-Type": "application/json",
            "Content-Length": str(len(sent)),
        }
        content = _in_time(sent, asyncio.get_running_loop().time() + seconds)
        try:
            async with asyncio.timeout(seconds):
                status, raw = await self._exchange("POST", "/v1/refunds", content=content, headers=headers)
        except (*_NEVER_LEFT, _TooLate) as error:
            return NotSent(_named(error))
        except (httpx2.HTTPError, TimeoutError) as error:
            return Unclear(_named(error))
        if status == 200:
            paid = _read(raw, Paid)
            if isinstance(paid, Paid) and not _is_for(paid, call):
                return Unclear("the answer is not for this call", answered=True)
            return paid
        if status in _DEFINITE:
            refusal = _read(raw, _ErrorBody)
            if isinstance(refusal, _ErrorBody) and refusal.error.code != "idempotency_key_reused":
                return Declined(preview(refusal.error.code, 60), at_all=status == _DEFINITE[0])
        return Unclear(f"HTTP {status}", answered=True)

    async def find(self, call: Call, seconds: float) -> Paid | Unclear | NotSent | None:
        found = await self._ask("/v1/refunds", {"reference": call.key}, _Listing, seconds)
        if not isinstance(found, _Listing):
            return found
        # With more than one, the first stands for the intent; the reconciliation report names the others.
        return next((paid for paid in found.data if _is_for(paid, call)), None)

    async def statement(self) -> list[Paid]:
        """All refunds that the provider has made, oldest first. Raises: ToolUnavailable; also when it has no list."""
        found: list[Paid] = []
        seen: set[str] = set()
        more = True
        while more:
            after = {"after": found[-1].id} if found else {}
            page = await self._ask("/v1/refunds", after, _Page, ASKING_SECONDS)
            if not isinstance(page, _Page):
                raise ToolUnavailable(f"the payment provider gives no list of its refunds: {page.why}")
            news = [paid for paid in page.data if paid.id not in seen]
            seen.update(paid.id for paid in news)
            found += news
            more = page.more and bool(news)
        return found

    async def _ask(self, path: str, params: Mapping[str, str], kind: type[T], seconds: float) -> T | Unclear | NotSent:
        try:
            async with asyncio.timeout(seconds):
                status, raw = await self._exchange("GET", path, params=dict(params))
        except _NEVER_LEFT as error:
            return NotSent(_named(error))
        except (httpx2.HTTPError, TimeoutError) as error:
            return Unclear(_named(error))
        return _read(raw, kind) if status == 200 else Unclear(f"HTTP {status}", answered=True)

    async def _exchange(self, method: str, path: str, **sent: Any) -> tuple[int, bytes]:
        async with self._http.stream(method, path, **sent) as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER:
                    return response.status_code, b""
            return response.status_code, bytes(body)


class _TooLate(Exception):
    """This process stood still on the way to its call."""


async def _in_time(body: bytes, ends: float) -> AsyncIterator[bytes]:
    """The body, if it leaves before `ends` by the loop's clock. Looked at when everything before it is written: a
    process that stood still until then finds its timer to have run out only after it has sent what it was about to.
    """
    if asyncio.get_running_loop().time() >= ends:
        raise _TooLate
    yield body


class _Problem(msgspec.Struct):
    code: str


class _ErrorBody(msgspec.Struct):
    error: _Problem


class _Listing(msgspec.Struct):
    data: list[Paid]


class _Page(msgspec.Struct):
    data: list[Paid]
    more: bool


def _read(raw: bytes, kind: type[T]) -> T | Unclear:
    try:
        return msgspec.convert(loads(raw, max_bytes=MAX_ANSWER, what="the provider's answer"), kind)
    except (BoundaryError, msgspec.ValidationError) as error:
        return Unclear(preview(redact(str(error)), 200), answered=True)


def _is_for(paid: Paid, call: Call) -> bool:
    return (paid.payment, paid.amount, paid.currency, paid.reference) == (
        *(call.payment, call.amount, call.currency),
        call.key,
    )


def _plain(name: str) -> str:
    return clean(name).strip()


def _named(error: Exception) -> str:
    return preview(redact(f"{type(error).__name__} {error}".strip()), 200)
