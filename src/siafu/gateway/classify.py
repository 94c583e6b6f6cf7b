"""What a refusal means: status, error code and error type decide, never the words of the message.

| answer                                                         | becomes         | ask again              |
|----------------------------------------------------------------|-----------------|------------------------|
| 429                                                            | RateLimited     | after the wait         |
| 503, 529                                                       | Overloaded      | after the wait         |
| 402; quota or billing in code or type, also as 400, 403 or 429 | QuotaExhausted  | no                     |
| 401, 403                                                       | AccessRefused   | no                     |
| 408, 409, 425, other 5xx                                       | UpstreamFault   | at most twice          |
| other 4xx, 3xx                                                 | RequestRefused  | no                     |
| 200 with an error object                                       | by its own code | as that code           |
| 200 that is no answer                                          | MalformedReply  | at most twice          |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from siafu.border.secrets import redact
from siafu.border.text import clean_bytes, preview
from siafu.errors import (
    AccessRefused,
    MalformedReply,
    ModelError,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    UpstreamFault,
)
from siafu.gateway.hints import server_wait

MAX_ERROR_BODY = 64 * 1024
_TEXT = 300
_CREDIT = {"billing", "balance", "credit", "credits", "payment", "arrearage"}
_NO_QUOTA = {"insufficient_quota", "insufficient_user_quota", "exceeded_current_quota_error", "quota_exhausted"}
# Words that stand for a status, in bodies that come with 200 or within a stream.
_WORDS = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "rate_limit_reached_error": 429,
    "too_many_requests": 429,
    "resource_exhausted": 429,
    "overloaded_error": 529,
    "engine_overloaded_error": 529,
    "overloaded": 529,
    "service_unavailable": 503,
    "unavailable": 503,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "invalid_authentication_error": 401,
    "permission_error": 403,
    "permission_denied_error": 403,
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "model_not_found": 404,
    "not_found_error": 404,
}


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """What an error object says. `words`: its code, type and status. `number`: a code that is one. `param`: the field
    of the request that it names.
    """

    text: str = ""
    words: tuple[str, ...] = ()
    number: int | None = None
    param: str | None = None


def classify(status: int, headers: Mapping[str, str], body: bytes, *, wall: float) -> ModelError:
    """The error for an answer with an error status. `headers`: lower-case names. `wall`: seconds since 1970."""
    try:
        detail = error_detail(msgspec.json.decode(body[:MAX_ERROR_BODY]))
    except (msgspec.DecodeError, RecursionError):
        detail = None
    if detail is None:
        detail = Detail(text=_outline(headers.get("content-type", ""), body))
    return judge(status, detail, wait=server_wait(headers, wall))


def error_detail(value: Any) -> Detail | None:
    """The error in a decoded body: `{"error": {...}}`, `{"error": "text"}`, a list of these, or an object with
    `message` or `detail`; None when there is none.
    """
    if isinstance(value, list) and value:
        return error_detail(value[0])
    if not isinstance(value, dict):
        return None
    found = value.get("error") or value
    if isinstance(found, str):
        return Detail(text=_said(found))
    if not isinstance(found, dict):
        return None
    text = found.get("message") or found.get("detail") or found.get("msg")
    given = [found.get(name) for name in ("code", "type", "status")]
    words = tuple(str(word) for word in given if isinstance(word, str | int) and not isinstance(word, bool) and word)
    if text is None and not words:
        return None
    number = next((int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 6), None)
    param = found.get("param")
    return Detail(text=_said(text), words=words, number=number, param=param if isinstance(param, str) else None)


def judge(status: int, detail: Detail, *, wait: float | None = None) -> ModelError:
    """The error for a status and what the body says of it; for a status below 300 the body's code decides."""
    meant = status if status >= 300 else _meant(detail)
    said = next((word for word in detail.words if not word.isdigit()), None) or next(iter(detail.words), None)
    code = None if said is None else preview(redact(said[:1000]), 100)
    name = " ".join(dict.fromkeys([str(meant or status), *([code] if code else [])]))
    text = f": {detail.text}" if detail.text else ""
    kind, message = _verdict(meant, detail.words, name, text)
    if wait is not None and kind in (RateLimited, Overloaded):
        message += f" (it asks to wait {wait:,.1f} s)"
    param = None if detail.param is None else preview(redact(detail.param[:1000]), 100)
    return kind(message, status=status, provider_code=code, param=param, wait=wait)


def _verdict(meant: int, words: tuple[str, ...], name: str, text: str) -> tuple[type[ModelError], str]:
    if meant == 402 or (meant in (0, 400, 403, 429) and _no_credit(meant, words)):
        advice = "; waiting does not help: top the account up, or use another key"
        return QuotaExhausted, f"the account has no credit or quota left ({name}){text}{advice}"
    if meant == 429:
        return RateLimited, f"the endpoint limits the rate of requests ({name}){text}"
    if meant in (503, 529):
        return Overloaded, f"the endpoint is overloaded ({name}){text}"
    if meant in (401, 403):
        advice = "; check the key, and that it belongs to this endpoint"
        return AccessRefused, f"the endpoint refused the key ({name}){text}{advice}"
    if meant in (0, 408, 409, 425) or meant >= 500:
        return UpstreamFault, f"the endpoint failed ({name}){text}"
    if meant < 400:
        advice = "; redirects are not followed, as the key is for one address only: set the base URL it leads to"
        return RequestRefused, f"the endpoint answered with a redirect ({name}){text}{advice}"
    return RequestRefused, f"the endpoint refused the request ({name}){text}"


def ambiguous_quota(code: str | None) -> bool:
    """True for a code that may mean a quota of this minute or of this month."""
    return code is not None and "quota" in _tokens(code)


def malformed(what: str, *, status: int = 200, content_type: str = "", body: bytes = b"") -> MalformedReply:
    """The error for a body that is no answer; it holds a short preview, never the page."""
    outline = f"; {_outline(content_type, body)}" if body else ""
    error = MalformedReply(f"the endpoint's answer cannot be used: {what} ({status}){outline}", status=status)
    error.web_page = content_type.lower().startswith("text/html") or body[:100].lstrip()[:1] == b"<"
    return error


def _meant(detail: Detail) -> int:
    """The status that a body stands for, 0 when it does not say."""
    if detail.number is not None and 400 <= detail.number < 600:
        return detail.number
    return next((_WORDS[word.lower()] for word in detail.words if word.lower() in _WORDS), 0)


def _no_credit(meant: int, words: tuple[str, ...]) -> bool:
    if any(word.lower() in _NO_QUOTA or _CREDIT & _tokens(word) for word in words):
        return True
    return meant in (400, 403) and any("quota" in _tokens(word) for word in words)


def _tokens(word: str) -> set[str]:
    return set(re.sub(r"([a-z])([A-Z])", r"\1 \2", word).lower().replace("_", " ").replace("-", " ").split())


def _said(text: Any) -> str:
    return "" if text is None else preview(redact(str(text)[:4000]), _TEXT)


def _outline(content_type: str, body: bytes) -> str:
    text = preview(redact(clean_bytes(body[:4096])), 200)
    return f"{preview(redact(content_type[:1000]), 60) or 'no content type'}, {len(body):,} bytes: {text!r}"
