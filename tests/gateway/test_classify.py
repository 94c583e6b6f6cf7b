from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.secrets import Secret
from siafu.errors import (
    AccessRefused,
    ModelError,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    UpstreamFault,
)
from siafu.gateway.classify import ambiguous_quota, classify
from siafu.gateway.wire import body_error

WALL = 1_767_225_600.0


def judged(status: int, body: Any = None, **headers: str) -> ModelError:
    data = body if isinstance(body, bytes) else json.dumps(body if body is not None else {"error": {"message": "no"}})
    return classify(status, headers, data if isinstance(data, bytes) else data.encode(), wall=WALL)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, RequestRefused), (401, AccessRefused), (402, QuotaExhausted), (403, AccessRefused)),
        *((404, RequestRefused), (405, RequestRefused), (408, UpstreamFault), (409, UpstreamFault)),
        *((413, RequestRefused), (422, RequestRefused), (425, UpstreamFault), (429, RateLimited)),
        *((500, UpstreamFault), (501, UpstreamFault), (502, UpstreamFault), (503, Overloaded), (504, UpstreamFault)),
        *((520, UpstreamFault), (529, Overloaded), (301, RequestRefused), (307, RequestRefused)),
    ],
)
def test_f05_the_status_decides(status: int, kind: type[ModelError]) -> None:
    error = judged(status)
    assert type(error) is kind
    assert error.status == status
    assert str(status) in error.message


@pytest.mark.parametrize("status", [400, 403, 429])
@pytest.mark.parametrize(
    "given",
    [
        {"code": "insufficient_quota", "type": "insufficient_quota"},
        {"type": "billing_error"},
        {"code": "billing_hard_limit_reached"},
        {"type": "exceeded_current_quota_error"},
        {"code": "InsufficientBalance"},
        {"code": "insufficient_user_quota"},
        {"code": "credit_balance_too_low"},
        {"code": "Arrearage"},
    ],
)
def test_f04_exhausted_quota_is_told_apart_in_any_dress(status: int, given: dict[str, str]) -> None:
    error = judged(status, {"error": {"message": "slow down", **given}})
    assert type(error) is QuotaExhausted
    assert not error.retryable
    assert "top the account up" in error.message


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        # the words of the message never decide
        (429, {"message": "You exceeded your current quota, check your billing"}, RateLimited),
        (400, {"message": "rate limit reached, insufficient balance"}, RequestRefused),
        (500, {"message": "invalid api key"}, UpstreamFault),
        # words that only look like billing
        (403, {"code": "invalid_credentials"}, AccessRefused),
        (429, {"code": "load_balancer_limit"}, RateLimited),
        (500, {"code": "billing_service_down"}, UpstreamFault),
        # never again what is wrong in itself, whatever its code says
        (400, {"code": "rate_limit_exceeded"}, RequestRefused),
    ],
)
def test_codes_and_types_decide_and_messages_do_not(status: int, error: dict[str, str], kind: type) -> None:
    assert type(judged(status, {"error": error})) is kind


@pytest.mark.parametrize(
    ("code", "unsure"),
    [("quota_exceeded", True), ("QuotaExceeded", True), ("rate_limit_exceeded", False), (None, False), ("", False)],
)
def test_quota_wording_that_may_mean_a_minute_is_ambiguous(code: str | None, unsure: bool) -> None:
    assert ambiguous_quota(code) is unsure
    if unsure:
        assert type(judged(429, {"error": {"code": code}})) is RateLimited
        assert type(judged(403, {"error": {"code": code}})) is QuotaExhausted


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 429, "message": "rate limited upstream"}, RateLimited),
        ({"code": "429"}, RateLimited),
        ({"code": 401, "message": "no auth"}, AccessRefused),
        ({"code": 402}, QuotaExhausted),
        ({"code": 503}, Overloaded),
        ({"code": 500, "message": "engine died"}, UpstreamFault),
        ({"code": 400}, RequestRefused),
        ({"code": 50001}, UpstreamFault),
        ({"type": "rate_limit_error"}, RateLimited),
        ({"status": "RESOURCE_EXHAUSTED"}, RateLimited),
        ({"type": "overloaded_error"}, Overloaded),
        ({"code": "insufficient_quota"}, QuotaExhausted),
        ({"code": "context_length_exceeded"}, RequestRefused),
        ({"code": "no_such_word"}, UpstreamFault),
        ({}, UpstreamFault),
        ("plain words", UpstreamFault),
        (["odd"], UpstreamFault),
        (True, UpstreamFault),
    ],
)
def test_f07_an_error_in_a_200_counts_by_its_own_code(error: Any, kind: type) -> None:
    assert type(body_error(error)) is kind


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "잔액 부족", "code": "x"}},
        {"error": "잔액 부족"},
        [{"error": {"message": "잔액 부족"}}],
        {"message": "잔액 부족", "code": "x"},
        {"detail": "잔액 부족"},
    ],
)
def test_every_shape_of_error_body_is_shown(body: Any) -> None:
    assert "잔액 부족" in judged(400, body).message


def test_the_code_and_wait_are_kept() -> None:
    error = judged(429, {"error": {"code": "rate_limit_exceeded", "type": "requests"}}, **{"retry-after": "75"})
    assert error.provider_code == "rate_limit_exceeded"
    assert error.wait == 75
    assert "75.0 s" in error.message


def test_f09_a_page_becomes_a_line() -> None:
    page = b"<html>" + b"<p>Bad Gateway</p>" * 2000 + b"</html>"
    error = judged(502, page, **{"content-type": "text/html; charset=utf-8"})
    assert type(error) is UpstreamFault
    assert "text/html" in error.message and "502" in error.message and "36,013 bytes" in error.message
    assert len(error.message) < 500


def test_f58_a_key_in_an_error_body_is_masked() -> None:
    key = "hunter2-hunter2-hunter2"
    Secret(key)
    for body in ({"error": {"message": f"bad key {key}", "code": f"x{key}"}}, key.encode(), ("x" * 290 + key).encode()):
        error = judged(401, body)
        assert key not in error.message and key[:15] not in error.message
        assert key not in str(error.provider_code)
        assert "check the key" in error.message
    page = classify(502, {"content-type": f"text/html; {key}"}, b"<html>", wall=0.0)
    assert key not in page.message and "text/html" in page.message


@given(st.integers(300, 599), st.binary(max_size=200), st.dictionaries(st.text(max_size=20), st.text(max_size=20)))
def test_any_answer_becomes_a_bounded_error(status: int, body: bytes, headers: dict[str, str]) -> None:
    error = classify(status, headers, body, wall=WALL)
    assert isinstance(error, ModelError)
    assert len(error.message) < 1200
    error.message.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "message", "code", "type", "status", "detail"]), inner, max_size=4)
    ),
)


@given(st.sampled_from([400, 401, 429, 500, 503]), JSON)
def test_any_json_becomes_a_bounded_error(status: int, body: Any) -> None:
    error = judged(status, {"error": body})
    assert len(error.message) < 1200
    assert error.provider_code is None or len(error.provider_code) <= 100
