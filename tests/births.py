"""`python -m siafu`, started in milliseconds: the suite starts it many hundred times, and most of a start is imports.

A mother has everything imported. Once `births.install()` was called, she forks what this process starts of
`python -m siafu ...` and of programs in this checkout; `subprocess` and `asyncio` notice nothing. What is born is what
was asked for: a process of its own and a child of who asked, with the files, folder, environment, session and command
line that it was given. It is killed alone, and has a mother for its own starts. Only its imports are done already, so
what is about imports, memory or an interpreter's flags (`-c`, `-X`, `-W`) starts by itself. With SIAFU_TESTS_COLD=1
everything does.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
SRC = str(ROOT / "src")
NAME = "siafu-births"  # of a mother, where processes are listed
OURS = {path.stem for folder in ("src", "tests") for path in (ROOT / folder).iterdir()}  # modules
LEASH = str(ROOT / "src/siafu/bench/demo/leash.py")
TELL = 3  # file of who is being born
LEAVES = ("sim", "payments", "shop")  # commands that start nothing
COLD = "SIAFU_TESTS_COLD"
DEATH_SIGNAL, SET_NAME, SUBREAPER = 1, 15, 36  # prctl
_LONGEST = 200_000  # bytes of a message
_ROOM = 4096  # bytes for a command line
_AT_START = ("PYTHON", "LC_", "LANG", "TZ")  # variables that count before the first line of a program ...
_LATER = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")  # ... and those of them that do later as well


class Mother:
    """The one who forks, as who asks sees her. line: to her."""

    def __init__(self, line: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._line, self._process = line, process
        self._owner, self._alone = os.getpid(), threading.Lock()

    def bear(self, asked: dict[str, Any], files: Sequence[int]) -> int | None:
        """The process id of a new child of this process; None: she cannot be asked."""
        if self._owner != os.getpid():  # a fork: it would not be its child
            return None
        with self._alone:
            _prctl(SUBREAPER, 1)  # who loses its parent now becomes our child
            try:
                socket.send_fds(self._line, [json.dumps(asked).encode()], files)
                return int(self._line.recv(64))
            except (OSError, ValueError):
                return None
            finally:
                _prctl(SUBREAPER, 0)

    def end(self) -> None:
        self._line.close()
        if self._process:
            self._process.wait()


@functools.cache
def mother() -> Mother:
    """Of this process, from the first time that she is needed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno()), "-" * _ROOM]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    return Mother(ours, process)


def install(mother: Callable[[], Mother] = mother) -> None:
    """From now on the starts of this process are births; elsewhere than on Linux nothing changes."""
    if sys.platform != "linux":
        return
    fork_exec: Any = subprocess._fork_exec  # type: ignore[attr-defined]
    fork_exec = getattr(fork_exec, "replaced", fork_exec)

    def start(*asked: Any) -> Any:
        wanted, files = _understood(asked)
        pid = mother().bear(wanted, files) if wanted else None
        return fork_exec(*asked) if pid is None else pid

    start.replaced = fork_exec  # type: ignore[attr-defined]
    subprocess._fork_exec = start  # type: ignore[attr-defined]
    subprocess._USE_POSIX_SPAWN = False  # type: ignore[misc]  # a way around it since Python 3.13


def _understood(asked: Sequence[Any]) -> tuple[dict[str, Any] | None, list[int]]:
    """What `subprocess` wants to be started, and its stdin, stdout and stderr; None: it is to start by itself."""
    given, _, close_fds, kept, cwd, env = asked[:6]
    stdin, _, _, stdout, _, stderr, _, notes, _, session, group, *rare = asked[6:22]
    words, leash = [os.fsdecode(word) for word in given], 0
    if words[1:4] == ["-I", "-S", LEASH]:
        leash, words = int(words[4]), words[5:]
    cwd = os.fsdecode(Path.cwd() if cwd is None else cwd)
    environment = dict(os.environ) if env is None else dict(os.fsdecode(pair).split("=", 1) for pair in env)
    wanted = {
        "words": words, "leash": leash, "cwd": cwd, "environment": environment, "session": session, "group": group,
    }  # fmt: skip
    ordinary = (
        not os.environ.get(COLD)
        and close_fds
        and set(kept) == {notes}
        and rare == [None, None, None, -1, None]  # users, groups, umask, a function to be called
        and Path(cwd).is_dir()
        and _program(words)
        and _interpreter(environment) == _interpreter(os.environ)
        and _imports(environment)[:1] in ([], [SRC])
        and len(str(wanted)) < _LONGEST // 2
    )
    files = [number if fd == -1 else fd for number, fd in enumerate((stdin, stdout, stderr))]
    return (wanted, files) if ordinary else (None, [])


