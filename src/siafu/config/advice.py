"""What to do about what an endpoint said: pure, and in general words, as providers change theirs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from siafu.border.secrets import Secret
from siafu.errors import (
    AccessRefused,
    MalformedReply,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    SiafuError,
    Unreachable,
)

State = Literal["ok", "warn", "fail"]
SKEW_SECONDS = 30.0
PROXY = "the proxy (HTTPS_PROXY, or upstreams.NAME.proxy)"

# How keys begin and where hosts end, as their providers document them.
_BEGINS = (
    ("sk-ant-", "Anthropic"),
    ("sk-or-", "OpenRouter"),
    ("sk-proj-", "OpenAI"),
    ("sk-svcacct-", "OpenAI"),
    ("gsk_", "Groq"),
    ("xai-", "xAI"),
    ("AIza", "Google"),
    ("hf_", "Hugging Face"),
    ("nvapi-", "NVIDIA"),
    ("pplx-", "Perplexity"),
)
_HOSTS = (
    ("anthropic.com", "Anthropic"),
    ("openrouter.ai", "OpenRouter"),
    ("openai.com", "OpenAI"),
    ("groq.com", "Groq"),
    ("x.ai", "xAI"),
    ("googleapis.com", "Google"),
    ("huggingface.co", "Hugging Face"),
    ("nvidia.com", "NVIDIA"),
    ("perplexity.ai", "Perplexity"),
    ("moonshot.ai", "Moonshot AI"),
    ("moonshot.cn", "Moonshot AI in China"),
    ("deepseek.com", "DeepSeek"),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. `advice`: what to do; empty when there is nothing to do."""

    check: str
    state: State
    found: str
    advice: str = ""


def maker_of_key(key: Secret) -> str:
    """Whose key it is by its beginning; empty when that does not tell."""
    return next((maker for begin, maker in _BEGINS if key.reveal().startswith(begin)), "")


def maker_of_host(host: str) -> str:
    """Whose endpoint it is; empty when it is none of the well-known ones."""
    name = host.rstrip(".").lower()
    return next((maker for end, maker in _HOSTS if name == end or name.endswith("." + end)), "")


def wrong_maker(base_url: str, key: Secret | None) -> str:
    """What to do when `key` is clearly for another well-known provider than `base_url`; empty when it may fit."""
    host = urlsplit(base_url).hostname or ""
    of_key, of_host = "" if key is None else maker_of_key(key), maker_of_host(host)
    return _mixed_up(of_key, host) if of_key and of_host and of_key != of_host else ""


def _mixed_up(of_key: str, host: str) -> str:
    return (
        f"the key begins like one of {of_key}, which {host} would not take: set the key for {host}, or SIAFU_BASE_URL "
        f"to the address of {of_key}"
    )


def advice(error: SiafuError, base_url: str, key: Secret | None) -> str:
    """What to do after `error` from the endpoint at `base_url`, called with `key`."""
    host = urlsplit(base_url).hostname or ""
    if isinstance(error, AccessRefused):
        return _about_key(error.status, host, key)
    if isinstance(error, QuotaExhausted):
        return "top the account up, or use another key"
    if isinstance(error, RateLimited):
        return "wait a little, then try again; set limits.rpm below the account's limit"
    if isinstance(error, RequestRefused) and error.status in (404, 405):
        if not urlsplit(base_url).path.strip("/"):
            return f"the path of the API is missing: try {base_url}/v1"
        return "check the path: it must be the part before /chat/completions"
    if isinstance(error, MalformedReply) and error.web_page:
        return (
            f"that is a web page: {base_url} leads to a site, a dashboard or a log-in, not to an API, whose address "
            "often begins with api. and ends with /v1"
        )
    if isinstance(error, Unreachable) and error.status == 407:
        return f"{PROXY} wants a user name and a password: http://NAME:PASSWORD@HOST:PORT, in a variable"
    if isinstance(error, Unreachable):
        return f"check the address, the network and {PROXY}"
    return ""


def path_of(base_url: str) -> str:
    """What to do when the API was found at `base_url`."""
    return f"the API is at {base_url}: set the base URL to that"


def _about_key(status: int | None, host: str, key: Secret | None) -> str:
    if key is None:
        return "this endpoint wants a key: set SIAFU_API_KEY, or endpoint.api_key in siafu.toml"
    of_key, of_host = maker_of_key(key), maker_of_host(host)
    if of_key and of_key != of_host:
        return _mixed_up(of_key, host)
    if status == 403:
        return "the key is known but may not do this: check its project, its permissions and its region"
    if of_host == "OpenAI" and not of_key:
        return f"a key for another provider? Set SIAFU_BASE_URL to its address; {host} is the default"
    return f"make sure that the key is complete, not revoked, and of an account at {host}"


def model_row(model: str, roles: Sequence[str], offered: Sequence[str]) -> Row:
    """Whether a model is among those that the endpoint offers."""
    check = f"model {model}"
    for_what = f"for {', '.join(roles)}"
    if model in offered or f"models/{model}" in offered:
        return Row(check=check, state="ok", found=f"offered; {for_what}")
    near = difflib.get_close_matches(model, offered, n=3)
    return Row(
        check=check,
        state="warn",
        found=f"not in the endpoint's list of {len(offered):,}; {for_what}",
        advice=(f"did you mean {', '.join(near)}? " if near else "") + "`siafu doctor --call` shows whether it answers",
    )


def clock_row(ahead: float | None) -> Row:
    """Whether our clock agrees with the endpoint's. Identities and waits until a date rest on it."""
    if ahead is None:
        return Row(check="clock", state="ok", found="the endpoint tells no time to compare with")
    way = "ahead of" if ahead > 0 else "behind"
    if abs(ahead) <= SKEW_SECONDS:
        return Row(check="clock", state="ok", found=f"within {SKEW_SECONDS:g} s of the endpoint's")
    return Row(
        check="clock",
        state="warn",
        found=f"{abs(ahead):,.0f} s {way} the endpoint's",
        advice="set this machine's clock, best by NTP; waits and identities rest on it",
    )
