from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Any

import pytest

from siafu.border.secrets import Secret
from siafu.observe.logs import MOST, JsonLines, PlainLines, log_to_stderr

KEY = "sk-test-0123456789abcdefghij"
log = logging.getLogger("siafu.test")


def record(message: Any, *arguments: Any, error: BaseException | None = None) -> logging.LogRecord:
    told = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("siafu.test", logging.ERROR, __file__, 1, message, arguments, told)


def raised(text: str) -> BaseException:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


@pytest.mark.parametrize("form", [JsonLines().format, PlainLines().format])
def test_f58_the_key_is_in_no_line(form: Callable[[logging.LogRecord], str]) -> None:
    Secret("열쇠는 아무 글자나")  # what was configured, whatever it looks like
    for line in (
        form(record("it said: %s", f"Bearer {KEY}")),
        form(record({"headers": {"Authorization": KEY}})),
        form(record("postgresql://user:%s@host/db", "p4ssw0rd")),
        form(record("열쇠는 아무 글자나!")),
        form(record("no", error=raised(f"the key {KEY} is wrong"))),
    ):
        assert "***" in line
        assert not any(secret in line for secret in (KEY, "p4ssw0rd", "열쇠는 아무 글자나"))


def test_sec30_no_text_can_forge_a_line_or_drive_a_terminal() -> None:
    text = "끝\r\nsiafu: all is well\x1b[2J\x9b31m\u2028\u202e.exe\x00"
    line = JsonLines().format(record("%s", text))
    assert line.isprintable()
    assert json.loads(line)["message"] == text.replace("\x00", "\ufffd")
    plain = PlainLines().format(record("%s", text, error=raised("a\nb")))
    assert plain.startswith("siafu: error: 끝\\u000d\\u000asiafu: all is well\\u001b[2J")
    assert all(each.startswith("  ") for each in plain.split("\n")[1:])


def test_a_line_says_when_who_and_what() -> None:
    line = json.loads(JsonLines().format(record("작업 %d개", 3, error=raised("no"))))
    assert line["time"].endswith("Z")
    assert line["level"] == "error"
    assert line["logger"] == "siafu.test"
    assert line["message"] == "작업 3개"
    assert line["error"].endswith("ValueError: no")
    assert "trace_id" not in line


def test_a_line_that_was_badly_written_is_not_lost_and_a_long_one_is_cut() -> None:
    assert "'%d tasks'" in JsonLines().format(record("%d tasks", "three"))
    assert len(PlainLines().format(record("x" * 10 * MOST))) < MOST + 100


def test_everything_goes_to_stderr_while_the_program_runs_and_then_all_is_as_before() -> None:
    before, written = list(logging.getLogger().handlers), io.StringIO()
    with redirect_stderr(written), log_to_stderr("json") as say:
        say("100 % 준비됨")
        log.warning("a tool is left out")
        logging.getLogger("a.library").warning("its words")
        logging.getLogger("a.library").info("too many of its words")
        log.debug("too many of ours")
    log.warning("after the end")
    found = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["message"] for line in found] == ["100 % 준비됨", "a tool is left out", "its words"]
    assert logging.getLogger().handlers == before
    assert sys.stderr is not written
