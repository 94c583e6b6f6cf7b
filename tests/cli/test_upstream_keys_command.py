"""`siafu upstream-keys` as a process."""

from __future__ import annotations

import json
from pathlib import Path

from .front import siafu

KEY = "sk-test-0123456789abcdefghij"


def test_keys_are_listed_added_disabled_and_enabled(tmp_path: Path) -> None:
    (tmp_path / "new").write_text(KEY)
    (tmp_path / "siafu.toml").write_text(
        '[upstreams.seoul]\nbase_url = "https://seoul.example/v1"\napi_key = "env:SEOUL"\n', encoding="utf-8"
    )

    def run(*words: str) -> tuple[int, str]:
        ended = siafu(tmp_path, "upstream-keys", *words, SEOUL=f"{KEY}-1")
        assert KEY not in ended.stdout + ended.stderr
        return ended.returncode, ended.stdout + ended.stderr

    assert run("list") == (0, "id       state   key\nseoul#1  in use  env:SEOUL\n")
    code, text = run("add", "seoul", "file:new")
    assert code == 0 and f"seoul#2  in use  file:{tmp_path}/new" in text
    assert run("add", "seoul", "file:new")[0] == 2
    assert "seoul#1  disabled" in run("disable", "seoul#1")[1]
    found = json.loads(run("list", "--json")[1])
    assert [(key["id"], key["state"]) for key in found] == [("seoul#1", "disabled"), ("seoul#2", "in use")]
    assert "seoul#1  in use" in run("enable", "seoul#1")[1]


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    for words, told in (
        (("list",), "no upstream is set"),
        (("add", "x", "env:K"), "there is no upstream 'x'"),
        (("disable", "x"), "there is no key 'x'"),
    ):
        assert told in siafu(tmp_path, "upstream-keys", *words).stderr
    key = siafu(tmp_path, "upstream-keys", "add", "default", KEY, OPENAI_API_KEY=KEY)
    assert key.returncode == 2 and "env:NAME or file:/path" in key.stderr and KEY not in key.stderr
    missing = siafu(tmp_path, "upstream-keys", "add", "default", "env:NOT_SET", OPENAI_API_KEY=KEY)
    assert missing.returncode == 2 and "which is not set" in missing.stderr
