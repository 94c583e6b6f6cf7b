"""A small command over files for tests: {"id", "text"} in, {"id", "status", "text"} out; one model call a line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from siafu.agents.task import Surroundings, TaskContext
from siafu.apps.filerun.job import Plan, Task, Written
from siafu.apps.filerun.place import Place, place
from siafu.apps.filerun.prepare import FileOptions, Ready, ready
from siafu.apps.filerun.run import Outcome, run
from siafu.border.jsonl import LineError
from siafu.errors import InputError, RequestRefused
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Endpoint
from siafu.gateway.scripted import Answer, Scripted
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.store.sqlite import SqliteStore
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapResult


class MiniJob:
    starts = b'{"id":'

    def parse(self, value: Any) -> Task:
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            raise InputError("id must be a text")
        return Task(value["id"], value.get("text", ""))

    def remarks(self) -> list[str]:
        return []

    def fingerprint(self) -> str:
        return "mini"

    async def work(self, item: Any, ctx: TaskContext, /) -> Any:
        return (await ctx.model(ChatRequest(model="m", messages=[{"role": "user", "content": item}]))).text

    def record(self, result: MapResult) -> Any:
        return {"id": result.item.key, "status": result.status, "text": result.value}

    def refusal(self, error: LineError) -> Any:
        return {"id": None, "status": "error", "text": error.message}

    def claims(self, value: Any) -> str | None:
        return None

    def read_back(self, line: bytes) -> Written | None:
        try:
            found = json.loads(line)
            return Written(found["id"], found["status"] != "error", waits=found["status"] == "waiting")
        except (ValueError, KeyError, TypeError):
            return None


class Notes:
    """A Watcher that remembers."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.notes: list[str] = []
        self.results: list[MapResult] = []

    def begin(self, plan: Plan) -> None:
        self.plan = plan

    def ended(self, result: MapResult) -> None:
        self.results.append(result)

    def note(self, text: str) -> None:
        self.notes.append(text)


def echo(request: ChatRequest, context: CallContext) -> Answer:
    """Answers in Korean; a text with "fail" in it is refused."""
    text = str(request.messages[-1]["content"])
    return RequestRefused("the endpoint says no") if "fail" in text else f"답 {text}"


def lines(*ids: str, text: Callable[[str], str] = lambda name: name) -> bytes:
    return b"".join(json.dumps({"id": name, "text": text(name)}).encode() + b"\n" for name in ids)


class Desk:
    """A folder with an input, and runs over it."""

    def __init__(self, folder: Path, data: bytes, *, errors: bool = True) -> None:
        self.source = folder / "in.jsonl"
        self.source.write_bytes(data)
        self.out = folder / "out.jsonl"
        self.errors = folder / "out.errors.jsonl" if errors else None
        self.where: Place = place(self.source, self.out, self.errors, folder / "home")
        self.notes = Notes()
        self.endpoint = Scripted(echo)
        self.job = MiniJob()

    def run(
        self,
        endpoint: Endpoint | None = None,
        *,
        concurrency: int = 4,
        wait: float | None = None,
        stop: asyncio.Event | None = None,
        **options: Any,
    ) -> Outcome:
        self.notes = Notes()
        self.endpoint = Scripted(echo)
        with ready(self.job, self.where, FileOptions(**options), self.notes) as prepared:
            return asyncio.run(self.work(prepared, endpoint or self.endpoint, concurrency, wait, stop))

    async def work(
        self,
        prepared: Ready,
        endpoint: Endpoint,
        concurrency: int,
        wait: float | None = None,
        stop: asyncio.Event | None = None,
    ) -> Outcome:
        store = SqliteStore(self.where.journal).run(self.where.run)
        around = Surroundings(endpoint=endpoint, clock=SystemClock())
        try:
            options = MapOptions(concurrency=concurrency, wait=wait)
            return await run(prepared, around, store, options, self.notes, stop)
        finally:
            await store.aclose()

    @property
    def asked(self) -> list[str]:
        """The texts that the last run sent to the endpoint."""
        return sorted(str(request.messages[-1]["content"]) for request in self.endpoint.requests)

    def written(self) -> tuple[list[str], list[str]]:
        """Ids in the results, ids (or error texts) in the errors file, sorted."""
        return ids(self.out), ids(self.errors) if self.errors else []


def ids(path: Path) -> list[str]:
    if not path.exists():
        return []
    return sorted(found["id"] or found["text"] for found in map(json.loads, _whole(path)))


def _whole(path: Path) -> Iterable[bytes]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return data.splitlines()
