"""The back ends that must keep the contract of `RunStore`. Another one joins by a name and a class here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from services import Postgres, new_database
from siafu.store.records import RunStore
from siafu.store.sqlite import SqliteStore

from .task_house import House


class Backend(Protocol):
    def run(self, name: str) -> RunStore:
        """A run on the same place each time, as another process would open it. The wall clock says 2000."""
        ...


class SqliteFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "새 폴더" / "실행 100%?#.db"

    def run(self, name: str) -> RunStore:
        return SqliteStore(self.path, wall=lambda: 2000.0).run(name)


class SqliteMemory:
    def __init__(self, folder: Path) -> None:
        pass

    def run(self, name: str) -> RunStore:
        return SqliteStore(":memory:", wall=lambda: 2000.0).run(name)


DURABLE: dict[str, type[SqliteFile]] = {"sqlite": SqliteFile}


@pytest.fixture(params=[*DURABLE, "memory"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """For what one session sees."""
    return SqliteMemory(tmp_path) if request.param == "memory" else DURABLE[request.param](tmp_path)


@pytest.fixture(params=DURABLE)
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """For what the next session sees."""
    return DURABLE[request.param](tmp_path)


@pytest.fixture(scope="session")
def tasks_url(postgres: Postgres) -> Iterator[str]:
    """The address of one PostgreSQL database for all tests of tasks, each of which clears it first."""
    with new_database(postgres) as name:
        yield postgres.url(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def tasks_sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database for tasks, once in SQLite and once in PostgreSQL: there it is `tasks_url`."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / '일 100%?#.db'}"
    found: str = request.getfixturevalue("tasks_url")
    return found


@pytest.fixture
async def house(tasks_sql_url: str) -> AsyncIterator[House]:
    """The tasks in that database: none, and no workers."""
    opened = House(tasks_sql_url)
    opened.clear()
    yield opened
    await opened.aclose()
