from __future__ import annotations

import pytest

from siafu.border.urls import checked_base_url, is_loopback, origin
from siafu.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://api.example.com/v1/", "https://api.example.com/v1"),
        (" https://api.example.com ", "https://api.example.com"),
        ("http://localhost:8080/v1", "http://localhost:8080/v1"),
        ("http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1"),
        ("http://[::1]:8080/v1", "http://[::1]:8080/v1"),
        ("HTTPS://API.example.com/v1", "HTTPS://API.example.com/v1"),
    ],
)
def test_good_base_urls(url: str, kept: str) -> None:
    assert checked_base_url(url, "base_url") == kept


@pytest.mark.parametrize(
    "url",
    [
        *("", "api.example.com/v1", "ftp://api.example.com", "file:///etc/passwd", "https://", "https:///v1"),
        *("http://api.example.com/v1", "http://127.1/v1", "http://2130706433/v1", "http://localhost.evil.example/v1"),
        *("http://0.0.0.0/v1", "http://169.254.169.254/v1", "http://[::ffff:169.254.169.254]/v1"),
        *("https://user:pass@api.example.com/v1", "https://api.example.com/v1?key=1", "https://api.example.com/v1#x"),
        *("https://api.example.com/v1?", "https://api.example.com/v1#", "https://api.example.com/v1/?/"),
        *("https://api.example.com/v1/chat/completions", "https://api.example.com:99999/v1", "https://[::1"),
        *("https://api.exa mple.com/v1", "https://api.example.com\n.evil.example/v1", "https://a.example\\@b.example"),
        "https://a.example/\x1b[31m",
    ],
)
def test_bad_base_urls_are_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        checked_base_url(url, "base_url")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *(("localhost", True), ("LOCALHOST.", True), ("a.localhost", True), ("127.8.9.1", True), ("::1", True)),
        *(("[::1]", True), ("10.0.0.1", False), ("example.com", False), ("localhost.com", False), ("", False)),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://API.example.com/v1", "https://api.example.com:443"),
        ("http://localhost/v1", "http://localhost:80"),
        ("http://[::1]:8080/v1", "http://[::1]:8080"),
    ],
)
def test_origin(url: str, expected: str) -> None:
    assert origin(url) == expected


def test_f58_a_key_in_the_place_of_the_url_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        checked_base_url("sk-test-0123456789abcdefghij", "base_url")
    assert "0123456789" not in caught.value.message
