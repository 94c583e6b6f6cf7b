"""The logging door: every line of a program, whoever wrote it, masked, and on one line, in the form that was asked for.

Libraries log through Python's own `logging`; here it gets its one handler. What looks like a secret is masked wherever
it stands; line breaks, terminal controls and what turns the direction of writing are shown and not obeyed, so that no
text from outside can forge a line.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import re
import sys
from collections.abc import Callable, Iterator
from typing import Literal

from siafu.border.canonical import dumps
from siafu.border.secrets import redact
from siafu.border.text import clean
from siafu.observe import spans

Form = Literal["text", "json"]
MOST = 8_000  # characters of a message or a traceback
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@contextlib.contextmanager
def log_to_stderr(form: Form) -> Iterator[Callable[[str], None]]:
    """While the block runs, send everything from level INFO of siafu, and from WARNING of its libraries, to stderr.
    Yields what tells people a notice.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    root, own = logging.getLogger(), logging.getLogger("siafu")
    level = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield own.info
    finally:
        root.removeHandler(handler)
        own.setLevel(level)


class JsonLines(logging.Formatter):
    """A JSON object a line: time (UTC), level, logger, message, and error (a traceback), trace_id when there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _safe(_message(record)),
        }
        if record.exc_info:
            line["error"] = _safe(self.formatException(record.exc_info))
        if parent := spans.headers().get("traceparent"):
            line["trace_id"] = parent.split("-")[1]
        return _HIDDEN.sub(_escaped, dumps(line).decode())


class PlainLines(logging.Formatter):
    """`siafu: MESSAGE`, with the level when it is more than news."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        line = f"siafu: {level}{_HIDDEN.sub(_escaped, _safe(_message(record))).removeprefix('siafu: ')}"
        if record.exc_info:
            frames = _safe(self.formatException(record.exc_info)).split("\n")
            line += "".join(f"\n  {_HIDDEN.sub(_escaped, frame)}" for frame in frames)
        return line


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - a line that was badly written is no reason to lose it
        return f"{record.msg!r} could not be written: {type(error).__name__}"


def _safe(text: str) -> str:
    text = redact(clean(text))
    return text if len(text) <= MOST else f"{text[:MOST]}... ({len(text) - MOST:,} more characters)"


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _time(record: logging.LogRecord) -> str:
    at = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
    return at.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
