"""`siafu demo`: the usual glue and siafu on the same simulated endpoint, each killed half-way; or a real model."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import typer

from siafu.cli.options import Quiet
from siafu.config.collector import relieve_collector
from siafu.errors import ConfigError, InputError, Interrupted

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_T = TypeVar("_T")
QUICK = 16  # requests


@app.command(
    epilog="""\b
Examples:
  siafu demo                          100 requests, about a minute, no key
  siafu demo --quick                  a smaller show: 16, and quicker answers
  siafu demo --glue my_script.py      your own script instead of the glue
  siafu demo --json > demo.json       everything, for programs
  siafu demo --local --base-url http://127.0.0.1:11434/v1 --model NAME
  siafu demo --local --model-path FILE.gguf    (pip install 'siafu[local]')
  siafu demo --local --model-path qwen2.5-coder.gguf --chat-template fenced
\b
Exit code: 0 siafu lost nothing, finished nothing twice, paid each refund that
was due once and nothing else, and can explain every call; 1 not so; 2 wrong
use; 130 interrupted.
"""
)
def demo(
    seed: int = typer.Option(7, help="Another seed: other requests, answers and faults."),
    requests: int | None = typer.Option(
        None, min=10, max=200, help="Customer requests. Default: 100; --quick 16; --local 10"
    ),
    quick: bool = typer.Option(False, "--quick", help="Fewer requests, answered five times as quickly."),
    glue: Path | None = typer.Option(None, metavar="FILE", help="Your script in place of the usual glue."),
    out: Path = typer.Option(Path("out/demo"), "--out", "-o", help="Folder for everything; a demo's own is replaced."),
    rpm: float = typer.Option(1500, min=60, help="Requests a minute that the simulated endpoint allows."),
    local: bool = typer.Option(False, "--local", help="A real model instead: no endpoint is simulated, no kill."),
    base_url: str | None = typer.Option(None, help="--local: the endpoint, such as http://127.0.0.1:11434/v1"),
    model: str | None = typer.Option(None, help="--local: the model's name there."),
    model_path: Path | None = typer.Option(None, metavar="FILE.gguf", help="--local: a model file to serve and use."),
    chat_template: str | None = typer.Option(
        None, metavar="FILE", help="--model-path: another chat template (Jinja), or `fenced`: calls as ```json blocks."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    quiet: bool = Quiet,
) -> None:
    """See it work: the same requests twice, 429s and a kill -9, the usual glue beside siafu."""
    if local:
        if glue is not None:
            raise ConfigError("--glue is for the demo on the simulated endpoint; leave it or --local away")
        if quick:
            raise ConfigError("--quick is for the demo on the simulated endpoint; with --local give --requests")
        model_there = (base_url, model, model_path, chat_template)
        code = _real(out, requests or 10, seed, model_there, json, quiet)
    elif base_url or model or model_path or chat_template:
        raise ConfigError("--base-url, --model, --model-path and --chat-template go with --local")
    else:
        code = _simulated(out, requests or (QUICK if quick else 100), seed, glue, rpm, json, quiet, quick=quick)
    raise typer.Exit(code)


def _simulated(
    out: Path, requests: int, seed: int, glue: Path | None, rpm: float, json: bool, quiet: bool, *, quick: bool
) -> int:
    from siafu.bench.demo.demo import GLUE, Options, show
    from siafu.bench.demo.place import own_folder
    from siafu.cli.demo_progress import Progress
    from siafu.cli.demo_report import as_json, print_report

    if glue is not None and not glue.is_file():
        raise InputError(f"there is no file {glue} to run as the glue")
    options = Options(
        requests=requests,
        seed=seed,
        rpm=rpm,
        latency="scale:0.2" if quick else "default",
        lease=6.0 if quick else None,
        glue=glue or GLUE,
        seconds=60 + 600 * requests / rpm,
    )
    with own_folder(out) as folder, Progress(quiet=quiet) as progress:
        progress.note(f"{requests} requests, twice, on a SIMULATED endpoint: no model runs, nothing is billed.")
        if quick:
            progress.note("QUICK: answers take a fifth of their usual time, and of each mishap there are only a few.")
        progress.note(f"It allows {rpm:g} calls a minute. Each program is killed (kill -9) at 40 %.")
        outcome = asyncio.run(_until_signal(show(options, folder, progress)))
    if json:
        typer.echo(as_json(options, outcome, out))
    else:
        print_report(options, outcome, out)
    return 0 if outcome.siafu.clean else 1


def _real(
    out: Path,
    requests: int,
    seed: int,
    where: tuple[str | None, str | None, Path | None, str | None],
    json: bool,
    quiet: bool,
) -> int:
    from siafu.bench.demo.place import own_folder
    from siafu.bench.demo.real import Model, longest, observe
    from siafu.cli.demo_progress import Progress
    from siafu.cli.demo_report import observed_json, print_observed

    base_url, name, path, template = where
    model = Model(base_url=base_url, name=name, path=path, template=template)
    with own_folder(out) as folder, Progress(quiet=quiet) as progress:
        progress.note(f"{requests} requests on a real model; the shop is an example, nothing is killed.")
        progress.note(f"It ends after {longest(requests)} s, whatever is answered by then; --requests asks for fewer.")
        work = observe(model, folder, requests=requests, seed=seed, listen=progress)
        relieve_collector()
        seen = asyncio.run(_until_signal(work))
    if json:
        typer.echo(observed_json(seen, out))
    else:
        print_observed(seen, out)
    return 0 if seen.answered == seen.requests else 1


async def _until_signal(work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work`; SIGINT, SIGTERM and SIGHUP cancel it once, and its processes are ended before this returns.

    Raises: Interrupted.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    stopped: list[int] = []

    def stop(number: int) -> None:
        if not stopped:
            task.cancel()
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not stopped:
            raise
        raise Interrupted("interrupted; everything that the demo had started was stopped") from None
