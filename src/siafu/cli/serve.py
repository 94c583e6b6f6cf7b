"""`siafu serve`: an OpenAI-compatible endpoint in front of others."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from siafu.cli.options import LogForm, LogFormat, ParentPid, ReadyFile, UrlAsJson
from siafu.cli.ready import Ready, tell
from siafu.cli.showing import Config
from siafu.config.collector import relieve_collector
from siafu.errors import ConfigError

if TYPE_CHECKING:
    from siafu.config.settings import Settings
    from siafu.service.app import Bounds


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """Where clients come in. loopback: only this machine's. hosts: further names of it."""

    listening: socket.socket
    loopback: bool
    hosts: tuple[str, ...]


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """ready: tells where it listens, and whether models are simulated. say: tells people something else."""

    ready: Callable[[bool], None]
    say: Callable[[str], None]


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    epilog="""\b
Examples:
  OPENAI_BASE_URL=https://host/v1 OPENAI_API_KEY=... siafu serve
  siafu serve                        without an endpoint: a SIMULATED one
  siafu keys create --name web       from now on a client key is needed
  siafu serve --host 0.0.0.0 --allow-host ai.example.com
\b
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -H 'Content-Type: application/json' \\
    -d '{"model":"m","messages":[{"role":"user","content":"안녕하세요"}]}'
\b
Serves POST /v1/chat/completions (plain and streamed), GET /v1/models, files
and batches (/v1/files, /v1/batches: they go on after a restart), tasks for
siafu worker (/v1/swarm/tasks), GET /openapi.json (also: siafu openapi),
/health/liveness and /health/readiness, GET /metrics (this machine, or
SIAFU_METRICS_TOKEN). Model names are passed through; siafu/support is the
support swarm. Every call has a line in serve.db in
SIAFU_HOME. A siafu.toml that changes counts within two seconds, or at SIGHUP.
SIGTERM and Ctrl-C finish what runs; a second one ends at once.
Exit code: 0 all requests ended, 1 some were cut off, 2 wrong use.
"""
)
def serve(
    host: str = typer.Option("127.0.0.1", help="Address to listen on; beyond loopback clients need a key."),
    port: int = typer.Option(8080, min=0, max=65535, help="0 = any free port."),
    base_url: str | None = typer.Option(None, help="The endpoint behind. Default: from the settings"),
    concurrency: int | None = typer.Option(None, min=1, max=10_000, help="Calls at once. Default: 100"),
    rpm: float | None = typer.Option(None, help="Calls a minute. Default: learned from the endpoint's 429s"),
    queue: int | None = typer.Option(
        None, min=0, help="Requests that may wait for their turn; more get 429. Default: 4 x concurrency"
    ),
    queue_seconds: float = typer.Option(30.0, min=0.1, help="The longest wait for a turn, then 429."),
    timeout: float = typer.Option(600.0, min=1, help="Seconds for a request until its answer begins."),
    grace: float = typer.Option(30.0, min=0, help="Seconds for running requests to end when the server is stopped."),
    allow_host: list[str] = typer.Option(
        [], metavar="HOST", help="A further host name by which clients reach the server."
    ),
    log_format: LogForm = LogFormat,
    ready_file: Path | None = ReadyFile,
    parent_pid: int | None = ParentPid,
    config: Path | None = Config,
    json: bool = UrlAsJson,
) -> None:
    """Serve an OpenAI-compatible endpoint: limits, retries, budgets and a ledger in front of the one configured."""
    from siafu.border.listening import bind, bound_url
    from siafu.border.urls import is_loopback
    from siafu.cli.logged import logged
    from siafu.config.settings import load
    from siafu.service.app import Bounds
    from siafu.service.server import more_files

    flags = {"endpoint.base_url": base_url, "limits.concurrency": concurrency, "limits.rpm": rpm}
    settings = load(config=config, flags=flags)
    running = settings.limits.concurrency
    bounds = Bounds(
        at_once=running + (4 * running if queue is None else queue), queue_seconds=queue_seconds, seconds=timeout
    )
    more_files()

    door = Door(listening=bind(host, port), loopback=is_loopback(host), hosts=tuple(allow_host))

    def ready(simulated: bool) -> None:
        url, note = bound_url(door.listening), "SIMULATED endpoint: rules answer, no model. " if simulated else ""
        told = Ready(url=f"{url}/v1", control=url, simulated=simulated)
        tell(told, f"{note}Ctrl-C stops it", file=ready_file, as_json=json)

    relieve_collector()
    with door.listening, logged(log_format) as say:
        whole = asyncio.run(_run(settings, door, bounds, grace, parent_pid, Voice(ready=ready, say=say)))
        if not whole:
            say("some requests were cut off; their calls are in the ledger")
    if not whole:
        raise typer.Exit(1)


async def _run(
    settings: Settings, door: Door, bounds: Bounds, grace: float, parent_pid: int | None, voice: Voice
) -> bool:
    from siafu.border.stopping import stopping
    from siafu.config.serving import serving
    from siafu.service.access import KeyRing
    from siafu.service.app import App
    from siafu.service.server import serve
    from siafu.service.tasks.webhooks import told_webhooks
    from siafu.service.together import Together

    async with (
        stopping(parent_pid) as stops,
        serving(settings, voice.say) as parts,
        told_webhooks(parts.tasks, parts.clock),
    ):
        together = None if parts.redis is None else Together(parts.redis)
        ring = KeyRing(parts.keys, parts.clock, open_until_first=door.loopback, together=together)
        await ring.refresh()
        if together is None and ring.limited:
            voice.say("requests a minute and at once of client keys are counted by this server alone (no redis_url)")
        if not door.loopback and not ring.active:
            raise ConfigError(
                "this address can be reached from other machines, so clients need a key, and there is none: make one "
                "with `siafu keys create --name NAME`, or listen on 127.0.0.1"
            )
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, parts.reload)
        watching = asyncio.create_task(ring.watch())
        served = App(parts, ring, bounds, hosts=door.hosts, loopback=door.loopback)
        try:
            async with served.working():
                return await serve(
                    served, door.listening, stops, grace=grace, on_ready=lambda: voice.ready(parts.simulated)
                )
        finally:
            watching.cancel()
