from __future__ import annotations

import copy
import json
import pickle
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border import secrets
from siafu.border.secrets import _PATTERNS, Secret, checked_key, redact
from siafu.errors import ConfigError

KEY = "sk-test-0123456789abcdefghij"


def test_f58_a_secret_does_not_print_itself() -> None:
    secret = Secret(KEY)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>40}", f"{[secret]}", f"{secret!r}"]
    assert not any(KEY in text for text in shown)
    assert secret.reveal() == KEY  # positive control
    for refused in (pickle.dumps, copy.copy, msgspec.json.encode, json.dumps):
        with pytest.raises(TypeError):
            refused(secret)
    assert secret == Secret(KEY) and secret != KEY and hash(secret) == hash(Secret(KEY))


@pytest.mark.parametrize(
    "text",
    [
        "the key sk-unknown-abcdefghijklmnop was refused",
        "Authorization: Bearer abcdefghijklmnop.qrst",
        "proxy http://user:pa55word@proxy.example:3128 failed",
        "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "GET /v1?api_key=abcdef123456&x=1",
        "AIzaSyA0123456789abcdefghijklmnopqrstuv",
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str) -> None:
    assert "***" in redact(text)
    for piece in ("abcdefghijklmnop", "pa55word", "c2lnbmF0dXJl", "abcdef123456", "AIzaSy"):
        assert piece not in redact(text)


@pytest.mark.parametrize(
    "text", ["주문 1001 환불", "task-1234 failed", "https://api.example.com:443/v1", "max_tokens=1234567"]
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


PIECES = [
    "sk-",
    "tok-",
    "key",
    "-",
    "=",
    "Bearer ",
    "Basic\t",
    "basic ",
    "://",
    "u:p",
    "@",
    "eyJ",
    ".",
    "AIza",
    "API_KEY",
    "password",
]
PIECES += ["\u017f", "\u212a", "access_to", "en=", "abcdefghij0123456789", "x" * 30, " ", "주문"]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_no_short_cut_passes_what_a_pattern_finds(text: str) -> None:
    with patch.object(secrets, "_known", set()):  # other tests have made some of these words known
        assert (redact(text) != text) == (_PATTERNS.search(text) is not None)


@pytest.mark.parametrize("word", ["PA\u017f\u017fWORD=hunter22", "AP\u0130_KEY=1234567", "api_\u212aey=1234567"])
def test_letters_that_only_a_pattern_takes_for_others_are_no_way_around(word: str) -> None:
    assert (redact(word) != word) == (_PATTERNS.search(word) is not None)


def test_known_secrets_are_masked_whole_even_when_one_begins_with_another() -> None:
    Secret("hunter2-hunter2")
    Secret("hunter2-hunter2-more")
    assert redact("x hunter2-hunter2-more y") == "x *** y"


@pytest.mark.parametrize(
    "value",
    [
        *("", "  ", "YOUR_API_KEY", "your-key-here", "<key>", "[KEY]", "sk-...", "sk-xxxx", "xxx", "...", "changeme"),
        *("OPENAI_API_KEY", "MOONSHOT_API_KEY", "${OPENAI_API_KEY}", "$KEY", "sk-your-key", "***", "insert-api-key"),
        *("sk-abc def", "sk-abc\ndef", "열쇠열쇠열쇠", "sk-\x00abc", '"sk-abcdef"', "'sk-abcdef'", "`sk-abcdef`"),
    ],
)
def test_placeholders_and_broken_keys_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="SIAFU_KEY"):
        checked_key(value, "SIAFU_KEY")


@pytest.mark.parametrize("value", [KEY, "EMPTY", "dummy", "sk-proj-Ab_c-9Z", " gsk_a1b2c3d4 ", "0123456789abcdef.Zz"])
def test_real_keys_are_taken(value: str) -> None:
    assert checked_key(value, "SIAFU_KEY").reveal() == value.strip()


def test_a_known_secret_inside_or_across_something_that_looks_like_one() -> None:
    Secret("89abcdefgh")
    Secret("0123456789%%tail-of-it")
    assert redact("key sk-0123456789abcdefghij!") == "key ***!"
    assert redact("key sk-aaaaaaaaaa0123456789%%tail-of-it, more") == "key ***, more"
