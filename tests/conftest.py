"""Rules for the whole suite: which skips are allowed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

import births

pytest_plugins = ["services"]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background by a shell: programs would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of processes are started here. Where an environment forbids bytecode, each would compile all of siafu again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
births.install()
# How long an example takes says something of the machine, and nothing of the code.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# test id prefix -> why it may be skipped in CI. Everything else that skips there is a failure.
ALLOWED_SKIPS: dict[str, str] = {}


def pytest_unconfigure() -> None:
    if births.mother.cache_info().currsize:
        births.mother().end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if skipped and os.environ.get("SIAFU_CI") and not any(map(item.nodeid.startswith, ALLOWED_SKIPS)):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped in CI and is not on the list of allowed skips"
    return report
