"""`/openapi.json` is true: schemathesis asks the server what the document allows and what it forbids."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from cli.front import siafu
from siafu.service import access
from siafu.service.openapi import document
from siafu.service.routes import MODELS, ROUTES
from siafu.service.tasks import events as streams

from .server import Slow
from .task_kit import EVENTS, TASKS, tasked

STORED = ("/v1/files", "/v1/batches")  # see tests/batches
PHASES = ("examples", "coverage", "fuzzing", "stateful")
CURSOR = {  # only pages give good ones, so a schema cannot
    "include-name": f"GET {TASKS}",
    "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400]}},
}


def wrong(described: dict[str, Any], url: str, auth: Mapping[str, str], phase: str) -> tuple[int, dict[str, str]]:
    """How many requests were made, and by which checks answers differ from the document."""
    config = SchemathesisConfig.from_dict(
        {
            "base-url": url,
            "headers": dict(auth),
            "continue-on-failure": True,
            "request-timeout": 20.0,
            "max-stream-events": 1,
            "generation": {"max-examples": 2, "deterministic": True, "no-shrink": True},
            "phases": {name: {"enabled": name == phase} for name in PHASES},
            "operations": [CURSOR],
        }
    )
    asked, found = 0, {}
    for event in from_schema(schemathesis.openapi.from_dict(described, config=config)).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if isinstance(event, events.ScenarioFinished):
            asked += len(event.recorder.cases)
            for check in (each for checks in event.recorder.checks.values() for each in checks):
                if check.failure_info is not None:
                    found[check.name] = f"{event.label}: {check.failure_info.failure}"
    return asked, found


def only(told: dict[str, Any], *paths: str) -> dict[str, Any]:
    return {**told, "paths": {path: told["paths"][path] for path in paths}}


async def asking(folder: Path, *rounds: tuple[str, dict[str, Any]]) -> tuple[int, dict[str, str]]:
    slow, asked, found = Slow(), 0, dict[str, str]()
    slow.go.set()
    async with tasked(folder, endpoint=slow) as at:
        auth = await at.key()
        for phase, described in rounds:
            more, differ = await asyncio.to_thread(wrong, described, at.served.url, auth, phase)
            asked, found = asked + more, found | differ
    return asked, found


async def test_the_document_and_the_server_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "WRONG_KEYS_AT_ONCE", 1_000)  # it asks without one, too
    monkeypatch.setattr(streams, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.02)
    told = document()
    paths = sorted(path for path in told["paths"].keys() - {EVENTS} if not path.startswith(STORED))  # it has no end
    asked, found = await asking(tmp_path, ("fuzzing", only(told, *paths)), ("coverage", only(told, TASKS)))
    assert found == {}
    assert asked > 200


async def test_the_check_can_fail(tmp_path: Path) -> None:
    told = copy.deepcopy(only(document(), TASKS, MODELS))
    models = told["components"]["schemas"]["Models"]
    models["properties"]["colour"] = {"type": "string"}
    models["required"].append("colour")
    answers = told["paths"][TASKS]["get"]["responses"]
    answers["201"] = answers.pop("200")
    told["components"]["schemas"]["TaskBody"]["properties"]["kind"] = {"enum": ["shell"]}
    _, found = await asking(tmp_path, ("fuzzing", told))
    expected = {"response_schema_conformance", "status_code_conformance", "positive_data_acceptance"}
    assert expected <= found.keys(), found


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (each for name, each in value.items() if name == "$ref")
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from refs(each)


def test_every_route_is_in_it_once_and_every_reference_leads_somewhere() -> None:
    told = document()
    operations = [each for path in told["paths"].values() for each in path.values()]
    assert len(operations) == len(ROUTES) == len({each["operationId"] for each in operations})
    for ref in set(refs(told)):
        place: Any = told
        for part in ref.removeprefix("#/").split("/"):
            place = place[part]
    assert {route.path for route in ROUTES if route.open} == {"/health/liveness", "/health/readiness"}


async def test_a_server_and_the_command_tell_the_same(tmp_path: Path) -> None:
    async with tasked(tmp_path) as at:
        assert (await at.ask("/openapi.json"))[2] == msgspec.json.decode(msgspec.json.encode(document()))
        await at.key()
        assert (await at.ask("/openapi.json"))[0] == 401
    printed = await asyncio.to_thread(siafu, tmp_path, "openapi")
    assert msgspec.json.decode(printed.stdout) == msgspec.json.decode(msgspec.json.encode(document()))
