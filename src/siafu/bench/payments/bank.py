"""The provider's API: `POST /v1/refunds`, `GET /v1/refunds?reference=R`, `GET /v1/refunds` (all), `GET
/v1/capabilities`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import msgspec
from aiohttp import web

from siafu.bench.payments.book import Mode, Settled
from siafu.bench.payments.faults import HUNG, LOST, SLOW, UNPAID, UNPARSABLE, Faults, Rule
from siafu.bench.payments.ledger import Ledger
from siafu.bench.payments.lines import Body, Declined, Paid, Request, Unusable, What, read_body, read_key
from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.refusals import Canned
from siafu.bench.simulator.wire import Gone, reset, send

MARK = {"x-simulated": "siafu-payments"}
LISTED = 100  # refunds a page


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How the provider behaves. `name`: what it calls itself; "" = nothing. `slow`: seconds until a refund is paid."""

    mode: Mode
    name: str = ""
    slow: float = 0.0
    seed: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What to answer. `status`: 0 = nothing. `ids`: the refunds it names. `error`: the code, if it is one."""

    status: int
    content: Any = None
    ids: list[str] = []
    error: str | None = None
    replayed: bool = False


def refused(status: int, code: str, message: str) -> Answer:
    return Answer(status=status, content={"error": {"code": code, "message": message}}, error=code)


class Bank:
    """The provider's state, and its handlers.

    A refund that was begun is finished, also when the caller leaves. One attempt meets one fault: what it does to the
    answer is forgotten, what it does to the money is kept under the key.
    """

    def __init__(self, ledger: Ledger, options: Options, faults: Faults) -> None:
        self.ledger = ledger
        self.options = options
        self.faults = faults
        self._running: dict[str, Body] = {}  # key -> what is being paid under it
        self._tasks: set[asyncio.Task[Answer]] = set()

    async def capabilities(self, http: web.Request) -> web.StreamResponse:
        mode = self.options.mode
        content = {"idempotency": mode.honours_keys, "lookup": mode.has_lookup, "name": self.options.name}
        return await send(http, Canned(200, msgspec.json.encode(content)), MARK)

    async def unknown(self, http: web.Request) -> web.StreamResponse:
        answer = refused(
            404,
            "unknown_url",
            f"no {http.method} {http.path} here: this payment simulator serves POST /v1/refunds, "
            "GET /v1/refunds?reference=R, GET /v1/capabilities, and what happened under /_payments/stats",
        )
        return await send(http, Canned(404, msgspec.json.encode(answer.content)), MARK)

    async def refund(self, http: web.Request) -> web.StreamResponse:
        """Pay a refund, unless its key was seen before. Every request is written down, with its answer."""
        try:
            key, body = read_key(http.headers.get("Idempotency-Key")), read_body(await http.read())
        except (Unusable, web.HTTPRequestEntityTooLarge) as error:
            request, _ = self._arrived("refund", spared=True)
            message = error.text or "" if isinstance(error, web.HTTPException) else str(error)
            return await self._reply(http, request, None, refused(400, "invalid_request", message))
        honoured = key if self.options.mode.honours_keys else None
        refusal = self._contradiction(honoured, body) if honoured else None
        request, rule = self._arrived("refund", body.reference, key=key, body=body, spared=refusal is not None)
        if refusal:
            return await self._reply(http, request, None, refusal)
        if honoured and (settled := self.ledger.book.keys.get(honoured)):
            return await self._worked(http, request, rule, self._again(settled, rule))
        if honoured:
            self._running[honoured] = body
        return await self._worked(http, request, rule, self._first(request, body, rule, honoured))

    async def lookup(self, http: web.Request) -> web.StreamResponse:
        """The refunds paid under a reference; a refund that is still being paid is not among them."""
        if "reference" not in http.query and self.options.mode.has_lookup:
            return await self._list(http, http.query.get("after", ""))
        reference, refusal = http.query.get("reference", ""), None
        if not self.options.mode.has_lookup:
            refusal = refused(404, "not_supported", "this provider has no lookup")
        elif not reference:
            refusal = refused(400, "invalid_request", "say which: GET /v1/refunds?reference=R")
        request, rule = self._arrived("lookup", reference, spared=refusal is not None)
        if refusal:
            return await self._reply(http, request, None, refusal)
        return await self._worked(http, request, rule, self._lookup(reference, rule))

    async def _list(self, http: web.Request, after: str) -> web.StreamResponse:
        """All refunds, oldest first: a page of those after the one called `after` ("" = from the first)."""
        request, _ = self._arrived("lookup", spared=True)
        effects = self.ledger.book.effects
        start = next((paid.n for paid in effects if paid.id == after), None) if after else 0
        if start is None:
            return await self._reply(http, request, None, refused(400, "invalid_request", "no refund called `after`"))
        await self.ledger.settle()
        page = effects[start : start + LISTED]
        content = {"data": [_shown(paid) for paid in page], "more": len(effects) > start + LISTED}
        return await self._reply(http, request, None, Answer(status=200, content=content))

    async def close(self) -> None:
        """End what is still being paid, as a kill would, and let go of the ledger."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.ledger.close()

    def _contradiction(self, key: str, body: Body) -> Answer | None:
        """Why a request with this key is refused; None = it is not."""
        settled, running = self.ledger.book.keys.get(key), self._running.get(key)
        known = settled.body if settled else running
        if known not in (None, body):
            return refused(422, "idempotency_key_reused", "this Idempotency-Key came before with another body")
        if running:
            return refused(409, "idempotency_key_in_use", "a request with this Idempotency-Key is being worked on")
        return None

    async def _first(self, request: Request, body: Body, rule: Rule | None, honoured: str | None) -> Answer:
        try:
            settled = await self._settle(request, body, rule)
        finally:
            if honoured:
                del self._running[honoured]
        return _told(settled, rule)

    async def _again(self, settled: Settled, rule: Rule | None) -> Answer:
        await asyncio.sleep(_wait(rule))
        await self.ledger.settle()
        return _told(settled, rule, replayed=True)

    async def _settle(self, request: Request, body: Body, rule: Rule | None) -> Settled | None:
        """Pay or decline, durably; None = neither, so the next attempt begins anew."""
        await asyncio.sleep(self.options.slow + _wait(rule))
        if rule and rule.kind in UNPAID:
            if rule.kind != "decline":
                return None
            self.ledger.write(Declined(at=time.time(), request=request.n))
            paid = None
        else:
            paid = self._paid(request, body)
            self.ledger.write(paid)
        await self.ledger.settle()
        return Settled(body, paid)

    def _paid(self, request: Request, body: Body) -> Paid:
        number = len(self.ledger.book.effects) + 1
        return Paid(
            n=number,
            id="re_" + Draws(self.options.seed, body.reference, number).text("id", 20),
            at=time.time(),
            request=request.n,
            key=request.key,
            payment=body.payment,
            amount=body.amount,
            currency=body.currency,
            reference=body.reference,
        )

    async def _lookup(self, reference: str, rule: Rule | None) -> Answer:
        await asyncio.sleep(_wait(rule))
        if rule and rule.kind == "lookup_error":
            return refused(503, "unavailable", "try again later")
        found = self.ledger.book.paid(reference)
        await self.ledger.settle()
        return Answer(status=200, content={"data": [_shown(paid) for paid in found]}, ids=[paid.id for paid in found])

    def _arrived(
        self, what: What, reference: str = "", *, key: str | None = None, body: Body | None = None, spared: bool
    ) -> tuple[Request, Rule | None]:
        """Write the request down, and pick what will go wrong with it: nothing when `spared`."""
        book = self.ledger.book
        attempt = book.attempts(what, reference) + 1
        rule = None
        if not spared:
            names = (reference, body.payment if body else "")
            rule = self.faults.pick(what, names, attempt, Draws(self.options.seed, what, reference, attempt))
        request = Request(
            n=len(book.requests) + 1,
            at=time.time(),
            what=what,
            reference=reference,
            key=key,
            attempt=attempt,
            body=body,
            fault=rule.kind if rule else None,
        )
        self.ledger.write(request)
        return request, rule

    async def _worked(
        self, http: web.Request, request: Request, rule: Rule | None, work: Coroutine[Any, Any, Answer]
    ) -> web.StreamResponse:
        """Answer with what `work` gives; it goes on when the caller leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            self._answered(request, Answer(status=0, error="caller_left"))
            raise
        return await self._reply(http, request, rule, answer)

    async def _reply(
        self, http: web.Request, request: Request, rule: Rule | None, answer: Answer
    ) -> web.StreamResponse:
        """Write the answer down, then send it, or do as the fault says."""
        kind = rule.kind if rule else None
        if kind in HUNG or kind in LOST:
            self._answered(request, Answer(status=0))
            if kind in HUNG:
                await asyncio.Event().wait()
            if http.transport:
                reset(http.transport)
            return Gone()
        self._answered(request, answer)
        data = msgspec.json.encode(answer.content)
        if kind in UNPARSABLE:
            data = data[: len(data) // 2]
        headers = {"Idempotent-Replayed": "true"} if answer.replayed else {}
        return await send(http, Canned(answer.status, data, headers), MARK)

    def _answered(self, request: Request, answer: Answer) -> None:
        self.ledger.write(
            msgspec.structs.replace(
                request,
                answered_at=time.time(),
                status=answer.status,
                replayed=answer.replayed,
                ids=answer.ids,
                error=answer.error,
            )
        )


def _wait(rule: Rule | None) -> float:
    return rule.wait if rule and rule.kind in SLOW else 0.0


def _told(settled: Settled | None, rule: Rule | None, *, replayed: bool = False) -> Answer:
    """What the caller is told of a refund that was paid, declined or (None) left alone."""
    if rule and rule.kind == "error_after":
        return refused(500, "internal_error", "something went wrong")
    if settled is None or (rule and rule.kind == "error_before"):
        return refused(503, "unavailable", "this request was not processed, try again later")
    if settled.paid is None:
        declined = refused(402, "declined", "the refund was declined")
        return msgspec.structs.replace(declined, replayed=replayed)
    return Answer(status=200, content=_shown(settled.paid), ids=[settled.paid.id], replayed=replayed)


def _shown(paid: Paid) -> dict[str, Any]:
    return {
        "id": paid.id,
        "payment": paid.payment,
        "amount": paid.amount,
        "currency": paid.currency,
        "reference": paid.reference,
        "status": "succeeded",
        "created": int(paid.at),
    }
