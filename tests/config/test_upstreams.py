"""`[upstreams]` and `[[routes]]`: what the settings become, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from siafu.config.budgets import key_budgets
from siafu.config.checking import problems
from siafu.config.settings import Settings, load
from siafu.config.upstreams import configured_ways, rules
from siafu.errors import ConfigError

KEY = "sk-test-0123456789abcdefghij"
FILE = """
[limits]
concurrency = 40
[upstreams.seoul]
base_url = "https://seoul.example/v1"
api_keys = ["env:SEOUL_A", "env:SEOUL_B"]
models = ["big", "small"]
weight = 3
first_byte_seconds = 20
rpm = 120
[upstreams.azure]
base_url = "https://azure.example/openai/deployments/d"
api_key = "env:AZURE"
key_header = "api-key"
query = { api-version = "2024-10-21" }
models = { big = "d" }
tier = 2
concurrency = 7
[[routes]]
role = ["refund"]
use = ["big@azure", "big"]
[[routes]]
max_input_tokens = 500
use = ["small"]
"""


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEOUL_A", "SEOUL_B", "AZURE"):
        monkeypatch.setenv(name, f"{KEY}-{name.lower()}")


def settings(tmp_path: Path, text: str = FILE, **environ: str) -> Settings:
    file = tmp_path / "siafu.toml"
    file.write_text(text, encoding="utf-8")
    return load(config=file, environ=environ)


def test_each_key_is_a_way_of_its_own_with_the_limits_of_its_upstream(tmp_path: Path) -> None:
    ways = configured_ways(settings(tmp_path))
    assert [way.id for way in ways] == ["seoul#1", "seoul#2", "azure"]
    assert [way.upstream.key.reveal() for way in ways if way.upstream.key] == [
        f"{KEY}-{name}" for name in ("seoul_a", "seoul_b", "azure")
    ]
    first, azure = ways[0], ways[2]
    assert (first.models, first.tier, first.weight) == ({"big": "big", "small": "small"}, 1, 3.0)
    assert (first.limits.rpm, first.limits.concurrency, first.upstream.timeouts.first_byte) == (120, 40, 20)
    assert (azure.models, azure.tier, azure.limits.concurrency, azure.limits.rpm) == ({"big": "d"}, 2, 7, None)
    assert azure.upstream.url("/chat/completions") == (
        "https://azure.example/openai/deployments/d/chat/completions?api-version=2024-10-21"
    )


def test_without_redis_each_process_takes_its_fair_part(tmp_path: Path) -> None:
    def limits(**environ: str) -> list[tuple[int, float | None]]:
        ways = configured_ways(settings(tmp_path, FILE, **environ))
        return [(way.limits.concurrency, way.limits.rpm) for way in ways]

    whole = [(40, 120.0), (40, 120.0), (7, None)]
    assert limits() == whole
    assert limits(SIAFU_PROCESSES="4") == [(10, 30.0), (10, 30.0), (1, None)]
    assert limits(SIAFU_PROCESSES="50")[2] == (1, None)  # nobody can do with less than one call
    assert limits(SIAFU_PROCESSES="4", SIAFU_REDIS_URL="redis://127.0.0.1:1") == whole  # shared there


def test_routes_become_rules_in_their_order(tmp_path: Path) -> None:
    first, second = rules(settings(tmp_path))
    assert [(each.model, each.upstream) for each in first.use] == [("big", "azure"), ("big", "")]
    assert first.roles == frozenset({"refund"}) and second.max_tokens == 500 and second.roles is None


def test_an_address_of_ours_stands_for_all_of_them(tmp_path: Path) -> None:
    budgets = '[budgets]\nkeys = { "seoul#2" = "1 USD", "default#1" = "2 USD" }\n'
    one = settings(tmp_path, FILE + budgets, SIAFU_BASE_URL="http://127.0.0.1:9/v1")
    assert key_budgets(one) == {"default#1": 2 * 10**12}
    assert [way.upstream.base_url for way in configured_ways(one)] == ["http://127.0.0.1:9/v1"] and rules(one) == []
    file = tmp_path / "siafu.toml"
    by_flag = load(config=file, flags={"endpoint.base_url": "http://127.0.0.1:9/v1"}, environ={})
    assert not by_flag.upstreams
    by_others = load(config=file, environ={"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    assert list(by_others.upstreams) == ["seoul", "azure"]


def test_a_budget_is_of_a_key_that_is_there(tmp_path: Path) -> None:
    wrong = FILE + '[budgets]\nkeys = { "soeul#1" = "1 USD" }\n'
    with pytest.raises(ConfigError, match=r"budgets.keys names 'soeul#1'.*did you mean 'seoul#1'"):
        key_budgets(settings(tmp_path, wrong))
    assert "siafu.toml:26: budgets.keys" in " ".join(problems(tmp_path / "siafu.toml"))


def test_models_that_nobody_named_are_those_of_the_first_upstream(tmp_path: Path) -> None:
    assert settings(tmp_path).model("strong") == "big"
    with pytest.raises(ConfigError, match="SIAFU_MODEL"):
        settings(tmp_path, FILE.replace('models = ["big", "small"]', "")).model("default")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"env:SEOUL_A"', f'"{KEY}"', "upstreams.seoul.api_keys in .* must be"),
        ('api_key = "env:AZURE"', f'api_key = "{KEY}"', "upstreams.azure.api_key in .* must be"),
        ('"env:SEOUL_B"', '"env:NOT_SET"', r"upstreams.seoul.api_keys\[1\] names .* NOT_SET"),
        ('api_keys = ["env:SEOUL_A", "env:SEOUL_B"]', "", "no key for https://seoul.example/v1"),
        ('api_key = "env:AZURE"', 'api_key = "env:AZURE"\napi_keys = ["env:AZURE"]', "either api_key or api_keys"),
        ("tier = 2", "teir = 2", "upstreams.azure.teir is no setting; did you mean tier"),
        ("https://azure.example", "http://azure.example", "clear text"),
        ('"big@azure"', '"big@azur"', "names the upstream 'azur', which is not set; did you mean azure"),
        ('"big@azure"', '"@azure"', "names no model"),
        ('role = ["refund"]', 'rolle = ["refund"]', "did you mean role"),
        ('key_header = "api-key"', 'key_header = "api key"', "no header's name"),
        ('base_url = "https://seoul.example/v1"', "", "upstreams.seoul.base_url is missing"),
        ("tier = 2", 'proxy = "proxy:3128"', "upstreams.azure.proxy must look like http://host:3128"),
        ("tier = 2", 'proxy = "env:NOT_SET"', "upstreams.azure.proxy names .* NOT_SET"),
        ("tier = 2", 'proxy = "http://kim:pa55word@p:1"', "upstreams.azure.proxy in .* must be"),
        ("[upstreams.seoul]", '[upstreams."seoul#1"]', "holds no @, no #"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in FILE
    with pytest.raises(ConfigError, match=words):
        found = settings(tmp_path, FILE.replace(old, new))
        configured_ways(found)
        rules(found)


def test_a_file_of_certificates_that_is_none(tmp_path: Path) -> None:
    from siafu.gateway.upstream import Upstream  # noqa: PLC0415

    for file in (tmp_path / "none.pem", tmp_path / "empty.pem"):
        (tmp_path / "empty.pem").write_text("no certificate")
        with pytest.raises(ConfigError, match="ca_file of u, cannot be used"):
            Upstream(name="u", base_url="https://u.example/v1", ca_file=file).trusted()


def test_a_proxy_with_a_password_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXY", "http://kim:pa55word@proxy.example:3128")
    ways = configured_ways(settings(tmp_path, FILE.replace("tier = 2", 'proxy = "env:PROXY"')))
    assert ways[-1].upstream.proxy_for("https://azure.example/") == "http://kim:pa55word@proxy.example:3128"
    assert "pa55word" not in repr(ways)


def test_nothing_of_a_key_is_shown(tmp_path: Path) -> None:
    found: Any = settings(tmp_path)
    assert KEY not in repr(found) and KEY not in repr(configured_ways(found))
