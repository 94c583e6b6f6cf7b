"""What the doctor says of Redis and the payment provider, and what `siafu config check` refuses."""

from __future__ import annotations

import pytest

from gateway.fake_upstream import http, upstream
from siafu.border.secrets import Secret
from siafu.border.urls import origin
from siafu.config.beside import payments_rows, redis_rows
from siafu.config.checking import faults
from siafu.config.settings import Settings

NOBODY = "127.0.0.1:1"


def with_redis(url: str) -> Settings:
    return Settings(redis_url=Secret(url))


@pytest.mark.parametrize(("url", "advice"), [("foo", "looks like redis://"), (f"redis://{NOBODY}/0", "start it")])
async def test_a_redis_that_cannot_be_used_fails_with_what_to_do(url: str, advice: str) -> None:
    (row,) = await redis_rows(with_redis(url))
    assert row.state == "fail" and advice in row.advice
    assert await redis_rows(Settings()) == []


async def test_a_redis_that_answers_is_well(redis_url: str) -> None:
    assert [row.state for row in await redis_rows(with_redis(redis_url))] == ["ok"]


@pytest.mark.parametrize(("url", "advice"), [("foo", "looks like http://"), (f"http://{NOBODY}", "start it")])
async def test_a_payment_provider_that_cannot_be_used_fails_with_what_to_do(url: str, advice: str) -> None:
    (row,) = await payments_rows(url, "")
    assert row.state == "fail" and advice in row.advice
    assert await payments_rows("", "") == []


@pytest.mark.parametrize(
    ("body", "state", "words"),
    [
        ('{"idempotency": true, "lookup": false, "name": "pg"}', "ok", "pg answers"),
        ('{"idempotency": false, "lookup": false, "name": "pg"}', "warn", "neither"),
        ("<html>", "fail", "cannot be asked"),
    ],
)
async def test_what_a_payment_provider_can_do_is_told(body: str, state: str, words: str) -> None:
    async with upstream([http(body)]) as provider:
        (row,) = await payments_rows(origin(provider.base_url), "")
    assert row.state == state and words in row.found


def test_an_address_that_no_redis_has_is_a_fault_of_the_settings() -> None:
    assert any("redis_url" in fault for fault in faults(with_redis("foo")))
    assert faults(with_redis("redis://127.0.0.1:6379/0")) == []
