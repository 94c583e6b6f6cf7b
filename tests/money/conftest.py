"""The money layer's tables on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from siafu.store.database import Database

from .kit import open_db


@pytest.fixture
def db(sql_url: str) -> Iterator[Database]:
    database = open_db(sql_url)
    yield database
    database.close()
