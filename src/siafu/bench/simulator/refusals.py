"""Refusals as real providers write them: status, headers, body."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import msgspec

from siafu.bench.simulator.faults import Rule
from siafu.bench.simulator.limits import Refusal, go_duration
from siafu.bench.simulator.reply import error

_WORDS = {
    400: ("invalid_request_error", None, "The request was refused by a fault of the simulated endpoint."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    402: ("unknown_error", "invalid_request_error", "Insufficient Balance"),
    403: ("permission_error", "permission_denied", "You have no access to this model."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you have no access to it."),
    408: ("timeout_error", "timeout", "The request took too long."),
    409: ("conflict_error", "conflict", "Another request holds a lock; try again."),
    413: ("invalid_request_error", "request_too_large", "The request is too large."),
    422: ("invalid_request_error", "unprocessable", "The request could not be processed."),
    429: ("rate_limit_error", "rate_limit_exceeded", "Rate limit reached; slow down."),
    500: ("server_error", None, "The server had an error while processing your request."),
    503: ("server_error", "overloaded", "That model is currently overloaded with other requests."),
    504: ("server_error", "gateway_timeout", "The upstream did not answer in time."),
    529: ("overloaded_error", "overloaded_error", "Overloaded"),
}


class Canned(msgspec.Struct, frozen=True):
    """A whole reply."""

    status: int
    body: bytes
    headers: dict[str, str] = {}
    content_type: str = "application/json"


def refuse(status: int, message: str, *, param: str | None = None, code: str | int | None = None) -> Canned:
    """A refusal of the usual kind for its status."""
    kind, usual_code, _ = _WORDS.get(status, _WORDS[400])
    return Canned(status, msgspec.json.encode(error(message, kind, param=param, code=code or usual_code)))


def scripted(rule: Rule, kind: str, key: str) -> Canned | None:
    """The refusal that a fault asks for; None when the fault is of another sort. `key`: the API key as sent."""
    if kind == "reply":
        body = rule.body.encode() if isinstance(rule.body, str) else msgspec.json.encode(rule.body)
        return Canned(rule.status, b"" if rule.body is None else body, rule.headers)
    if kind == "502":
        return Canned(502, html_page("502 Bad Gateway"), content_type="text/html")
    if kind == "quota":
        message = rule.message or "You exceeded your current quota, please check your plan and billing details."
        return Canned(429, msgspec.json.encode(error(message, "insufficient_quota", code="insufficient_quota")))
    if not kind.isdigit():
        return None
    status = int(kind)
    message = rule.message or _WORDS[status][2]
    if status == 401 and rule.message is None:
        message += f" You sent: {key}. You can find your key on your account page."
    canned = refuse(status, message, code=rule.code)
    headers = {**(retry_after(rule.form, rule.wait) if status == 429 else {}), **rule.headers}
    return msgspec.structs.replace(canned, headers=headers)


def retry_after(form: str, wait: float) -> dict[str, str]:
    """Every way to say "come back in `wait` seconds" that is in use, and the broken ones."""
    if form in ("http-date", "past-date"):
        ahead = math.ceil(wait) if form == "http-date" else -60
        return {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)}
    millis = math.ceil(wait * 1000)
    return {
        "seconds": {"Retry-After": str(math.ceil(wait))},
        "fractional": {"Retry-After": f"{wait:.3f}"},
        "ms": {"Retry-After": str(math.ceil(wait)), "retry-after-ms": str(millis)},
        "x-ms": {"x-ms-retry-after-ms": str(millis)},
        "reset-requests": {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": go_duration(wait)},
        "reset-tokens": {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": go_duration(wait)},
        "zero": {"Retry-After": "0"},
        "negative": {"Retry-After": "-1"},
        "garbage": {"Retry-After": "soon"},
        "none": {},
    }[form]


def over_limit(refusal: Refusal, model: str) -> Canned:
    """The endpoint's own 429, with the true wait."""
    unit = {"requests": "requests per min (RPM)", "tokens": "tokens per min (TPM)"}.get(refusal.limit)
    if unit is None:
        message = f"Too many concurrent requests for {model}: at most {refusal.allowed:.0f} at once."
        return refuse(429, message, code="concurrency_limit_exceeded")
    if refusal.wait == math.inf:
        message = f"Request too large for {model} on {unit}: it needs {refusal.wanted:.0f}, more than the burst."
        return refuse(429, message)
    wait = refusal.wait or 0.0
    message = (
        f"Rate limit reached for {model} on {unit}: Limit {refusal.allowed:.0f}. Try again in {go_duration(wait)}."
    )
    return msgspec.structs.replace(refuse(429, message), headers=retry_after("ms", wait))


def html_page(title: str) -> bytes:
    """A proxy's page of 20 KB."""
    row = "<p>The server returned an invalid or incomplete response. 잠시 후 다시 시도해 주세요.</p>\n"
    page = f"<html><head><title>{title}</title></head><body><h1>{title}</h1>\n{row * 240}</body></html>\n"
    return page.encode()
