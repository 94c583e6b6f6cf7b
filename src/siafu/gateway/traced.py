"""A span for each model call: from when it is asked for to its end, with all waits and attempts in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from siafu.border.canonical import dumps
from siafu.border.money import to_usd
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.gateway.endpoint import End, Endpoint, Reply
from siafu.gateway.upstream import Upstream
from siafu.observe import spans
from siafu.observe.calls import CallContext

# hosts -> the names that the conventions have for them; others are told by the name that the settings give them
_PROVIDERS = {
    "api.openai.com": "openai",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
}


class Traced:
    """The outermost wrapper while somebody traces. The request that leaves names the span in its `traceparent`.
    upstreams: those that may answer.
    """

    def __init__(self, inner: Endpoint, tracer: spans.Tracer, upstreams: Sequence[Upstream]) -> None:
        self._inner = inner
        self._tracer = tracer
        self._places = {upstream.name: _place(upstream) for upstream in upstreams}
        self._only = next(iter(self._places.values())) if len(self._places) == 1 else {}

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        span = self._tracer.begin(
            "chat",
            request.model,
            {
                "gen_ai.request.model": request.model,
                "gen_ai.request.max_tokens": request.max_tokens,
                "gen_ai.request.temperature": request.temperature,
                "gen_ai.agent.name": context.agent or None,
                "siafu.role": context.role or None,
                "siafu.step": context.step or None,
                **self._only,
            },
        )
        if self._tracer.contents:
            span.set({"gen_ai.input.messages": spoken(request.messages)})
        try:
            with span.current():
                reply = await self._inner.open(request, context)
        except BaseException as error:
            span.end(spans.kind_of(error))
            raise
        span.set(self._places.get(reply.head.upstream, {}))
        reply.on_end(partial(self._ended, span))
        return reply

    def _ended(self, span: spans.Span, end: End) -> None:
        if end.answer is not None:
            span.set(_answered(end.answer))
            if self._tracer.contents:
                span.set({"gen_ai.output.messages": spoken([end.answer.message])})
            span.end()
        else:
            span.end("abandoned" if end.error is None else spans.kind_of(end.error))


def _place(upstream: Upstream) -> spans.Attributes:
    host = urlsplit(upstream.base_url).hostname or ""
    provider = "azure.ai.openai" if host.endswith(".openai.azure.com") else _PROVIDERS.get(host, upstream.name)
    return {"gen_ai.provider.name": provider, "server.address": host}


def _answered(answer: ChatAnswer) -> spans.Attributes:
    usage, cost = answer.usage, answer.usd_pico
    return {
        "gen_ai.response.id": answer.id or None,
        "gen_ai.response.model": answer.model or None,
        "gen_ai.response.finish_reasons": [answer.finish_reason] if answer.finish_reason else None,
        "gen_ai.usage.input_tokens": None if usage is None else usage.input,
        "gen_ai.usage.output_tokens": None if usage is None else usage.output,
        "gen_ai.usage.cache_read.input_tokens": None if usage is None else usage.cached,
        "gen_ai.usage.cost": None if cost is None else float(to_usd(cost)),  # spans know no other numbers
        "siafu.attempts": answer.attempts,
    }


def spoken(messages: Sequence[Any]) -> str:
    """Messages in the form of the conventions, each with a role and parts; of any shape, as clients wrote them."""
    told = [message for message in messages if isinstance(message, Mapping)]
    return dumps([{"role": each.get("role", "assistant"), "parts": _parts(each)} for each in told]).decode()


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content, calls = message.get("content"), message.get("tool_calls")
    if message.get("role") == "tool":
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    parts = content if isinstance(content, list) else [{"type": "text", "content": content}] if content else []
    made = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    asked = [call["function"] | {"id": call.get("id")} for call in made if isinstance(call.get("function"), dict)]
    return parts + [{"type": "tool_call", **call} for call in asked]
