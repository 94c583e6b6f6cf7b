"""The money layer's tables on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services import Postgres, new_database
from siafu.store.database import Database

from .kit import open_db


@pytest.fixture(scope="session")
def money_tables(postgres: Postgres) -> Iterator[str]:
    """The name of a database with the tables, and nothing in them. To copy it takes less than to make them."""
    with new_database(postgres) as name:
        open_db(postgres.url(name)).close()
        yield name


@pytest.fixture
def postgres_url(postgres: Postgres, money_tables: str) -> Iterator[str]:
    with new_database(postgres, money_tables) as name:
        yield postgres.url(name)


@pytest.fixture
def db(sql_url: str) -> Iterator[Database]:
    database = open_db(sql_url)
    yield database
    database.close()
