"""One endpoint for each module, as it was at its start for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim import Sim, running_sim


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Sim]:
    with running_sim(seed=1, keep_bodies=True) as sim:
        yield sim


@pytest.fixture
def sim(endpoint: Sim) -> Iterator[Sim]:
    yield endpoint
    endpoint.reset()
