"""Database servers of our own while something is measured, on free ports, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from siafu.border.text import preview
from siafu.errors import MeasurementInvalid

START_SECONDS, STOP_SECONDS = 60.0, 20.0
# Ends the server when our end of its input closes, however this process ends.
_GUARD = '"$@" & pid=$!; read -r _; kill -INT $pid 2>/dev/null; wait $pid'


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """The address of a new, empty PostgreSQL that writes every commit to its disk.

    Raises: MeasurementInvalid when none is installed, or it does not start.
    """
    programs = _programs()
    user = _unprivileged()
    with _folder(user) as folder, _running(user, folder) as run:
        data = folder / "data"
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True, user=user, cwd=folder, check=False,
        )  # fmt: skip
        if made.returncode:
            raise MeasurementInvalid(f"PostgreSQL cannot be set up: {preview(made.stderr.decode('utf-8', 'replace'))}")

        def command(port: int) -> list[str]:
            settings = ("listen_addresses=127.0.0.1", f"unix_socket_directories={folder}")
            flags = [word for setting in settings for word in ("-c", setting)]
            return [str(programs / "postgres"), "-D", str(data), "-p", str(port), *flags]

        def ready(port: int) -> bool:
            asked = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            return subprocess.run(asked, check=False).returncode == 0

        yield f"postgresql://bench@127.0.0.1:{run('PostgreSQL', command, ready)}/postgres"


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """The address of a new, empty Redis that writes its append-only file to the disk once a second.

    Raises: MeasurementInvalid when none is installed, or it does not start.
    """
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise MeasurementInvalid("Redis is not installed (redis-server, or valkey-server); --redis URL takes another")
    with _folder(None) as folder, _running(None, folder) as run:

        def command(port: int) -> list[str]:
            flags = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--dir", str(folder)]
            return [program, "--port", str(port), *flags]

        yield f"redis://127.0.0.1:{run('Redis', command, _answers_ping)}/0"


_Run = Callable[[str, Callable[[int], list[str]], Callable[[int], bool]], int]


@contextlib.contextmanager
def _running(user: str | None, folder: Path) -> Iterator[_Run]:
    """What starts a server of a name by its command, and returns its port once it is ready."""
    with contextlib.ExitStack() as stack:

        def run(name: str, command: Callable[[int], list[str]], ready: Callable[[int], bool]) -> int:
            port = _free_port()
            log = stack.enter_context((folder / "log").open("wb"))
            words = ["/bin/sh", "-c", _GUARD, "sh", *command(port)]
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log, stderr=log, user=user, cwd=folder)
            stack.callback(process.communicate, timeout=STOP_SECONDS)  # closes its input
            deadline = time.monotonic() + START_SECONDS
            while not ready(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (folder / "log").read_text("utf-8", "replace").strip().splitlines() or ["it said nothing"]
                    raise MeasurementInvalid(f"{name} did not start: {preview(said[-1])}")
                time.sleep(0.05)
            return port

        yield run


def _programs() -> Path:
    """The folder of initdb and postgres: from PATH, else the newest where Debian puts them."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not folders:
        raise MeasurementInvalid("PostgreSQL is not installed (initdb, postgres); --postgres URL takes another")
    return max(folders, key=lambda folder: float(folder.parent.name))


def _unprivileged() -> str | None:
    """Who runs PostgreSQL, which refuses to run as root; None: we do."""
    if os.geteuid() != 0:
        return None
    return "postgres" if "postgres" in {entry.pw_name for entry in pwd.getpwall()} else "nobody"


@contextlib.contextmanager
def _folder(owner: str | None) -> Iterator[Path]:
    """Not in a home folder, which another user may not enter."""
    with tempfile.TemporaryDirectory(prefix="siafu-bench-") as name:
        if owner is not None:
            shutil.chown(name, owner)
        yield Path(name)


def _answers_ping(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
