"""`siafu sim`: a simulated OpenAI-compatible endpoint."""

from __future__ import annotations

from pathlib import Path

import typer

from siafu.border.urls import is_loopback
from siafu.cli.options import ParentPid, ReadyFile, UrlAsJson
from siafu.cli.ready import Ready, tell
from siafu.errors import ConfigError

NOTE = "SIMULATED endpoint: rules answer, no model. Ctrl-C ends it"

EPILOG = """\b
Examples:
  siafu sim                                  a free port; prints the URL
  siafu sim --port 9100 --seed 7             always the same answers
  siafu sim --latency none                   at once
  siafu sim --rpm 600 --max-concurrency 100  limits with true 429 headers
  siafu sim --slots 4                        a model server: four at once
  siafu sim --faults 429:5%,500:1%,hang:1%   faults by rate
  siafu sim --faults faults.json             faults by script
  siafu sim --model big=450,16 --model small=200,6
\b
  curl URL/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model":"m","messages":[{"role":"user","content":"안녕하세요"}]}'
\b
Answers come from rules, not from a model. They depend on the seed, the model,
the bytes of the request and its x-siafu-attempt header only. Without that
header, faults by rate also depend on how often the same bytes came.
\b
What happened:   GET  /_sim/stats, /_sim/requests?since=N, /_sim/faults
Change it:       POST /_sim/faults, /_sim/limits, /_sim/reset
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def sim(
    port: int = typer.Option(0, min=0, max=65535, help="0 = any free port."),
    seed: int = typer.Option(0, help="Another seed: other latencies, ids and faults."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on; there is no protection."),
    latency: str = typer.Option("default", metavar="SPEC", help="default, none, scale:0.2 or fixed:200ms."),
    rpm: float | None = typer.Option(None, help="Requests a minute."),
    tpm: float | None = typer.Option(None, help="Tokens a minute, prompt and answer."),
    max_concurrency: int | None = typer.Option(None, help="Answers at once; more are refused."),
    slots: int | None = typer.Option(None, help="Answers at once; more wait in order, as at a llama.cpp server."),
    burst: float = typer.Option(6.0, help="Seconds' worth of rpm and tpm that may come at once."),
    faults: str = typer.Option("", metavar="SPEC", help="Rates such as 429:5%,500:1%, or a JSON file with a script."),
    model: list[str] = typer.Option(
        [], metavar="NAME=TTFT_MS,PER_TOKEN_MS", help="Serve these models only; left away: any."
    ),
    cache_ttl: float = typer.Option(300.0, min=0, help="Seconds a prompt prefix stays cached; 0 = no cache."),
    thinking: bool = typer.Option(False, "--thinking", help="Answers carry reasoning_content and want it back."),
    require_key: bool = typer.Option(False, "--require-key", help="401 without an API key; any key will do."),
    keep: int = typer.Option(200_000, min=1, help="Requests remembered."),
    keep_bodies: bool = typer.Option(False, "--keep-bodies", help="Remember bodies too."),
    ready_file: Path | None = ReadyFile,
    parent_pid: int | None = ParentPid,
    json: bool = UrlAsJson,
) -> None:
    """Serve a simulated OpenAI-compatible endpoint: no key, no model, no cost."""
    import asyncio

    from siafu.bench.simulator.control import application
    from siafu.bench.simulator.faults import parse_faults
    from siafu.bench.simulator.latency import parse_latency, parse_speed
    from siafu.bench.simulator.limits import Settings
    from siafu.bench.simulator.plan import World
    from siafu.bench.simulator.serve import serve
    from siafu.bench.simulator.server import Endpoint, Options

    if not is_loopback(host):
        typer.echo(f"siafu sim: anyone who reaches {host} can use and control this endpoint", err=True)
    rates, rules = parse_faults(faults)
    models = dict(map(parse_speed, model)) or None
    try:
        limits = Settings(rpm=rpm, tpm=tpm, max_concurrency=max_concurrency, slots=slots, burst=burst)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    options = Options(
        world=World(seed=seed, latency=parse_latency(latency), models=models, thinking=thinking),
        limits=limits,
        rates=rates,
        rules=rules,
        cache_ttl=cache_ttl,
        keep=keep,
        keep_bodies=keep_bodies,
        require_key=require_key,
    )

    def listening(base: str) -> None:
        tell(Ready(url=f"{base}/v1", control=f"{base}/_sim"), NOTE, file=ready_file, as_json=json)

    asyncio.run(serve(application(Endpoint(options)), host, port, listening, parent_pid=parent_pid))
