"""`siafu bench`: measurements of siafu beside other ways to do the same."""

from __future__ import annotations

from pathlib import Path

import typer

from siafu.cli import bench_work
from siafu.cli.bench_output import Home, Html, Json, numbers, print_report, progress, writable, write
from siafu.errors import ConfigError

EPILOG = """\b
Examples:
  siafu bench limits
      policies of the limiter, in virtual time; some seconds
  siafu bench gateway --no-peers
      a model call beside bare aiohttp
  siafu bench queue --no-peers --repeats 1
      durable tasks; about a minute
\b
Each has --help with examples of its own.
"""
GATEWAY_EPILOG = """\b
Examples:
  siafu bench gateway
      five runs each, one of each client of others; they take the most time
  siafu bench gateway --no-peers --concurrency 100
      without clients of others, at 100 agents only
  siafu bench gateway --peer openai --peer litellm
      beside these only
  siafu bench gateway --no-peers --spread 0.2
      answers that come one by one, as those of models do, and not in rushes
  siafu bench gateway --json > bench.json
      for machines; --html bench.html writes charts too
"""
SERVE_EPILOG = """\b
Examples:
  siafu bench serve
      under wrk if it is there
  siafu bench serve --load own --repeats 1 --seconds 2
      a first look, without wrk
  siafu bench serve --json > serve.json
      for machines; --html serve.html writes charts too
"""
CROWD_EPILOG = """\b
Examples:
  siafu bench crowd
      10,000 agents that wait, 1,000 calls at once
  siafu bench crowd --waiting 1000 --in-flight 100 --upstream-ms 200
      smaller, and sooner over
  siafu bench crowd --json > crowd.json
"""
LIMITS_EPILOG = """\b
Examples:
  siafu bench limits
  siafu bench limits --seeds 10
      more runs of each scenario
  siafu bench limits --json > limits.json
  siafu bench limits --base-url http://127.0.0.1:11434/v1 --model NAME
      on a model server of your own with 4 slots, such as llama.cpp's
  siafu bench limits --model-path FILE.gguf --slots 4
      serves the file (pip install 'siafu[local]'), then with half the slots
"""
STORM_EPILOG = """\b
Examples:
  siafu bench storm
      100, 1,000 and 10,000 agents; about half a minute each
  siafu bench storm --agents 100 --seconds 5
      one crowd, sooner over
  siafu bench storm --json > storm.json
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True, epilog=EPILOG)


@app.callback()
def bench() -> None:
    """Measure siafu beside other clients, servers and queues, and under load."""


@app.command(epilog=GATEWAY_EPILOG)
def gateway(
    concurrency: str = typer.Option("100,1000", metavar="N,N", help="Agents at once; one series each."),
    calls: int = typer.Option(2000, min=1, help="Calls a run; at least two an agent."),
    repeats: int = typer.Option(5, min=1, help="Runs of each client of ours; the median counts."),
    upstream_ms: float = typer.Option(200.0, min=1.0, help="How long the server takes to answer."),
    spread: float = typer.Option(0.0, min=0.0, max=0.99, help="Part of it by which answers come earlier or later."),
    loop: str = typer.Option("auto", help="Event loop of all clients and the server: asyncio, uvloop or auto."),
    peers: bool = typer.Option(True, "--peers/--no-peers", help="Clients of others too (pip installs them)."),
    peer: list[str] = typer.Option(
        [], metavar="NAME", help="Only this: openai, litellm, langchain, pydantic-ai, openai-agents. May be repeated."
    ),
    peer_repeats: int = typer.Option(1, min=1, help="Runs of each client of others."),
    home: Path = Home,
    html: Path | None = Html,
    json: bool = Json,
) -> None:
    """Measure CPU and latency of a model call.

    Bare aiohttp, siafu with ledger and journal, siafu without a store, and clients of others: each in its own process,
    in turns, against one server with a latency that is fixed, or lies within --spread.
    """
    from siafu.bench.gateway.compare import Options, compare
    from siafu.bench.gateway.page import gateway_page
    from siafu.bench.gateway.peers import PEERS
    from siafu.cli.bench_tables import GATEWAY_LEGEND, machine_line, show_gateway

    if loop not in ("auto", "asyncio", "uvloop"):
        raise ConfigError(f"--loop {loop}: write auto, asyncio or uvloop")
    writable(html)
    if unknown := [name for name in peer if name not in PEERS]:
        raise ConfigError(f"--peer {unknown[0]}: there are {', '.join(PEERS)}")
    report = compare(
        Options(
            concurrency=numbers("--concurrency", concurrency),
            calls=calls,
            repeats=repeats,
            upstream_ms=upstream_ms,
            spread=spread,
            loop=loop,
            peers=tuple(peer or PEERS) if peers else (),
            peer_repeats=peer_repeats,
            home=home,
        ),
        progress,
    )
    if html is not None:
        missing = [f"Not measured: {name}. {reason}" for name, reason in report.skipped.items()]
        write(html, gateway_page(report, [machine_line(report.machine), GATEWAY_LEGEND, *missing]))
    if json:
        print_report(report)
    else:
        show_gateway(report)
    if any(row["errors"] for row in report.rows if row["client"] not in {each.name for each in PEERS.values()}):
        raise typer.Exit(1)


@app.command(epilog=SERVE_EPILOG)
def serve(
    clients: int = typer.Option(64, min=1, max=10_000, help="Connections that ask again and again."),
    seconds: float = typer.Option(5.0, min=0.2, help="Of each run; wrk takes whole ones."),
    repeats: int = typer.Option(5, min=1, help="Runs of each server and kind of answer; the median counts."),
    upstream_ms: float = typer.Option(5.0, min=1.0, help="How long the upstream takes to answer."),
    load: str = typer.Option("auto", help="What asks: wrk, own, or auto: wrk if it is installed."),
    home: Path = Home,
    html: Path | None = Html,
    json: bool = Json,
) -> None:
    """Measure siafu serve beside a bare pass-through.

    A bare uvicorn and aiohttp, and siafu serve with limits, checks and a ledger on the disk: in turns, in front of one
    upstream, under the same load, with plain and streamed answers.
    """
    from siafu.bench.serve.compare import Options, compare
    from siafu.bench.serve.page import serve_page
    from siafu.cli.bench_tables import SERVE_LEGEND, machine_line, show_serve

    if load not in ("auto", "wrk", "own"):
        raise ConfigError(f"--load {load}: write auto, wrk or own")
    writable(html)
    report = compare(
        Options(clients=clients, seconds=seconds, repeats=repeats, upstream_ms=upstream_ms, load=load, home=home),
        progress,
    )
    if html is not None:
        write(html, serve_page(report, [machine_line(report.machine), SERVE_LEGEND]))
    if json:
        print_report(report)
    else:
        show_serve(report)
    if any(row["errors"] for row in report.rows):
        raise typer.Exit(1)


@app.command(epilog=CROWD_EPILOG)
def crowd(
    waiting: int = typer.Option(10_000, min=1, max=100_000, help="Agents that wait for their turn."),
    in_flight: int = typer.Option(1_000, min=1, max=10_000, help="Calls under way at once."),
    upstream_ms: float = typer.Option(2_000.0, min=1.0, help="How long the upstream takes, give or take a half."),
    home: Path = Home,
    json: bool = Json,
) -> None:
    """Measure what thousands of waiting agents cost.

    Memory, and stalls of the event loop, while agents wait in the limiter. Ledger and journal are on; each agent makes
    three calls.
    """
    from siafu.bench.crowd.compare import Options, compare
    from siafu.cli.bench_tables import show_crowd

    progress(f"{waiting + in_flight:,} agents, three calls each")
    report = compare(Options(waiting=waiting, in_flight=in_flight, upstream_ms=upstream_ms, home=home))
    if json:
        print_report(report)
    else:
        show_crowd(report)
    if report.row.errors:
        raise typer.Exit(1)


@app.command(epilog=LIMITS_EPILOG)
def limits(
    seeds: int = typer.Option(3, min=1, max=100, help="Runs of each scenario, with different chance."),
    base_url: str | None = typer.Option(None, help="A real model server instead; takes minutes."),
    model: str | None = typer.Option(None, help="--base-url: the model's name there."),
    model_path: Path | None = typer.Option(None, metavar="FILE.gguf", help="A model file to serve and use instead."),
    slots: int = typer.Option(4, min=1, max=1000, help="Real server: how many calls it works on at once."),
    agents: int = typer.Option(12, min=2, max=10_000, help="Real server: agents that ask all the time."),
    calls: int = typer.Option(150, min=3, help="Real server: calls of each row."),
    policies: str = typer.Option(
        "slots,fixed,aimd,vegas,window", metavar="P,P", help="Real server: slots is fixed at its --slots."
    ),
    prompts: str = typer.Option(
        "short,long,mixed,whole", metavar="P,P", help="Real server: whole is mixed, answered in one piece."
    ),
    json: bool = Json,
) -> None:
    """Compare the limiter's policies, simulated or on a real server.

    They decide how many calls are under way at once (limits.policy).
    """
    from siafu.bench.limits.report import compare, totals
    from siafu.cli.bench_tables import show_limits

    if base_url or model or model_path:
        from siafu.bench.demo.real import Model
        from siafu.bench.limits.live import Load
        from siafu.cli.bench_live import on_real_server

        load = Load(slots=slots, agents=agents, calls=calls, policies=policies.split(","), prompts=prompts.split(","))
        on_real_server(Model(base_url=base_url, name=model, path=model_path), load, json=json)
        return
    rows = compare(range(1, seeds + 1))
    if json:
        print_report({"rows": rows, "totals": totals(rows)})
    else:
        show_limits(rows, totals(rows))


@app.command(epilog=STORM_EPILOG)
def storm(
    agents: str = typer.Option("100,1000,10000", metavar="N,N", help="Agents that ask at once; one storm each."),
    seconds: float = typer.Option(20.0, min=0.5, help="How long the endpoint needs for a crowd at best."),
    json: bool = Json,
) -> None:
    """Let crowds ask an endpoint that takes far less, and count.

    The whole of siafu with ledger and journal, against the simulated endpoint; exit 1 when an agent got no answer.
    """
    from siafu.bench.storm import storms
    from siafu.cli.bench_tables import show_storms

    rows = list(storms(numbers("--agents", agents), seconds, progress))
    if json:
        print_report({"rows": rows})
    else:
        show_storms(rows)
    if any(row.answered < row.agents for row in rows):
        raise typer.Exit(1)


app.command(epilog=bench_work.QUEUE_EPILOG)(bench_work.queue)
app.command(epilog=bench_work.STAGES_EPILOG)(bench_work.stages)
app.command(epilog=bench_work.SURGE_EPILOG)(bench_work.surge)
app.command(epilog=bench_work.SOAK_EPILOG)(bench_work.soak)
