"""One simulator for the tests of a module that need none of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paysim import Payments, running_payments


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Payments]:
    with running_payments(tmp_path_factory.mktemp("payments") / "paid.jsonl") as payments:
        yield payments
