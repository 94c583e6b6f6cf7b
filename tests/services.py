"""Real servers for tests: PostgreSQL and Redis, each on a free port, ended with the tests that asked for them."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from processes import alive

START_SECONDS, STOP_SECONDS = 60.0, 20.0
PASSWORD = "p@ss/w:ord%암호"  # every kind of character that an address has to write otherwise

# Runs a server, and ends it when its own input closes: the server does not outlive the tests, however they end.
_GUARD = '"$@" & pid=$!; echo $pid; read -r _; kill -INT $pid 2>/dev/null; wait $pid'


class Server:
    """A server process. `command` and `ready` are given its port, which it keeps for life.

    Raises (`start`): AssertionError with the end of its log when it does not get ready.
    """

    def __init__(
        self, folder: Path, command: Callable[[int], list[str]], ready: Callable[[int], bool], user: str | None = None
    ) -> None:
        self.port = 0
        self.pid = 0
        self._folder, self._command, self._ready, self._user = folder, command, ready, user
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, the first time on a free port. A server that ends again (its port or files are still in use) is
        started again, until it is ready or time is over.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            port = self.port or free_port()
            with (self._folder / "log").open("ab") as log:
                self._guard = subprocess.Popen(
                    ["/bin/sh", "-c", _GUARD, "sh", *self._command(port)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, user=self._user, cwd=self._folder,
                )  # fmt: skip
            assert self._guard.stdout is not None
            self.pid = int(self._guard.stdout.readline())
            while time.monotonic() < deadline and alive(self.pid):
                if self._ready(port):
                    self.port = port
                    return
                time.sleep(0.02)
            self.stop()
        raise AssertionError(f"{self._command(0)[0]} did not start: {(self._folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End it with SIGKILL; nothing it had in memory is kept."""
        os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End it in good order. Idempotent."""
        if self._guard is not None:
            self._guard.communicate(timeout=STOP_SECONDS)  # closes its input
            self._guard = None


class Postgres(Server):
    def url(self, database: str = "postgres") -> str:
        return f"postgresql://tester:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A connection that commits by itself."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=5)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A new PostgreSQL with the superuser `tester`; skips when none is installed."""
    programs = _postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    user = _unprivileged()
    with _folder(user) as folder:
        (folder / "password").write_text(PASSWORD, encoding="utf-8")
        (folder / "password").chmod(0o644)  # for that user; the folder is closed to others
        data = str(folder / "data")
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "tester", "--pwfile", folder / "password", "-A", "scram-sha-256",
             "-E", "UTF8", "--locale=C", "--no-sync"],
            check=True, capture_output=True, user=user, cwd=folder,
        )  # fmt: skip
        settings = [
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={folder}",
            "fsync=off",
            "shared_buffers=16MB",
        ]
        flags = [word for setting in settings for word in ("-c", setting)]
        command = [str(programs / "postgres"), "-D", data, *flags]
        server = Postgres(folder, lambda port: [*command, "-p", str(port)], _postgres_answers, user)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _postgres_answers(port: int) -> bool:
    try:
        psycopg.connect(host="127.0.0.1", port=port, user="tester", password=PASSWORD, dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def running_redis(*more: str) -> Iterator[Server]:
    """A new, empty Redis without persistence; skips when none is installed. SIAFU_TEST_REDIS names another program than
    redis-server. more: flags; the last of a kind counts.
    """
    program = shutil.which(os.environ.get("SIAFU_TEST_REDIS", "redis-server"))
    if program is None:
        pytest.skip("Redis is not installed")
    with _folder(None) as folder:
        flags = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder), "--logfile", "log"]
        server = Server(folder, lambda port: [program, "--port", str(port), *flags, *more], _redis_answers)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def redis_command(port: int, *words: str) -> bytes:
    """The reply to one command, as Redis sends it. For commands with short replies."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(" ".join(words).encode() + b"\r\n")
        return connection.recv(4096)


def _redis_answers(port: int) -> bool:
    try:
        return redis_command(port, "PING") == b"+PONG\r\n"
    except OSError:
        return False


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL for the tests of this process. A test that stops it starts it again."""
    with running_postgres() as server:
        yield server


@contextmanager
def new_database(postgres: Postgres, template: str = "template1") -> Iterator[str]:
    """The name of a new database, a copy of `template`, that ends with the block. Copied file by file: to write it into
    the log is three times the work.
    """
    name = f"t{uuid.uuid4().hex}"
    with postgres.connect() as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
    yield name
    with postgres.connect() as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """The address of an empty database."""
    with new_database(postgres) as name:
        yield postgres.url(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, once in SQLite and once in PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / '가게 100%?#.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture(scope="session")
def _redis() -> Iterator[Server]:
    with running_redis() as server:
        yield server


@pytest.fixture
def redis_url(_redis: Server) -> str:
    """The address of an empty Redis."""
    assert redis_command(_redis.port, "FLUSHALL") == b"+OK\r\n"
    return f"redis://127.0.0.1:{_redis.port}/0"


def _postgres_programs() -> Path | None:
    """The folder with initdb and postgres: from PATH, else the newest where Debian puts them."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(folders, key=lambda folder: int(folder.parent.name), default=None)


def _unprivileged() -> str | None:
    """Who runs PostgreSQL, which refuses to run as root; None: we do."""
    if os.geteuid() != 0:
        return None
    return "postgres" if "postgres" in {entry.pw_name for entry in pwd.getpwall()} else "nobody"


@contextmanager
def _folder(owner: str | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="siafu-"))  # not in pytest's folder, which only its owner may enter
    try:
        if owner is not None:
            shutil.chown(folder, owner)
        yield folder
    finally:
        shutil.rmtree(folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
