from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.text import clean, clean_bytes, preview, printable

ANY = st.text(st.characters(codec=None, exclude_categories=()))


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("주문 1001", "주문 1001"),
        ("ok \ud83d 끝", "ok \ufffd 끝"),
        ("a\x00b", "a\ufffdb"),
        ("😀", "😀"),
        ("", ""),
    ],
)
def test_f48_lone_surrogates_and_nul_are_replaced(raw: str, safe: str) -> None:
    assert clean(raw) == safe


@given(ANY)
def test_clean_text_is_valid_everywhere_and_clean_twice_is_clean_once(text: str) -> None:
    safe = clean(text)
    assert "\x00" not in safe
    assert (safe.encode() and clean(safe) == safe) or safe == ""
    assert len(safe) == len(text)


@given(st.binary())
def test_any_bytes_become_text(data: bytes) -> None:
    assert clean_bytes(data).encode("utf-8") is not None


def test_broken_utf8_keeps_what_is_good() -> None:
    assert clean_bytes("환불 ".encode() + b"\xff\xfe ok") == "환불 \ufffd\ufffd ok"


@given(ANY, st.integers(1, 300))
def test_a_preview_is_one_short_printable_line(text: str, limit: int) -> None:
    line = preview(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
    assert "\x1b" not in line and "\t" not in line
    line.encode()


def test_a_preview_of_a_page_is_short() -> None:
    assert preview("<html>\r\n" + "가" * 100_000) == "<html>  " + "가" * 191 + "…"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[31mred", "\ufffd[31mred"),
        ("a\u202egpj.exe", "a\ufffdgpj.exe"),
        ("a\r\nb", "a\ufffd\nb"),
        ("\x9b31m", "\ufffd31m"),
    ],
)
def test_terminal_control_does_not_pass(raw: str, shown: str) -> None:
    assert printable(raw) == shown
