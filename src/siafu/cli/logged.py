"""A command whose stderr is a log for machines: what ends it is a line of that log, too."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import typer

from siafu.cli.options import LogForm
from siafu.errors import SiafuError
from siafu.observe.logs import log_to_stderr

log = logging.getLogger("siafu")


@contextlib.contextmanager
def logged(form: LogForm) -> Iterator[Callable[[str], None]]:
    """As `log_to_stderr`. Raises: as the block; with JSON typer.Exit in place of an error, which is told there."""
    with log_to_stderr(form.value) as say:
        try:
            yield say
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except Exception as error:
            if form is LogForm.text:
                raise
            if not isinstance(error, SiafuError):
                log.exception("unexpected %s", type(error).__name__)
                raise typer.Exit(1) from error
            log.error("%s", error.message)
            raise typer.Exit(error.exit_code) from error
