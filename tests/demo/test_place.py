from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from siafu.bench.demo.place import (
    MARK,
    Case,
    Folder,
    clean_environment,
    example_cases,
    own_folder,
    refund_cases,
    write_cases,
    write_settings,
)
from siafu.errors import InputError


def test_a_folder_of_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "new" / "demo"
    with own_folder(out) as folder:
        (folder.path / "old").write_text("x")
        (folder.path / "deep").mkdir()
        (folder.path / "deep" / "older").write_text("x")
    with own_folder(out) as folder:
        assert [entry.name for entry in folder.path.iterdir()] == [MARK]


def test_what_is_not_a_demos_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for place in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(InputError, match="choose another --out"), own_folder(place):
            raise AssertionError("it was given")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_an_empty_folder_and_a_link_inside_a_demo(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    out = tmp_path / "out"
    out.mkdir()
    with own_folder(out) as folder:
        (folder.path / "link").symlink_to(outside)
    with own_folder(out):
        pass
    assert (outside / "precious").exists() and not (out / "link").exists()


def test_two_demos_in_one_folder(tmp_path: Path) -> None:
    with own_folder(tmp_path / "out"), pytest.raises(InputError, match="another demo"), own_folder(tmp_path / "out"):
        raise AssertionError("it was given")


@pytest.mark.parametrize("made", [example_cases, refund_cases])
@pytest.mark.parametrize("count", [10, 100, 200])
def test_cases_are_the_same_for_the_same_seed_and_all_different(
    made: Callable[[int, int], list[Case]], count: int, tmp_path: Path
) -> None:
    folder = Folder(path=tmp_path)
    cases = made(count, 7)
    write_cases(folder, cases)
    lines = [json.loads(line) for line in folder.requests.read_text("utf-8").splitlines()]
    assert [line["text"] for line in lines] == [case.request.text for case in cases]
    assert len({line["text"] for line in lines}) == len({line["id"] for line in lines}) == count
    assert {line["lang"] for line in lines} == {"ko", "en"}
    assert not {"category", "due"} & set(lines[0])
    assert made(count, 7) == cases != made(count, 8)


def test_a_shop_with_too_few_orders_for_different_texts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too small"):
        write_cases(Folder(path=tmp_path), example_cases(2000, 7))


def test_settings_hold_what_they_were_given(tmp_path: Path) -> None:
    shop = {"url": "http://h/mcp", "identity": "siafu"}
    rule = {"key": ["request", "order_id"], "honours_key": True, "lease_seconds": 30.0}
    models = {"strong": 'a"b\\c\n', "cheap": "싼"}
    limits = {"concurrency": 50}
    sections: dict[str, dict[str, Any]] = {
        "models": models,
        "limits": limits,
        "mcp_servers.shop": shop,
        'tools.effects."shop.pay"': rule,
    }
    write_settings(Folder(path=tmp_path), sections)
    assert tomllib.loads((tmp_path / "siafu.toml").read_text("utf-8")) == {
        "models": models,
        "limits": limits,
        "mcp_servers": {"shop": shop},
        "tools": {"effects": {"shop.pay": rule}},
    }


def test_a_child_inherits_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIAFU_MODEL", "mine")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://dear.example/v1")
    monkeypatch.setenv("NO_PROXY", "intranet")
    found = clean_environment(OPENAI_API_KEY="k")
    assert {name for name in found if name.startswith(("SIAFU_", "OPENAI_"))} == {"OPENAI_API_KEY"}
    assert found["NO_PROXY"] == "intranet,127.0.0.1"
    assert found["PATH"]
