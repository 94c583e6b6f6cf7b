from __future__ import annotations

import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from siafu.border.secrets import Secret
from siafu.config.settings import OPENAI, Settings, given, load
from siafu.config.upstreams import configured_ways
from siafu.errors import ConfigError

KEY = "k3y-that-is-real-0123456789"


def file(folder: Path, text: str) -> Path:
    path = folder / "some.toml"
    path.write_text(text, encoding="utf-8")
    return path


def key(settings: Settings) -> Secret | None:
    """The one with which models are called."""
    (way,) = configured_ways(settings)
    return way.upstream.key


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rpm(config: Path | None, environ: dict[str, str], flag: float | None) -> float | None:
    return load(config=config, environ=environ, flags={"limits.rpm": flag}).limits.rpm


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    config = file(tmp_path, "[limits]\nrpm = 1")
    assert rpm(None, {}, None) is None
    assert rpm(config, {}, None) == 1
    assert rpm(config, {"SIAFU_RPM": "2"}, None) == 2
    assert rpm(config, {"SIAFU_RPM": ""}, None) == 1  # set to nothing is not set
    assert rpm(config, {"SIAFU_RPM": "2"}, 3) == 3


def test_the_file_is_the_given_one_else_that_of_the_environment_else_the_one_here(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("limits.rpm = 1")
    two.write_text("limits.rpm = 2")
    (tmp_path / "siafu.toml").write_text("limits.rpm = 3")
    assert rpm(None, {}, None) == 3
    assert rpm(None, {"SIAFU_CONFIG": str(two)}, None) == 2
    assert rpm(one, {"SIAFU_CONFIG": str(two)}, None) == 1
    with pytest.raises(ConfigError, match=r"nowhere.toml cannot be read: No such file"):
        load(config=tmp_path / "nowhere.toml", environ={})


def test_our_own_variables_win_over_those_of_others() -> None:
    environ = {
        "OPENAI_BASE_URL": "https://theirs.example/v1",
        "OPENAI_API_KEY": "theirs-0123456789",
        "SIAFU_BASE_URL": "https://ours.example/v1",
        "SIAFU_API_KEY": KEY,
    }
    both = load(environ=environ)
    assert both.base_url() == "https://ours.example/v1" and key(both) == Secret(KEY)
    theirs = load(environ={name: value for name, value in environ.items() if "OPENAI" in name})
    assert theirs.base_url() == "https://theirs.example/v1" and key(theirs) == Secret("theirs-0123456789")


def test_a_key_of_the_shell_is_not_sent_to_the_files_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", KEY)
    config = file(tmp_path, '[endpoint]\nbase_url = "https://mine.example/v1"\napi_key = "env:MINE"')
    other = {"OPENAI_API_KEY": "theirs-0123456789"}
    assert key(load(config=config, environ=other)) == Secret(KEY)
    address = {"OPENAI_BASE_URL": "https://theirs.example/v1"}
    assert load(config=config, environ=address).base_url() == "https://mine.example/v1"  # nor the file's key to theirs
    pair = load(config=config, environ={**other, **address})
    assert (pair.base_url(), key(pair)) == ("https://theirs.example/v1", Secret("theirs-0123456789"))
    own = load(config=config, environ={**other, "SIAFU_API_KEY": "meant-0123456789"})
    assert key(own) == Secret("meant-0123456789")
    half = file(tmp_path, '[endpoint]\nbase_url = "https://mine.example/v1"')
    assert key(load(config=half, environ=other)) == Secret("theirs-0123456789")  # the file leaves the key open


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[limits]\nconcurency = 5", "limits.concurency is no setting; did you mean concurrency?"),
        ("[endpiont]\n", "endpiont is no setting; did you mean endpoint?"),
        ("[mcp_servers.shop]\ncomand = 'x'", "mcp_servers.shop.comand is no setting"),
        ("[limits]\nconcurrency = 0", "limits.concurrency must be at least 1, not 0"),
        ("[limits]\nconcurrency = 'many'", 'limits.concurrency must be a whole number, not "many"'),
        ("[limits]\nrpm = inf", "limits.rpm must be a finite number, not inf"),
        ("[limits]\nmax_wait_seconds = nan", "limits.max_wait_seconds"),
        ("limits = 5", "limits must be a table of settings, not 5"),
        ("[prices.m]\ninput = -1\noutput = 1\ndate = 2026-01-01", "prices.m.input"),
        ("[prices.m]\ninput = 1\noutput = 1", "prices.m.date is missing"),
        ("[limits\n", "some.toml: "),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(config=file(tmp_path, text), environ={})
    assert words in caught.value.message and caught.value.exit_code == 2


def test_a_section_that_is_none_is_named_also_beside_variables(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="limits must be a table"):
        load(config=file(tmp_path, "limits = 5"), environ={"SIAFU_RPM": "5"})


def test_bytes_that_are_no_text_and_a_bom(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbf[models]\ndefault = '\xea\xb9\x80'\r\n")
    assert load(config=path, environ={}).model("default") == "김"
    path.write_bytes(b"[models]\ndefault = '\xff'")
    with pytest.raises(ConfigError, match=r"x.toml: "):
        load(config=path, environ={})


@pytest.mark.parametrize(
    "text",
    [
        f"[endpoint]\napi_key = '{KEY}'",
        "[endpoint.headers]\nx-key = 'sk-abcdefghijklmnop1234'",
        "[mcp_servers.a]\nurl = 'https://a.example/mcp'\nheaders = { Authorization = 'Bearer abcdefghijklmnop' }",
        "[mcp_servers.a]\ncommand = 'a'\nargs = ['--key', 'sk-abcdefghijklmnop1234']",
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="never the secret itself") as caught:
        load(config=file(tmp_path, text), environ={})
    assert not any(secret in caught.value.message for secret in (KEY, "abcdefghijklmnop"))


def test_secrets_come_from_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMED", KEY)
    assert key(load(config=file(tmp_path, "endpoint.api_key = 'env:NAMED'"), environ={})) == Secret(KEY)
    (tmp_path / "secret").write_text(f"{KEY}\n")
    from_file = load(config=file(tmp_path, f"endpoint.api_key = 'file:{tmp_path}/secret'"), environ={})
    assert key(from_file) == Secret(KEY)
    for reference, words in (("env:NOT_SET", "NOT_SET, which is not set"), ("file:/no/such", "cannot be read")):
        with pytest.raises(ConfigError, match=words):
            key(load(config=file(tmp_path, f"endpoint.api_key = '{reference}'"), environ={}))


@pytest.mark.parametrize("value", ["YOUR_API_KEY", "sk-...", "<key>", "sk-xxxx", "changeme", "${OPENAI_API_KEY}"])
def test_placeholders_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="placeholder") as caught:
        key(load(environ={"OPENAI_API_KEY": value}))
    assert value not in caught.value.message


def test_a_key_never_shows(tmp_path: Path) -> None:
    settings = load(environ={"SIAFU_API_KEY": KEY}, flags={"endpoint.headers": {"x-secret": KEY}})
    for text in (repr(settings), str(settings), f"{settings.endpoint}", repr(given(environ={"SIAFU_API_KEY": KEY}))):
        assert KEY not in text
    assert repr(settings.endpoint.api_key) == "***"
    with pytest.raises(TypeError):
        pickle.dumps(settings)
    shown = repr(load(environ={}, flags={"endpoint.base_url": KEY}))
    assert KEY in shown  # the check can fail


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("http://example.com/v1", False),
        ("http://127.0.0.1:8000/v1", True),
        ("http://[::1]/v1", True),
        ("http://localhost:11434/v1", True),
        ("https://example.com/v1", True),
        ("https://user:pw@example.com/v1", False),
        ("example.com/v1", False),
    ],
)
def test_addresses(url: str, safe: bool) -> None:
    settings = load(environ={"SIAFU_BASE_URL": url})
    if safe:
        assert settings.base_url() == url
    else:
        with pytest.raises(ConfigError, match=r"endpoint.base_url"):
            settings.base_url()


