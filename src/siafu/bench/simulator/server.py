"""The endpoint: `/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from hashlib import sha256

import msgspec
from aiohttp import web

from siafu.bench.simulator.bend import bent_answer, bent_body
from siafu.bench.simulator.cache import PrefixCache, blocks_of
from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.faults import BEFORE_HEADERS, WIRE, Faults, Rule
from siafu.bench.simulator.latency import SMALL, STRONG
from siafu.bench.simulator.limits import Limits, Settings, Slots
from siafu.bench.simulator.plan import Plan, World, plan
from siafu.bench.simulator.records import Record, Records
from siafu.bench.simulator.refusals import Canned, over_limit, refuse, scripted
from siafu.bench.simulator.reply import chunks, completion, usage_of
from siafu.bench.simulator.request import Refused, read
from siafu.bench.simulator.wire import Gone, chunk_tokens, events, send, send_stream, send_wrongly

ATTEMPT_HEADERS = ("x-siafu-attempt", "x-stainless-retry-count")  # the second is what OpenAI's client sends
MARK = {"x-simulated": "siafu-sim"}
MOST_BODY_BYTES = 32 * 1024 * 1024
DEFAULT_MODELS = {"sim-strong": STRONG, "sim-small": SMALL}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How the endpoint behaves. `cache_ttl`: seconds; 0 = no prompt cache. `keep`: records kept. `keep_bodies`: request
    and reply bodies too. `require_key`: a request without a key is refused (any key will do)."""

    world: World = World()
    limits: Settings = Settings()
    rates: dict[str, float] = {}
    rules: list[Rule] = []
    cache_ttl: float = 300.0
    keep: int = 200_000
    keep_bodies: bool = False
    require_key: bool = False


