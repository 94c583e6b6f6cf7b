from __future__ import annotations

import json
from pathlib import Path

from siafu.config.assembly import notices
from siafu.config.settings import load

from .front import siafu

KEY = "sk-test-0123456789abcdefghij"
BAD = f"""
[limits]
rmp = 5
concurrency = "5"
[endpoint]
api_key = "{KEY}"
[prices.m]
input = -1
[upstreams.a]
base_url = "http://a.example/v1"
headers = {{ x = "env:NOWHERE" }}
api_keys = ["env:NOWHERE"]
"""


def test_check_names_everything_at_once(tmp_path: Path) -> None:
    (tmp_path / "설정.toml").write_text(BAD, encoding="utf-8")
    done = siafu(tmp_path, "config", "check", "설정.toml")
    assert done.returncode == 2 and KEY not in done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "설정.toml:3: limits.rmp is no setting; did you mean rpm?",
        '설정.toml:4: limits.concurrency must be a whole number, not "5"',
        '설정.toml:6: endpoint.api_key in 설정.toml must be "env:NAME" or "file:/path", never the secret itself',
        "설정.toml:7: prices.m.output is missing",
        "설정.toml:7: prices.m.date is missing",
        "설정.toml:8: prices.m.input must be at least 0, not -1",
        "설정.toml:10: upstreams.a.base_url uses http:// to another machine, so the key would travel in clear text; "
        "use https://",
        "설정.toml:11: upstreams.a.headers.x names the environment variable NOWHERE, which is not set",
        "설정.toml:12: upstreams.a.api_keys[0] names the environment variable NOWHERE, which is not set",
    ]
    assert done.stderr == "설정.toml: 9 wrong\n"


def test_check_looks_at_what_the_file_names(tmp_path: Path) -> None:
    file = tmp_path / "siafu.toml"
    assert "there is no file siafu.toml" in siafu(tmp_path, "config", "check").stderr
    file.write_text(
        '[upstreams.a]\nbase_url = "https://a.example/v1"\napi_key = "env:A"\n'
        '[upstreams.b]\nbase_url = "http://b.example/v1"\n[[routes]]\nuse = ["m@c"]\n[[routes]]\nuse = ["m@aa"]\n'
    )
    done = siafu(tmp_path, "config", "check", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"], found["file"]) == (2, False, "siafu.toml")
    told = "\n".join(found["problems"])
    for words in ("A, which is not set", "upstreams.b.base_url uses http://", "routes[0].use", "routes[1].use"):
        assert words in told
    assert len(found["problems"]) == 4 and "did you mean a?" in told
    file.write_text('[upstreams.a]\nbase_url = "https://a.example/v1"\napi_key = "env:A"\n')
    done = siafu(tmp_path, "config", "check", A=KEY)
    assert (done.returncode, done.stdout, done.stderr) == (0, "siafu.toml: nothing wrong\n", "")


def test_a_role_that_no_agent_has_is_warned_of_where_the_roles_are_known(tmp_path: Path) -> None:
    (tmp_path / "siafu.toml").write_text(
        'reuse = [{ seconds = 5, role = ["classify", "x"] }]\n[budgets]\nroles = { refnd = "5 USD" }\n'
    )
    alone = "holds for no agent of the support swarm, only for ones of your own programs"
    told = f"budgets.roles.refnd {alone}: did you mean refund?"
    done = siafu(tmp_path, "config", "check")
    assert (done.returncode, done.stdout) == (0, "siafu.toml: nothing wrong\n")
    first, second = done.stderr.splitlines()
    assert first == f"warning: {told}" and second.startswith(f"warning: reuse[0].role {alone}: there are classify, ")
    settings = load(config=tmp_path / "siafu.toml", environ={})
    assert told in notices(settings) and told not in notices(settings, roles=())  # as of a map or a batch


def test_show_says_what_counts_and_why(tmp_path: Path) -> None:
    (tmp_path / "siafu.toml").write_text(
        '[limits]\nrpm = 5\n[upstreams.u]\nbase_url = "https://a.example/v1"\napi_keys = ["env:K"]\n'
        'headers = { x-team = "blue" }\n'
    )
    env = {"SIAFU_RPM": "7", "REDIS_URL": "redis://:geheim-1234@h:1"}
    done = siafu(tmp_path, "config", "show", "--json", **env)
    rows = {row["name"]: (row["value"], row["source"]) for row in json.loads(done.stdout)}
    assert rows["limits.rpm"] == (7, "SIAFU_RPM")
    assert rows["limits.concurrency"] == (100, "default")
    assert rows["upstreams.u.weight"] == (1.0, "default")
    assert rows["upstreams.u.api_keys"] == (["env:K"], "siafu.toml")
    assert rows["upstreams.u.headers.x-team"] == ("***", "siafu.toml")
    assert rows["redis_url"] == ("***", "REDIS_URL")
    table = siafu(tmp_path, "config", "show", **env).stdout
    assert "geheim" not in table and "blue" not in table
    assert any(line.split() == ["limits.rpm", "SIAFU_RPM", "7"] for line in table.splitlines())


def test_schema_prints_the_schema(tmp_path: Path) -> None:
    whole, line = (siafu(tmp_path, "config", "schema", *words).stdout for words in ((), ("--json",)))
    assert json.loads(whole) == json.loads(line) and line.count("\n") == 1
