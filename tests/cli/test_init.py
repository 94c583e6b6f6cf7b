from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from siafu.apps.support.shop.catalogue import products
from siafu.apps.support.shop.orders import first_orders
from siafu.cli import starter
from siafu.config.settings import Settings, load

from .front import PLAIN, siafu

FILES = {"siafu.toml", "siafu.schema.json", "requests.jsonl", "batch.jsonl", "first.py"}


def uncommented(text: str) -> str:
    """The settings file with every setting in force: what is prose stays a comment."""
    lines = []
    for line in text.splitlines():
        bare = line.removeprefix("# ")
        lines.append(bare if bare.startswith("[") or bare.partition(" ")[2].startswith("= ") else line)
    return "\n".join(lines)


def test_what_it_writes_runs_as_it_is(tmp_path: Path) -> None:
    done = siafu(tmp_path, "init", "고객 지원")
    folder = tmp_path / "고객 지원"
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == FILES
    assert "cd '고객 지원'" in done.stdout and max(map(len, done.stdout.splitlines())) <= 80
    cli = (sys.executable, "-m", "siafu")
    commands = {
        "support run": (*cli, "support", "run", "requests.jsonl", "--out", "results.jsonl", "--json"),
        "batch run": (*cli, "batch", "run", "batch.jsonl", "--out", "b.jsonl", "--json"),
        "ask": (*cli, "support", "ask", "주문 1001 어디쯤 왔나요?", "--customer", "kim", "--json"),
        "first": (sys.executable, "first.py"),
    }
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = {
        name: subprocess.Popen(words, cwd=folder, env=PLAIN, **pipes)  # at once, as they take most time to start
        for name, words in commands.items()
    }
    ended = {name: (*process.communicate(timeout=100), process.returncode) for name, process in running.items()}
    assert {name: code for name, (_, _, code) in ended.items()} == dict.fromkeys(commands, 0), ended
    support = json.loads(ended["support run"][0])
    assert support["finished"] + support["waiting"] == 20
    assert list(support["waits_for"]) == ["payments_unavailable"]  # as the first commands come without a provider
    assert json.loads(ended["batch run"][0])["finished"] == 10
    assert json.loads(ended["ask"][0])["status"] == "ok"
    assert "greeting -> " in ended["first"][0] and all("SIMULATED" in errors for _, errors, _ in ended.values())
    answers = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len(answers) == 20 and all(answer["status"] == "ok" for answer in answers)


def test_nothing_is_written_over_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "batch.jsonl").write_text("mine")
    done = siafu(tmp_path, "init")
    assert done.returncode == 2 and "batch.jsonl is there already; --force" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["batch.jsonl"]
    assert (tmp_path / "batch.jsonl").read_text() == "mine"
    assert siafu(tmp_path, "init", "--force").returncode == 0
    assert (tmp_path / "batch.jsonl").read_text() != "mine"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = siafu(tmp_path, "init", "file/below")
    assert done.returncode == 2 and "cannot be written" in done.stderr and "Traceback" not in done.stderr


def test_batch_lines_ask_the_model_that_is_set(tmp_path: Path) -> None:
    assert siafu(tmp_path, "init", "own", SIAFU_MODEL="my-model").returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "own" / "batch.jsonl").read_text().splitlines()]
    assert len(lines) == 10 and {line["body"]["model"] for line in lines} == {"my-model"}
    assert len({line["custom_id"] for line in lines}) == 10
    (tmp_path / "siafu.toml").write_text("broken = [")
    assert siafu(tmp_path, "init", "other").returncode == 0  # what is broken here is told by what reads it


def test_requests_are_those_of_the_shops_customers() -> None:
    goods = products()
    owners = {order.order_id: customer for customer, order in first_orders(goods)}
    names = {name for product in goods for name in (product.name_ko, product.name_en)}
    lines = [json.loads(line) for line in starter.request_lines().splitlines()]
    assert len(lines) == 20 and {line["lang"] for line in lines} == {"ko", "en"}
    assert len({line["id"] for line in lines}) == 20
    for line in lines:
        named = [word for word in owners if word in line["text"]]
        assert all(owners[word] == line["customer"] for word in named)
        assert named or any(name in line["text"] for name in names)


def test_the_settings_file_holds_every_setting_with_its_default(tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(starter.SETTINGS)
    assert load(config=tmp_path / "plain.toml", environ={}).model_dump() == Settings().model_dump()
    text = uncommented(starter.SETTINGS)
    (tmp_path / "full.toml").write_text(text)
    full = load(config=tmp_path / "full.toml", environ={})  # every line is a setting that exists
    tree = tomllib.loads(text)
    defaults = Settings().model_dump()
    tree["prompt_cache"], defaults["prompt_cache"] = (each["endpoint"].pop("prompt_cache") for each in (tree, defaults))
    for section in ("endpoint", "prompt_cache", "models", "limits"):
        assert tree[section].keys() == defaults[section].keys(), section
        for name, value in defaults[section].items():
            assert value is None or name == "headers" or tree[section][name] == value, name
    assert tree.keys() == defaults.keys() and tree["home"] == str(defaults["home"])
    (price,) = full.prices.values()
    assert price.model_fields_set == set(type(price).model_fields)
    given = {name for server in full.mcp_servers.values() for name in server.model_fields_set}
    assert given == set(type(full.mcp_servers["shop"]).model_fields)


@pytest.mark.parametrize("data", [starter.request_lines(), starter.batch_lines("m")])
def test_lines_are_plain_utf8(data: bytes) -> None:
    assert data.endswith(b"}\n") and b"null" not in data and "주문" in data.decode()
    assert all(msgspec.json.decode(line) for line in data.splitlines())