class Endpoint:
    """The endpoint's state, and its handlers."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.records = Records(options.keep)
        self.slots = Slots(options.limits.slots)
        self.limits = Limits(options.limits)
        self.cache = PrefixCache(options.cache_ttl)
        self.faults = Faults(options.rates, options.rules)
        self._seen: OrderedDict[str, int] = OrderedDict()  # sha256 of a body without attempt header -> times it came

    def reset(self) -> None:
        """As after the start: no records, no cached prompts, the limits and faults of the command line."""
        self.records.clear()
        self.cache.clear()
        self._seen.clear()
        self.hold(self.options.limits)
        self.faults = Faults(self.options.rates, self.options.rules)

    def hold(self, settings: Settings) -> None:
        """Other limits from now on, with full buckets; who is being answered keeps its slot."""
        self.limits = Limits(settings)
        self.slots.most = settings.slots
        self.slots.fill()

    async def models(self, request: web.Request) -> web.StreamResponse:
        try:
            self._check_key(request)
        except Refused as no:
            return await send(request, refuse(no.status, no.message, code=no.code), MARK)
        known = self.options.world.models or DEFAULT_MODELS
        data = [{"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "siafu-sim"} for name in known]
        return await send(request, Canned(200, msgspec.json.encode({"object": "list", "data": data})), MARK)

    async def unknown(self, request: web.Request) -> web.StreamResponse:
        message = (
            f"Unknown request URL: {request.method} {request.path}. This simulated endpoint serves "
            "POST /v1/chat/completions, GET /v1/models, and what happened under /_sim/stats."
        )
        return await send(request, refuse(404, message, code="unknown_url"), MARK)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer one request and record it, also when the client goes away."""
        record = self.records.open(request.path)
        try:
            return await self._answer(request, record)
        except ConnectionError:
            record.client_left = True
            return Gone()
        except asyncio.CancelledError:
            record.client_left = True
            raise
        finally:
            self.records.close(record)

    async def _answer(self, request: web.Request, record: Record) -> web.StreamResponse:
        try:
            body = await request.read()
            planned = self._plan(request, body, record)
        except web.HTTPRequestEntityTooLarge:
            return await self._send(request, record, refuse(413, f"The body is larger than {MOST_BODY_BYTES} bytes."))
        except Refused as no:
            return await self._send(request, record, refuse(no.status, no.message, param=no.param, code=no.code))
        tokens = planned.prompt_tokens + planned.answer.tokens
        refusal = self.limits.refuse(self._now(), tokens, self.records.in_flight)
        if refusal:
            record.limited = refusal.limit
            return await self._send(request, record, over_limit(refusal, planned.asked.model))
        self.records.enter()
        try:
            async with self.slots.one():
                return await self._admitted(request, record, planned)
        finally:
            self.records.leave()

    def _plan(self, request: web.Request, body: bytes, record: Record) -> Plan:
        record.attempt = next((request.headers[name] for name in ATTEMPT_HEADERS if name in request.headers), None)
        record.sha256 = sha256(body).hexdigest()
        if self.options.keep_bodies:
            record.body = body.decode("utf-8", "replace")
        self._check_key(request)
        asked = read(body, thinking=self.options.world.thinking)
        record.model, record.stream = asked.model, bool(asked.stream)
        record.user, record.metadata = asked.user, asked.metadata
        known = self.options.world.models
        if known is not None and asked.model not in known:
            message = f"The model `{asked.model[:80]}` does not exist; this endpoint serves {', '.join(known)}"
            raise Refused(message, status=404, param="model", code="model_not_found")
        return plan(asked, body, record.attempt, self.options.world)

    def _check_key(self, request: web.Request) -> None:
        given = request.headers.get("Authorization")
        if given is None and not self.options.require_key:
            return
        scheme, _, key = (given or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = "You didn't provide an API key. Send it as `Authorization: Bearer KEY`; any key will do here."
            raise Refused(message, status=401, code="invalid_api_key")

    async def _admitted(self, request: web.Request, record: Record, planned: Plan) -> web.StreamResponse:
        asked = planned.asked
        fault = self.faults.pick(
            prompt=planned.prompt,
            model=asked.model,
            stream=bool(asked.stream),
            has_calls=bool(planned.answer.calls),
            draws=self._fault_draws(planned, record),
        )
        if fault:
            record.fault = fault.kind
            key = request.headers.get("Authorization", "").removeprefix("Bearer ")
            canned = scripted(fault, fault.kind, key)
            if canned:
                return await self._send(request, record, canned)
            planned = msgspec.structs.replace(planned, answer=bent_answer(planned.answer, fault))
        prompt = planned.prompt.encode("utf-8", "replace")
        blocks = blocks_of(asked.model, prompt)
        cached = self.cache.credit(blocks, prompt, self._now())
        await asyncio.sleep(planned.pace.first)
        if fault and fault.kind in BEFORE_HEADERS:
            return await send_wrongly(request, fault.kind, Canned(0, b""), fault)
        self.cache.remember(blocks, self._now())
        record.first_byte = self.records.now()
        record.usage = usage_of(planned.prompt_tokens, planned.answer.tokens, min(cached, planned.prompt_tokens))
        record.service_seconds = planned.seconds
        record.finish_reason = planned.answer.finish
        if asked.stream and not (fault and fault.breaks_body):
            return await self._stream(request, record, planned, fault)
        return await self._whole(request, record, planned, fault)

    def _fault_draws(self, planned: Plan, record: Record) -> Draws:
        """What decides the fault: the attempt header or, for clients without one, how often these bytes came. Otherwise
        a client that cannot say that it tries again would meet the same fault for ever."""
        if record.attempt is not None or not self.faults.rates:
            return planned.draws
        times = self._seen.pop(record.sha256, 0) + 1
        self._seen[record.sha256] = times
        if len(self._seen) > self.options.keep:
            self._seen.popitem(last=False)
        return planned.draws if times == 1 else Draws(self.options.world.seed, record.sha256, times)

    async def _whole(
        self, request: web.Request, record: Record, planned: Plan, fault: Rule | None
    ) -> web.StreamResponse:
        await asyncio.sleep(planned.seconds - planned.pace.first)
        body = completion(planned.head, planned.answer, record.usage or {})
        data, kind = bent_body(body, fault, planned.draws) if fault else (msgspec.json.encode(body), "application/json")
        canned = Canned(200, data, content_type=kind)
        if fault and fault.kind in WIRE:
            record.status = canned.status
            return await send_wrongly(request, fault.kind, canned, fault)
        return await self._send(request, record, canned)

    async def _stream(
        self, request: web.Request, record: Record, planned: Plan, fault: Rule | None
    ) -> web.StreamResponse:
        kinds = fault.kinds if fault else []
        usage = record.usage if planned.asked.wants_usage and not {"null-usage", "missing-usage"} & set(kinds) else None
        parts = list(chunks(planned.head, planned.answer, usage, chunk_tokens(planned.pace.per_token)))
        if self.options.keep_bodies:
            record.reply = msgspec.json.encode(parts).decode()
        record.status = 200
        reply = web.StreamResponse(headers={**self._headers(record), "Content-Type": "text/event-stream"})
        await reply.prepare(request)
        seconds = planned.seconds - planned.pace.first
        await send_stream(request, reply, events(parts, kinds), seconds, fault, planned.draws)
        return reply

    async def _send(self, request: web.Request, record: Record, canned: Canned) -> web.StreamResponse:
        record.status = canned.status
        if self.options.keep_bodies:
            record.reply = canned.body.decode("utf-8", "replace")
        return await send(request, canned, self._headers(record))

    def _headers(self, record: Record) -> dict[str, str]:
        return {**MARK, "x-request-id": record.id, **self.limits.headers(self._now())}

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