def test_only_an_endpoint_of_this_machine_needs_no_key() -> None:
    for here in ("http://[::1]/v1", "http://127.0.0.1:1/v1"):
        assert key(load(environ={"SIAFU_BASE_URL": here})) is None
    with pytest.raises(ConfigError, match=r"no key for https://example.com/v1: set OPENAI_API_KEY"):
        key(load(environ={"SIAFU_BASE_URL": "https://example.com/v1"}))


def test_simulated_only_when_nothing_says_otherwise() -> None:
    assert load(environ={}).simulated
    assert not load(environ={"OPENAI_API_KEY": KEY}).simulated
    assert not load(environ={"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}).simulated
    assert load(environ={"OPENAI_API_KEY": KEY}).base_url() == OPENAI


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ({"default": "d", "strong": "s", "cheap": "c"}, ("d", "s", "c")),
        ({"default": "d"}, ("d", "d", "d")),
        ({"strong": "s"}, ("s", "s", "s")),
        ({"cheap": "c"}, ("c", "c", "c")),
        ({"strong": "s", "cheap": "c"}, ("c", "s", "c")),
    ],
)
def test_a_model_that_is_not_set_falls_back(models: dict[str, str], expected: tuple[str, str, str]) -> None:
    settings = Settings.model_validate({"models": models})
    assert (settings.model("default"), settings.model("strong"), settings.model("cheap")) == expected


