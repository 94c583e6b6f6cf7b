"""`siafu payments`: a simulated payment provider, and what it paid."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import msgspec
import typer

from siafu.bench.payments.book import Mode
from siafu.border.text import counted, printable
from siafu.cli.options import ParentPid, ReadyFile, UrlAsJson
from siafu.cli.ready import Ready, tell
from siafu.cli.showing import AsJson

NOTE = "SIMULATED payments: pays whatever it is told, no money moves. Ctrl-C ends it"
app = typer.Typer(
    help="A simulated payment provider: an HTTP process with its own ledger of what it paid. It pays whatever it is "
    "told, like a bank transfer, so that only its caller keeps a refund from being paid twice.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu payments serve --ledger paid.jsonl    a free port; prints the URL
  siafu payments show paid.jsonl              what was paid, and what twice
""",
)


@app.command(
    epilog="""\b
Examples:
  siafu payments serve --ledger paid.jsonl --port 9200
  siafu payments serve --ledger paid.jsonl --mode lookup --slow 300
  siafu payments serve --ledger paid.jsonl --faults lost:10%,error_after:5%
  siafu payments serve --ledger paid.jsonl --faults faults.json
\b
  curl URL/v1/refunds -H 'Idempotency-Key: k-1' -d '{"payment": "pay_1",
    "amount": 700, "currency": "KRW", "reference": "r-1"}'
  curl URL/v1/refunds?reference=r-1
\b
Modes:
  idempotent  a key pays once; the same answer again, marked as replayed
  lookup      keys are ignored; refunds can be looked up by their reference
  neither     keys are ignored, and nothing can be looked up
\b
Faults (what each does: GET /_payments/faults):
  slow, lost, lost_before, hang, hang_before, error_after, error_before,
  decline, unparsable; of a lookup: lookup_slow, lookup_lost, lookup_hang,
  lookup_error, lookup_unparsable
\b
What happened:   GET  /_payments/stats, /_payments/ledger, /_payments/requests
Change it:       POST /_payments/faults {"rules": [{"kind": "lost"}]}
"""
)
def serve(
    ledger: Path = typer.Option(..., metavar="FILE", help="JSON lines, made when missing; what it holds stays paid."),
    port: int = typer.Option(0, min=0, max=65535, help="0 = any free port."),
    mode: Mode = typer.Option(Mode.idempotent, help="What helps a caller who does not know if a refund was paid."),
    slow: float = typer.Option(0, min=0, max=600_000, metavar="MS", help="Milliseconds a refund takes to be paid."),
    faults: str = typer.Option("", metavar="SPEC", help="Rates such as lost:5%, or a JSON file with a script."),
    seed: int = typer.Option(0, help="Another seed: other ids and faults."),
    name: str = typer.Option("", help="What it calls itself. Default: a name that stays while the ledger's path does."),
    ready_file: Path | None = ReadyFile,
    parent_pid: int | None = ParentPid,
    as_json: bool = UrlAsJson,
) -> None:
    """Serve payments on this machine: no key, no check of sums, no money."""
    from siafu.bench.payments.bank import Bank, Options
    from siafu.bench.payments.control import application
    from siafu.bench.payments.faults import parse_faults
    from siafu.bench.payments.ledger import Ledger
    from siafu.bench.simulator.serve import serve as run

    def listening(base: str) -> None:
        tell(Ready(url=base, control=f"{base}/_payments"), NOTE, file=ready_file, as_json=as_json)

    known_as = name or f"simulated-{hashlib.sha256(os.fsencode(ledger.resolve())).hexdigest()[:12]}"
    options, wrong = Options(mode=mode, name=known_as, slow=slow / 1000, seed=seed), parse_faults(faults)
    app = application(Bank(Ledger(ledger), options, wrong))
    asyncio.run(run(app, "127.0.0.1", port, listening, parent_pid=parent_pid))


@app.command(
    epilog="""\b
Examples:
  siafu payments show paid.jsonl            each refund paid, and the totals
  siafu payments show paid.jsonl --json     for programs
"""
)
def show(
    ledger: Path = typer.Argument(..., metavar="FILE", help="The ledger of a provider that runs or ran."),
    as_json: bool = AsJson,
) -> None:
    """Show what was paid, from the ledger: also while it is being served."""
    from siafu.bench.payments.ledger import read_ledger

    book = read_ledger(ledger)
    stats = book.stats()
    if as_json:
        typer.echo(msgspec.json.encode({"stats": stats, "effects": book.effects}))
        return
    for paid in book.effects:
        typer.echo(printable(f"{paid.id}  {paid.payment}  {paid.amount} {paid.currency}  {paid.reference}"))
    sums = ", ".join(f"{amount} {currency}" for currency, amount in sorted(stats["paid"].items())) or "nothing"
    again = f"{stats['duplicates']} of them under a reference paid before"
    typer.echo(f"{counted(stats['effects'], 'refund')} paid, {again}; paid back: {sums}")
