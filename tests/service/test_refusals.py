"""How errors are told to clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from siafu import errors
from siafu.border.secrets import Secret
from siafu.errors import SiafuError
from siafu.service.refusals import Refused, not_here, refusal, told

STATUS = {
    errors.RateLimited: 429,
    errors.Overloaded: 503,
    errors.UpstreamFault: 502,
    errors.Unreachable: 502,
    errors.MalformedReply: 502,
    errors.CallTimeout: 504,
    errors.AccessRefused: 502,  # the key is siafu's, not the client's
    errors.QuotaExhausted: 429,
    errors.UnpricedModel: 400,
    errors.BudgetReached: 429,
    errors.DeadlineReached: 504,
    errors.StoreError: 500,
    errors.DiskFull: 507,
    errors.BacklogFull: 429,
    errors.ConfigError: 500,
}


def tree(kind: type[SiafuError]) -> Iterator[type[SiafuError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


_MORE: dict[type[SiafuError], dict[str, Any]] = {
    errors.BacklogFull: {"retry_after": 5.0},
    errors.CallTimeout: {"phase": "idle"},
    errors.IdentityInvalid: {"reason": "expired"},
    errors.Conflict: {"constraint": "unique"},
    errors.BacklogFull: {"retry_after": 7.0},
}


def make(kind: type[SiafuError], text: str = "why") -> SiafuError:
    if issubclass(kind, errors.ConfigErrors):
        return kind([text])
    return kind(text, **_MORE.get(kind, {}))


@pytest.mark.parametrize("kind", sorted(set(tree(SiafuError)), key=str))
def test_every_error_has_an_answer_in_openais_shape(kind: type[SiafuError]) -> None:
    found = refusal(make(kind))
    error = json.loads(found.body())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert 400 <= found.status < 600
    assert found.status == STATUS.get(kind, found.status)
    told = error["message"] == "why"
    assert told != found.log.endswith(": why")
    assert told or error["message"].endswith("under this request id")


def test_sec37_what_concerns_the_operator_is_not_told() -> None:
    for kind in (errors.StoreError, errors.ConfigError, errors.StoreBusy, errors.Conflict):
        found = refusal(make(kind, "/home/me/.siafu/serve.db is locked"))
        assert b"/home" not in found.body() and "/home/me/.siafu/serve.db is locked" in found.log
    for behind in (errors.Unreachable, errors.CallTimeout, errors.UpstreamFault, errors.MalformedReply):
        found = refusal(make(behind, "seoul (https://10.0.0.7/v1) cannot be reached"))
        assert b"10.0.0.7" not in found.body() and "10.0.0.7" in found.log
    said = errors.UpstreamFault("the endpoint failed (500): engine died", status=500)
    assert refusal(said).message == said.message  # an endpoint's own words are for who asked it
    secret = Secret("sk-provider-0123456789abcdef")
    assert secret.reveal().encode() not in told("upstream_fault", f"Bearer {secret.reveal()}").body()


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [(400, 400, "bad"), (404, 404, "bad"), (413, 413, "bad"), (422, 422, "bad"), (301, 502, "bad"), (200, 502, "bad")],
)
def test_a_refusal_of_the_upstream_keeps_its_status_and_words(given: int, status: int, code: str) -> None:
    error = errors.RequestRefused("no", status=given, provider_code="bad", param="messages")
    found = refusal(error)
    assert (found.status, found.code, found.param) == (status, code, "messages")


def test_headers_say_when_to_ask_again_and_when_not() -> None:
    assert refusal(errors.RateLimited("slow", wait=2.2)).headers() == [(b"retry-after", b"3")]
    assert refusal(errors.Overloaded("full", wait=0.0)).headers() == [(b"retry-after", b"1")]
    assert refusal(errors.QuotaExhausted("empty")).headers() == [(b"x-should-retry", b"false")]
    assert refusal(errors.UpstreamFault("cut")).headers() == []
    assert dict(Refused(401, "who?").headers())[b"www-authenticate"] == b"Bearer"


def test_types_are_those_of_openai() -> None:
    said = {code: json.loads(told(code, "").body())["error"]["type"] for code in ("budget_reached", "rate_limited")}
    assert said == {"budget_reached": "insufficient_quota", "rate_limited": "rate_limit_error"}
    assert json.loads(told("nobody knows", "").body())["error"]["type"] == "server_error"


def test_an_unknown_path_gets_help() -> None:
    known = {"/v1/chat/completions": ["POST"], "/v1/models": ["GET"]}
    assert "did you mean /v1/chat/completions" in not_here("POST", "/chat/completions", known).message
    assert "It serves /v1/chat/completions" in not_here("POST", "/v1/embeddings", known).message
    found = not_here("DELETE", "/v1/models", known)
    assert (found.status, found.message) == (405, "/v1/models takes GET, not DELETE")
    assert not_here("GET", "/" + "x" * 10_000, known).status == 404
