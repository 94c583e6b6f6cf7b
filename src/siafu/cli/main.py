"""`siafu`: finds the command, runs it, and turns errors into messages and exit codes.

Commands are imported when they are called, so `siafu --help` stays quick. A command module holds `app`, a
`typer.Typer`. Exit codes: 0 all succeeded, 1 some failed, 2 wrong use or configuration, 3 budget reached, no
credit left or an endpoint that fails, 130 interrupted (Ctrl-C, SIGTERM).
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from siafu import __version__
from siafu.border.secrets import redact
from siafu.border.text import printable
from siafu.errors import Interrupted, SiafuError

# name -> (module, one line for `siafu --help`)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("siafu.cli.demo", "See it work: 429s and a kill -9, the usual glue beside siafu."),
    "init": ("siafu.cli.init", "Write a siafu.toml and example requests to start from."),
    "config": ("siafu.cli.config", "Check and show settings; their JSON Schema for editors."),
    "doctor": ("siafu.cli.doctor", "Check settings, key, endpoint and tools, and say what to do."),
    "support": ("siafu.cli.support", "Answer customer requests with a swarm of agents."),
    "serve": ("siafu.cli.serve", "Serve an OpenAI-compatible endpoint in front of others."),
    "openapi": ("siafu.cli.openapi", "Print what siafu serve answers, as an OpenAPI document."),
    "submit": ("siafu.cli.submit", "Hand requests over to workers; what is accepted is kept."),
    "worker": ("siafu.cli.worker", "Do what was submitted; several may work at once."),
    "workers": ("siafu.cli.workers", "See who works: alive or not, slots, since when, how fast."),
    "tasks": ("siafu.cli.tasks", "See, follow, cancel, retry and purge submitted tasks."),
    "dead": ("siafu.cli.dead", "See and retry tasks that were given up."),
    "db": ("siafu.cli.db", "Upgrade, back up and look at siafu's databases."),
    "keys": ("siafu.cli.keys", "Make, list and revoke keys for clients of siafu serve."),
    "batch": ("siafu.cli.batch", "Run a file of OpenAI-Batch lines; resumes by itself."),
    "report": ("siafu.cli.report", "See how tasks did against what was promised, by hour."),
    "cost": ("siafu.cli.cost", "See what runs cost, what a file will cost, and other models."),
    "upstream-keys": ("siafu.cli.upstream_keys", "Change the keys of upstreams while siafu runs."),
    "canary": ("siafu.cli.canary", "Try a new upstream or model on some users first."),
    "approvals": ("siafu.cli.approvals", "Decide what agents may only do once a person says yes."),
    "effects": ("siafu.cli.effects", "See what tools did, settle what is unclear, stop a tool."),
    "shop": ("siafu.cli.shop", "Serve the example shop's tools over MCP."),
    "sim": ("siafu.cli.sim", "Serve a simulated OpenAI-compatible endpoint."),
    "payments": ("siafu.cli.payments", "Serve a simulated payment provider, and count what it paid."),
    "bench": ("siafu.cli.bench", "Measure siafu beside other clients."),
}

# how `siafu --help` groups them
GROUPS: dict[str, tuple[str, ...]] = {
    "Begin": ("demo", "init", "config", "doctor"),
    "Run agents": ("batch", "support", "submit", "worker", "workers", "tasks", "dead", "report"),
    "Serve and keep": ("serve", "openapi", "keys", "db"),
    "Models and money": ("cost", "canary", "upstream-keys"),
    "What agents do": ("approvals", "effects"),
    "Try and measure": ("shop", "payments", "sim", "bench"),
}

DEBUG = "SIAFU_DEBUG"  # 1 = show the traceback of an unexpected error
EPILOG = """\b
Examples:
  siafu demo                 see it work, without a key
  siafu init my-swarm        files to start from
  siafu batch run --help     options and examples of one command
"""


class _Lazy(TyperGroup):
    """A group whose commands are imported when one is called, not when help lists them."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for name, (_, line) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line, short_help=line), name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        grouped = {name for names in GROUPS.values() for name in names}
        others = tuple(name for name in COMMANDS if name not in grouped)
        width = max(map(len, COMMANDS))
        for heading, names in (*GROUPS.items(), ("More", others)):
            if names:
                with formatter.section(heading):
                    formatter.write_dl([(name.ljust(width), COMMANDS[name][1]) for name in names])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = typer.main.get_command(importlib.import_module(COMMANDS[name][0]).app)
            command.name = name
        return name, command, rest


app = typer.Typer(
    cls=_Lazy,
    name="siafu",
    help="Run hundreds to thousands of LLM agents in parallel: inside the limits, inside the budget, nothing lost, "
    "nothing done twice.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"siafu {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", "-V", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


class _Heard:
    """stderr, where a full disk behind it ends no work: what is said is lost then, and nothing else."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._tried(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._tried(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @staticmethod
    def _tried(say: Callable[[], Any]) -> None:
        try:
            say()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise  # such as EPIPE: whoever read it went away


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does, so that a command ends with all that it started. One that runs longer or serves
    has its own way for both.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield  # as nohup and the like want it
        return

    def end(number: int, frame: Any) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell has it for what runs in the background
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `siafu` script. Ends the process with the exit code of the command."""
    if sys.stderr is not None:  # it is None when it was closed
        sys.stderr = _Heard(sys.stderr)
    try:
        with _sigterm_as_ctrl_c():
            code = typer.main.get_command(app).main(argv, prog_name="siafu", standalone_mode=False)
        if code == Interrupted.exit_code:  # typer caught the Ctrl-C, and says nothing
            _say("interrupted")
        if sys.stdout is not None:
            sys.stdout.flush()
    except typer.Exit as done:
        code = done.exit_code
    except typer.TyperException as wrong:
        show = getattr(wrong, "show", None)  # usage errors print the usage line too
        show() if show else _say(str(wrong))
        code = getattr(wrong, "exit_code", 2)
    except SiafuError as error:
        _say(error.message)
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        _say("interrupted")
        code = Interrupted.exit_code
    except BrokenPipeError:  # the reader went away, as in `siafu ... | head`
        code = 1
        _let_go_of_output()
    except Exception as error:  # noqa: BLE001 - told without a page of traceback
        code = _unexpected(error)
        _let_go_of_output()
    sys.exit(code if isinstance(code, int) else 0)


def _let_go_of_output() -> None:
    """What cannot be written (nobody reads, the disk is full) would be an error once more when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(error: Exception) -> int:
    if os.environ.get(DEBUG, "") not in ("", "0"):
        import traceback

        _say("".join(traceback.format_exception(error)))
    else:
        _say(f"unexpected {type(error).__name__}: {error} ({DEBUG}=1 shows where)")
    return 1


def _say(text: str) -> None:
    typer.echo(f"siafu: {printable(redact(text))}", err=True)
