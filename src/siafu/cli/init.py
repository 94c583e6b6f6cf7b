"""`siafu init`: files to start from."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from siafu.cli.showing import AsJson

EPILOG = """\b
Examples:
  siafu init my-swarm        write into a new folder
  siafu init                 write into this one
  siafu init --force         write over what an earlier init wrote
\b
Writes siafu.toml (every setting with its default), siafu.schema.json (with
which editors check it), requests.jsonl (20 customers, Korean and English),
batch.jsonl (OpenAI-Batch lines), first.py.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def init(
    folder: Path = typer.Argument(Path(), metavar="DIR", help="Where to write; made when missing."),
    force: bool = typer.Option(False, "--force", help="Write over files of these names."),
    json: bool = AsJson,
) -> None:
    """Write a siafu.toml, example requests and a first script to start from."""
    from siafu.cli import starter
    from siafu.config.schema import schema_text
    from siafu.config.settings import load
    from siafu.errors import ConfigError

    try:
        model = load().model("default")
    except ConfigError:  # an endpoint whose models nobody can know, or settings that doctor explains better
        model = "MODEL"
    files = {
        "siafu.toml": starter.SETTINGS.encode(),
        "siafu.schema.json": schema_text().encode(),
        "requests.jsonl": starter.request_lines(),
        "batch.jsonl": starter.batch_lines(model),
        "first.py": starter.FIRST.encode(),
    }
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise ConfigError(f"{folder / there[0]} is there already; --force writes over {', '.join(there)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from None
    if json:
        import msgspec

        typer.echo(msgspec.json.encode({"folder": str(folder), "files": list(files)}).decode())
    else:
        typer.echo(_next(folder, list(files)))


def _next(folder: Path, files: list[str]) -> str:
    go = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    steps = [
        *go,
        "siafu doctor                                          # what works?",
        "siafu support run requests.jsonl --out answers.jsonl  # 20 customers",
        "siafu batch run batch.jsonl --out results.jsonl       # 10 plain requests",
        "python first.py                                       # siafu.map",
    ]
    return "\n".join(
        [
            f"wrote {', '.join(files)}",
            "",
            "Next (without a key a SIMULATED endpoint answers):",
            *(f"  {step}" for step in steps),
        ]
    )
