"""`siafu demo --local`: a few of the requests on a real model, through the same support swarm, and what was seen."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from siafu.bench.demo import notes
from siafu.bench.demo.local import FENCED, SLOTS
from siafu.bench.demo.phases import Listener, Moment
from siafu.bench.demo.place import Folder, clean_environment, example_cases, write_cases, write_settings
from siafu.bench.demo.servers import SIAFU, DemoFailed, model_server, payments, process, tail
from siafu.bench.demo.summary import Category, by_category
from siafu.errors import ConfigError

KEYS = ("OPENAI_API_KEY", "SIAFU_API_KEY")
POLL_SECONDS = 0.5


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model behind an endpoint (base_url and name), or in a file that is served for the demo (path). template: the
    file's chat template, `fenced` for the built-in one; None = the model's own.
    """

    base_url: str | None = None
    name: str | None = None
    path: Path | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        if (self.base_url is None) == (self.path is None):
            raise ConfigError("which model? Give --base-url URL with --model NAME, or --model-path FILE.gguf")
        if (self.base_url is None) != (self.name is None):
            raise ConfigError("--base-url URL and --model NAME go together; a --model-path needs neither")
        if self.template is not None and self.path is None:
            raise ConfigError("--chat-template goes with --model-path; an endpoint has its own")
        for file in (self.path, self.template_file()):
            if file is not None and not file.is_file():
                raise ConfigError(f"there is no file {file}")

    def template_file(self) -> Path | None:
        return FENCED if self.template == "fenced" else Path(self.template) if self.template else None


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen. right: requests sorted into the category they were written for. errors: by code; requests without
    a line count as `missing`. wall: seconds, the start of siafu included, that of the model not. stopped: the time that
    all requests together have was over, and siafu was ended.
    """

    model: str
    requests: int
    answered: int
    right: int
    tool_calls: int
    steps: int
    errors: dict[str, int]
    flagged: dict[str, int]
    outcomes: dict[str, int]
    output_tokens: int
    wall: float
    stopped: bool
    categories: list[Category]


async def observe(model: Model, folder: Folder, *, requests: int, seed: int, listen: Listener) -> Observed:
    """Answer `requests` example requests with a real model. Cancelling ends every process it has started.

    Raises: ConfigError, DemoFailed, InputError, StoreError.
    """
    cases = example_cases(requests, seed)
    write_cases(folder, cases)
    async with _endpoint(model, folder) as (base_url, name):
        write_settings(
            folder,
            {
                "endpoint": {"idle_seconds": 600},  # a model on a small machine takes its time
                "models": {"strong": name, "cheap": name},
                "limits": {"concurrency": SLOTS},
            },
        )
        keys = {name: os.environ[name] for name in KEYS if os.environ.get(name)}
        async with payments("payments", folder.path, folder.ledger("siafu")) as paying:
            began = time.monotonic()
            environment = clean_environment(OPENAI_BASE_URL=base_url, SIAFU_PAYMENTS_URL=paying, **keys)
            stopped = not await _answered(environment, folder, requests, listen)
            wall = time.monotonic() - began
    lines = notes.results(folder.results)
    wanted = {case.request.id: case.category for case in cases}
    errors = Counter(line.error.code for line in lines if line.error is not None)
    errors["missing"] = requests - len(lines)
    return Observed(
        model=name,
        requests=requests,
        answered=sum(line.status == "ok" for line in lines),
        right=sum(line.category == wanted.get(line.id) for line in lines),
        tool_calls=sum(line.tool_calls for line in lines),
        steps=sum(line.steps for line in lines),
        errors=dict(+errors),
        flagged=dict(Counter(line.flagged for line in lines if line.flagged)),
        outcomes=dict(Counter(line.outcome for line in lines if line.status == "ok")),
        output_tokens=sum(line.tokens.output for line in lines),
        wall=wall,
        stopped=stopped,
        categories=by_category(lines),
    )


def longest(requests: int) -> int:
    """Seconds that all of them together have: two minutes for each that one slot has to answer."""
    return 60 + 120 * math.ceil(requests / SLOTS)


async def _answered(environment: dict[str, str], folder: Folder, requests: int, listen: Listener) -> bool:
    """Run siafu over the requests; False when their time was over before it had ended.

    Raises: DemoFailed when it ended without having gone through them.
    """
    log = folder.path / "siafu.log"
    command = [*SIAFU, "support", "run", folder.requests.name, "--out", folder.results.name, "--quiet"]
    more = ["--database", folder.database("siafu").name]
    async with process([*command, *more], folder=folder.path, environment=environment, log=log) as child:
        try:
            async with asyncio.timeout(longest(requests)):
                while child.returncode is None:
                    await asyncio.sleep(POLL_SECONDS)
                    listen(_moment(folder, requests, "running"))
        except TimeoutError:
            return False
        if child.returncode not in (0, 1):  # 1: some requests failed, which is one of the things to be seen
            raise DemoFailed(f"siafu ended with {child.returncode}: {tail(log)}")
        listen(_moment(folder, requests, "done"))
    return True


def _moment(folder: Folder, requests: int, stage: str) -> Moment:
    done = notes.answers(notes.results(folder.results)).total()
    return Moment(program="siafu", stage=stage, answered=done, total=requests, calls=None, refused=0)


@contextlib.asynccontextmanager
async def _endpoint(model: Model, folder: Folder) -> AsyncIterator[tuple[str, str]]:
    """Base URL and name of the model; a file is served while the block runs."""
    if model.path is None:
        yield model.base_url or "", model.name or ""
        return
    async with model_server(model.path, folder.path, template=model.template_file()) as found:
        yield found
