from __future__ import annotations

import pytest

from siafu.border.urls import check_redis_url, check_server, checked_base_url, in_clear_text, is_loopback, origin
from siafu.errors import ConfigError
from siafu.tools.servers import McpServer


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
    "url",
    ["https://u:secret/pw@h/v1", "https://u:secret?pw@h", "https://u:secret#pw@h", "https://h:0/v1", "https://h:x/v1"],
)
def test_no_part_of_a_password_is_shown_where_it_looks_like_a_port(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url") as refused:
        checked_base_url(url, "base_url")
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as of_proxy:
        check_server(url, "HTTPS_PROXY", like="http://host:3128")
    with pytest.raises(ConfigError, match="redis_url") as of_redis:
        check_redis_url(url.replace("https", "redis"), "redis_url")
    assert "secret" not in f"{refused.value}{of_proxy.value}{of_redis.value}"


@pytest.mark.parametrize("url", ["", "nonsense", "socks5://h:1", "http:/h", "http://", "http://u:1/x@h"])
def test_what_is_no_address_of_a_proxy_or_collector_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="all_proxy is no address; it must look like http://h"):
        check_server(url, "all_proxy", like="http://h")


def test_an_address_of_a_proxy_may_hold_a_password() -> None:
    check_server("http://김:p%40ss@proxy.example:3128", "HTTPS_PROXY", like="http://host:3128")


@pytest.mark.parametrize(
    "url",
    [
        *("redis://h/x", "redis://h/0/1", "redis://h/-1", "redis://h/1.5", "redis://h/٣", "rediss://h/ㄱ"),
        *("redis:/h", "redis://", "redis://:pw@", "redi://h", "h:6379", "http://h", "redis://h /0", "redis://h/0#x"),
        *("unix://", "unix://tmp/x", "redis://u:1/x@h/0", "redis://u:1?x@h/0", "redis://h:99999"),
    ],
)
def test_an_address_of_redis_that_would_be_half_understood_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="redis_url must look like"):
        check_redis_url(url, "redis_url")


@pytest.mark.parametrize(
    "url",
    [
        *("redis://h", "redis://h/", "redis://h:6380/15", "REDISS://h/0", "redis://u:p%40%2F@h/0", "redis://:p@p@h"),
        *("unix:///tmp/redis.sock?db=1", "redis://[::1]:6379/0?db=2", "redis://한글.example/0"),
    ],
)
def test_addresses_of_redis(url: str) -> None:
    check_redis_url(url, "redis_url")


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


TRICKY = [
    # another scheme, or none
    *("ftp://a.example/v1", "file:///etc/passwd", "gopher://a.example", "javascript:alert(1)", "data:text/plain,x"),
    *("ws://127.0.0.1/v1", "unix:///run/x.sock", "//a.example/v1", "a.example/v1", "/v1", "https:/a.example/v1", ""),
    *("https:a.example/v1", "https://", "https:///v1", "http://:80/v1", "https://?x", "https://#x", "about:blank"),
    # a name or password, however empty, and what only looks like the host
    *("https://kim:pa55@a.example/v1", "https://kim@a.example/v1", "https://:pa55@a.example/v1"),
    *("https://@a.example/v1", "https://127.0.0.1@a.example/v1", "http://127.0.0.1:80@a.example/v1"),
    *("http://[::1]@a.example/v1", "https://a.example:443@b.example/v1", "http://a.example#@127.0.0.1/v1"),
    *("http://a.example?@127.0.0.1/v1", "https://a.example\\@b.example/v1", "http://127.0.0.1\\@a.example/v1"),
    # clear text to what is not this machine, or is it only for some readers
    *("http://a.example/v1", "HTTP://169.254.169.254/latest/meta-data", "http://169.254.169.254./v1"),
    *("http://0.0.0.0/v1", "http://0/v1", "http://127.1/v1", "http://2130706433/v1", "http://0x7f000001/v1"),
    *("http://0177.0.0.1/v1", "http://127.0.0.1.a.example/v1", "http://localhost.a.example/v1"),
    *("http://[::ffff:169.254.169.254]/v1", "http://[::]/v1", "http://[fd00::1]/v1", "http://[fe80::1]/v1"),
    *("http://10.0.0.1/v1", "http://100.64.0.1/v1", "http://192.168.0.1/v1", "http://１２７.0.0.1/v1"),
    *("http://ⓛocalhost/v1", "http://xn--80ak6aa92e.com/v1", "http://metadata.google.internal/v1"),
    "http://127.0.0.1。a.example/v1",
    # what readers take apart in different ways
    *("https://a.example%00.b.example/v1", "https://a.example%2f@b.example/v1", "https://a%2eexample/v1"),
    *("https://%61/v1", "https://a..example/v1", "https://.example/v1", "https://[::1/v1", "https://::1]/v1"),
    *("https://[fe80::1%25eth0]/v1", "https://a.example:99999/v1", "https://a.example:port/v1"),
    *("https://a.example:-1/v1", "https://a.exa mple/v1", "https://a.example\n.b.example/v1"),
    *("https://a.example\t/v1", "https://a.example/\x00v1"),
]


@pytest.mark.parametrize("url", TRICKY)
def test_sec25_tricky_addresses_are_refused_for_models_and_tools(url: str) -> None:
    for check in (lambda: checked_base_url(url, "base_url"), lambda: McpServer(name="a", url=url)):
        with pytest.raises(ConfigError) as caught:
            check()
        assert "pa55" not in caught.value.message


@pytest.mark.parametrize(
    "url", ["https://a.example/v1", "http://127.0.0.1:8000/v1", "http://localhost./v1", "https://[2001:db8::1]:8443/v1"]
)
def test_sec25_good_addresses_in_the_same_forms_are_taken(url: str) -> None:
    assert checked_base_url(url, "base_url") == url and McpServer(name="a", url=url).url == url


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("redis://cache.example:6379/0", "rediss://"),
        ("redis://:geheim@10.0.0.5", "rediss://"),
        ("postgresql://u:p@db.example/x", "sslmode=verify-full"),
        ("postgresql+psycopg://db.example/x?sslmode=prefer", "sslmode=verify-full"),
        ("postgres://db.example/x?sslmode=require&sslmode=disable", "sslmode=verify-full"),
        *(("rediss://cache.example", ""), ("redis://127.0.0.1:6379", ""), ("redis://localhost", "")),
        *(("postgresql://db.example/x?sslmode=verify-full", ""), ("postgresql://db.example/x?sslmode=require", "")),
        *(("postgresql://127.0.0.1/x", ""), ("postgresql:///x?host=/run/postgresql", ""), ("sqlite:///x.db", "")),
        *((".siafu/effects.db", ""), ("", ""), ("redis://[::1", "")),
    ],
)
def test_sec28_what_travels_in_clear_text_to_another_machine_is_known(url: str, advice: str) -> None:
    assert advice in in_clear_text(url) if advice else in_clear_text(url) == ""