def _interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment an interpreter reads once."""
    return {name: environment[name] for name in environment if name.startswith(_AT_START) and name not in _LATER}


def _imports(environment: Mapping[str, str]) -> list[str]:
    return list(filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))


def _program(words: Sequence[str]) -> tuple[str, list[str], bool] | None:
    """A module or a file, its arguments, and whether `-P` stands before; None: not for a mother."""
    safe = words[1:2] == ["-P"]
    match words[1 + safe :]:
        case ["-m", module, *rest] if module.split(".")[0] in OURS:
            found = module, rest, safe
        case [str(file), *rest] if file.endswith(".py") and Path(file).is_relative_to(ROOT):
            found = file, rest, safe
        case _:
            return None
    return found if words[0] == sys.executable else None


# --- the mother


def main(line: socket.socket) -> None:
    """Import, then bear whatever is asked for."""
    _prctl(SET_NAME, NAME)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = {str(Path(__file__).parent), *_imports(os.environ)}
    path = [entry for entry in sys.path if entry not in own]
    sys.path.insert(0, SRC)
    for name in _warm():
        importlib.import_module(name)
    gc.freeze()
    serve(line, path)


def _warm() -> list[str]:
    """What keeps nothing that has to differ from process to process, and what commands import late."""
    siafu = importlib.import_module("siafu")
    apart = ("siafu.__main__", "siafu.bench", "siafu.service")
    found = [module.name for module in pkgutil.walk_packages(siafu.__path__, "siafu.")]
    late = ["starlette.applications", "uvicorn", "psycopg", "sqlalchemy.dialects.sqlite", "mcp.server.stdio"]
    return [name for name in found if not name.startswith(apart)] + late


def serve(line: socket.socket, path: Sequence[str]) -> None:
    """Returns in those that are born, once they are over. A mother ends when nobody can ask her any more."""
    os.chdir("/")
    while True:
        message, files, _, _ = socket.recv_fds(line, _LONGEST, 3)
        if not message:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if not between:
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == middle:
                time.sleep(0.0005)
            return live(json.loads(message), [*files, tell], path)
        os.close(tell)
        os.waitpid(between, 0)
        line.send(os.read(told, 64))
        for fd in (told, *files):
            os.close(fd)


def live(asked: dict[str, Any], files: Sequence[int], path: Sequence[str]) -> None:
    """Be the process that was asked for. files: 0 to 2, and where to say that it is there."""
    words, found = asked["words"], _program(asked["words"])
    assert found
    name, rest, safe = found
    for target, fd in enumerate(files):
        os.dup2(fd, target)
    os.closerange(TELL + 1, os.sysconf("SC_OPEN_MAX"))
    if asked["session"]:
        os.setsid()
    elif asked["group"] >= 0:
        os.setpgid(0, asked["group"])
    if not (name == "siafu" and rest[:1] and rest[0] in LEAVES):
        _leave_a_mother(path)
    if asked["leash"]:
        _prctl(DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != asked["leash"]:
            os._exit(1)
    _prctl(SET_NAME, Path(sys.executable).name)
    _rename(words)
    os.write(TELL, b"%d" % os.getpid())
    os.close(TELL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    _open_files()
    file = name.endswith(".py")
    first = [] if safe else [str(Path(name).parent if file else Path.cwd())]
    sys.path[:] = [*first, *_imports(os.environ), *path]
    sys.argv[:], sys.orig_argv[:] = [name, *rest], words
    importlib.reload(sys.modules["siafu.store.crash"])  # it reads the environment once
    run = runpy.run_path if file else functools.partial(runpy.run_module, alter_sys=True)
    code: Any = 0
    try:
        run(name, run_name="__main__")
    except SystemExit as ended:
        code = ended.code or 0
    if isinstance(code, int):
        _end(code)
    sys.exit(code)


def _end(code: int) -> NoReturn:
    """As an interpreter ends, except that it does not take everything apart: that costs more than most commands do."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # with an interpreter's own words for it
    os._exit(code & 0xFF)


def _leave_a_mother(path: Sequence[str]) -> None:
    """A copy of this process, as it is now, is to bear what it starts."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        own = Mother(ours)
        install(lambda: own)
        return
    ours.close()
    os.close(TELL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    _rename([NAME])
    serve(theirs, path)
    sys.exit()


def _rename(words: Sequence[str]) -> None:
    """As what others see this process: over the room that the first mother was started with."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    ctypes.memmove(start, b"\0".join(map(os.fsencode, words))[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _open_files() -> None:
    """Python's own, over files 0 to 2 that are others now."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        old, direct = getattr(sys, name), unbuffered and fd > 0
        binary: Any = io.FileIO(fd, "w" if fd else "r", closefd=False)
        if not direct:
            binary = io.BufferedWriter(binary) if fd else io.BufferedReader(binary)
        lines = name == "stderr" or os.isatty(fd)
        new = io.TextIOWrapper(
            binary, old.encoding, old.errors, newline="\n", line_buffering=lines, write_through=direct
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _prctl(what: int, value: int | str) -> None:
    last: Any = ctypes.c_ulong(value) if isinstance(value, int) else value.encode()
    ctypes.CDLL(None).prctl(what, last, 0, 0, 0)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