def test_an_endpoint_whose_models_nobody_knows_asks_for_one() -> None:
    with pytest.raises(ConfigError, match="SIAFU_MODEL"):
        load(environ={"SIAFU_BASE_URL": "http://127.0.0.1:1/v1"}).model("default")
    assert load(environ={}).model("default") and load(environ={"OPENAI_API_KEY": KEY}).model("strong")


def test_settings_are_frozen_and_exact(tmp_path: Path) -> None:
    settings: Any = load(
        config=file(tmp_path, "[prices.m]\ninput = 0.28\noutput = '1.1'\ndate = 2026-01-01"), environ={}
    )
    assert settings.prices["m"].input == Decimal("0.28") and settings.prices["m"].output == Decimal("1.1")
    with pytest.raises(Exception, match="frozen"):
        settings.home = Path("x")


def test_every_value_says_where_it_came_from(tmp_path: Path) -> None:
    config = file(tmp_path, '[models]\ncheap = "c"\n[prices."gpt-4.1"]\ninput = 1\noutput = 2\ndate = 2026-01-01')
    values = given(config=config, environ={"SIAFU_MODEL": "m"}, flags={"limits.rpm": 5, "endpoint.base_url": None})
    told = {(each.place, each.source) for each in values}
    assert (("prices", "gpt-4.1", "input"), str(config)) in told  # a name with a dot stays one
    assert {(("models", "default"), "SIAFU_MODEL"), (("limits", "rpm"), "the command")} <= told
    assert len(told) == 6


def test_f58_an_empty_base_url_does_not_send_the_key_to_another_place() -> None:
    settings = load(environ={"OPENAI_API_KEY": KEY}, flags={"endpoint.base_url": ""})
    with pytest.raises(ConfigError, match="base_url"):
        settings.base_url()
    assert load(environ={"OPENAI_API_KEY": KEY, "SIAFU_BASE_URL": ""}, flags={}).base_url() == OPENAI


def test_redis_comes_from_either_variable_and_is_a_secret() -> None:
    both = {"REDIS_URL": "redis://a:1", "SIAFU_REDIS_URL": "redis://:geheim@b:1"}
    found = load(environ=both).redis()
    assert found is not None and found.reveal() == "redis://:geheim@b:1"
    assert "geheim" not in repr(load(environ=both))
    found = load(environ={"REDIS_URL": "redis://a:1"}).redis()
    assert found is not None and found.reveal() == "redis://a:1"
    assert load(environ={}).redis() is None


def test_a_password_of_redis_is_not_written_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "siafu.toml"
    file.write_text('redis_url = "redis://:geheim-1234@host:6379/0"', encoding="utf-8")
    with pytest.raises(ConfigError, match="redis_url"):
        load(config=file, environ={})
    file.write_text('redis_url = "redis://host:6379/0"\n[limits]\npolicy = "vegas"\ntpm = 1000\n', encoding="utf-8")
    found = load(config=file, environ={})
    assert (found.limits.policy, found.limits.tpm) == ("vegas", 1000)
    file.write_text('[limits]\npolicy = "gradient"', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"limits\.policy"):
        load(config=file, environ={})


def test_a_tilde_is_the_home_folder_where_no_shell_replaces_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(environ={"SIAFU_HOME": "~/자료"}).home == tmp_path / "자료"
    assert load(config=file(tmp_path, 'home = "~"'), environ={}).home == tmp_path
    with pytest.raises(ConfigError, match="home: there is no home folder"):
        load(environ={"SIAFU_HOME": "~no-such-user/x"})
