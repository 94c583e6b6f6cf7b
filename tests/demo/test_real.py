from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from siafu.bench.demo import real
from siafu.bench.demo.phases import Moment
from siafu.bench.demo.place import own_folder
from siafu.bench.demo.real import Model, observe
from siafu.bench.demo.servers import DemoFailed
from siafu.cli.demo_report import observed_json, print_observed
from siafu.errors import ConfigError
from sim import running_sim


async def test_what_a_model_behind_an_endpoint_does_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moments: list[Moment] = []
    with running_sim(seed=7) as sim, own_folder(tmp_path / "out") as folder:
        model = Model(base_url=sim.url, name="deepseek-v3.2")
        seen = await observe(model, folder, requests=10, seed=7, listen=moments.append)
        asked = sim.stats()["by_model"]
    assert (seen.answered, seen.requests, seen.errors, seen.stopped) == (10, 10, {}, False)
    assert set(asked) == {"deepseek-v3.2"}
    assert 5 <= seen.right <= 10
    assert seen.tool_calls > 0 and seen.output_tokens > 0
    assert sum(seen.outcomes.values()) == 10
    assert moments[-1].answered == 10
    assert json.loads(observed_json(seen, tmp_path))["right"] == seen.right
    print_observed(seen, Path("out/demo"))
    shown = capsys.readouterr().out
    assert "answered         10 of 10\n" in shown and max(map(len, shown.splitlines())) <= 80


async def test_failed_requests_are_counted_by_code(tmp_path: Path) -> None:
    with running_sim(faults="422:100%") as sim, own_folder(tmp_path / "out") as folder:
        model = Model(base_url=sim.url, name="m")
        seen = await observe(model, folder, requests=10, seed=7, listen=lambda moment: None)
    assert (seen.answered, seen.right, seen.errors) == (0, 0, {"request_refused": 10})


async def test_a_model_that_is_too_slow_is_reported_with_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real, "longest", lambda requests: 0.1)
    with running_sim() as sim, own_folder(tmp_path / "out") as folder:
        model = Model(base_url=sim.url, name="m")
        seen = await observe(model, folder, requests=10, seed=7, listen=lambda moment: None)
    assert (seen.answered, seen.errors, seen.stopped) == (0, {"missing": 10}, True)
    print_observed(seen, Path("out/demo"))
    shown = capsys.readouterr().out
    assert "answered         0 of 10 (10 missing)\n" in shown and "s, stopped then" in shown


async def test_an_endpoint_that_refuses_the_key_ends_it_with_its_words(tmp_path: Path) -> None:
    with running_sim(faults="401:100%") as sim, own_folder(tmp_path / "out") as folder:
        model = Model(base_url=sim.url, name="m")
        with pytest.raises(DemoFailed, match="check the key"):
            await observe(model, folder, requests=10, seed=7, listen=lambda moment: None)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "which model"),
        ({"base_url": "http://127.0.0.1:1/v1"}, "--model NAME"),
        ({"name": "m"}, "which model"),
        ({"base_url": "u", "name": "m", "path": Path(__file__)}, "which model"),
        ({"path": Path("none.gguf")}, "no file none.gguf"),
        ({"path": Path(__file__), "template": "none.jinja"}, "no file none.jinja"),
        ({"base_url": "u", "name": "m", "template": "fenced"}, "goes with --model-path"),
    ],
)
def test_models_that_cannot_be_meant(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Model(**given)


async def test_a_model_file_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with own_folder(tmp_path / "out") as folder, pytest.raises(ConfigError, match=r"siafu\[local\]"):
        await observe(Model(path=Path(__file__)), folder, requests=10, seed=7, listen=lambda moment: None)
