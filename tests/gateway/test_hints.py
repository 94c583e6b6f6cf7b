from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.gateway.hints import server_wait

WALL = 1_767_225_600.0  # 2026-01-01 00:00:00 UTC


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "75"}, 75.0),
        ({"retry-after": " 2 "}, 2.0),
        ({"retry-after": "0.3"}, 0.3),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:03 GMT"}, 3.0),
        ({"retry-after": "Thursday, 01-Jan-26 00:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu Jan  1 00:02:00 2026"}, 120.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "12.5", "retry-after": "9"}, 0.0125),
        ({"x-ms-retry-after-ms": "1500"}, 1.5),
        ({"x-ratelimit-reset-requests": "1m30s"}, 90.0),
        ({"x-ratelimit-reset-requests": "12ms"}, 0.012),
        ({"x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-reset-tokens": "1h2m3.5s"}, 3723.5),
        ({"x-ratelimit-reset-tokens": "500µs"}, 0.0005),
        ({"x-ratelimit-reset-tokens": "7.66"}, 7.66),
        ({"x-ratelimit-reset-requests": "2s", "x-ratelimit-reset-tokens": "5s"}, 5.0),
        (
            {
                "x-ratelimit-reset-requests": "23h0m0s",
                "x-ratelimit-remaining-requests": "9999",
                "x-ratelimit-reset-tokens": "5s",
                "x-ratelimit-remaining-tokens": "0",
            },
            5.0,
        ),
        ({"retry-after": "3", "x-ratelimit-reset-requests": "9s"}, 3.0),
        ({"retry-after": "soon", "x-ratelimit-reset-requests": "9s"}, 9.0),
    ],
)
def test_f02_every_form_of_a_wait(headers: dict[str, str], seconds: float) -> None:
    assert server_wait(headers, WALL) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "-1", "0.0", "soon", "nan", "inf", "1e3", "0x10", "٣", "1,5", "+5", "9" * 400, "5s ago", "\ufffd"),
        *("Wed, 31 Dec 2025 23:59:59 GMT", "Thu, 99 Foo 2026 00:00:00 GMT", "Thu, 01 Jan 2026", "1m-5s", "ms", "m"),
    ],
)
@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms", "x-ms-retry-after-ms", "x-ratelimit-reset-requests"])
def test_f02_nonsense_and_the_past_are_no_hint(name: str, text: str) -> None:
    assert server_wait({name: text}, WALL) is None


@given(st.text(max_size=60))
def test_f02_no_text_can_crash_it(text: str) -> None:
    for name in ("retry-after", "retry-after-ms", "x-ratelimit-reset-tokens"):
        wait = server_wait({name: text}, WALL)
        assert wait is None or 0 < wait < float("inf")


@given(st.integers(1, 10**6))
def test_a_date_means_its_moment(ahead: int) -> None:
    assert server_wait({"retry-after": formatdate(WALL + ahead, usegmt=True)}, WALL) == ahead
