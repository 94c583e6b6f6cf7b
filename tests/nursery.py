"""Processes that are born quickly: one that has everything imported forks them. Each is a process of its own, with its
own connections, and dies alone.

python -m nursery FOLDER PROGRAM    reads what to bear, one JSON line each; writes into FOLDER how each ended
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import mutants
from processes import wait_until
from siafu.store import crash
from sim import SRC

TESTS = Path(__file__).parent


class Child:
    """A process of the nursery. Signals go to exactly this one, also when its number was given away again."""

    def __init__(self, pid: int, file: Path) -> None:
        self.pid = pid
        self._file, self._handle = file, os.pidfd_open(pid)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def wait_stopped(self, seconds: float) -> None:
        """Until a SIGSTOP has reached it, or it is over."""
        stat = Path(f"/proc/{self.pid}/stat")

        def still() -> bool:
            try:
                return stat.read_text().rpartition(")")[2].split()[0] in "TZ"
            except (FileNotFoundError, ProcessLookupError):  # between two looks, too
                return True

        assert wait_until(still, seconds)

    def status(self) -> int | None:
        """None while it lives; then the exit code, or the signal that ended it as a negative number."""
        return int(self._file.read_text()) if self._file.exists() else None

    def wait(self, seconds: float) -> int:
        assert select.select([self._handle], [], [], seconds)[0], f"process {self.pid} still runs after {seconds} s"
        while (status := self.status()) is None:  # it is over, and about to be written down
            select.select([], [], [], 0.001)
        os.close(self._handle)
        return status

    def end(self) -> int:
        self.send(signal.SIGKILL)
        return self.wait(20)


class Nursery:
    """`with Nursery(empty_folder, program) as nursery:`; everything that was born ends with the block, or with this
    process. program: the module whose `run(*words)` is what a process does.
    """

    def __init__(self, folder: Path, program: str) -> None:
        self._folder, self._program, self._born = folder, program, 0

    def __enter__(self) -> Nursery:
        paths = os.pathsep.join(map(str, (SRC, TESTS)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nursery", str(self._folder), self._program],
            env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def bear(self, *words: str, crash_at: str = "", mutant: str = "") -> Child:
        """A process that runs the program; mutant: the one of `mutants` that it lives with."""
        assert self._process.stdin and self._process.stdout
        self._born += 1
        wanted = {"n": self._born, "words": words, "crash_at": crash_at, "mutant": mutant}
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return Child(int(self._process.stdout.readline()), self._folder / str(self._born))


def live(program: ModuleType, wanted: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ["SIAFU_CRASH_AT"] = wanted["crash_at"]
        importlib.reload(crash)  # it reads that once
        if wanted["mutant"]:
            mutants.apply(wanted["mutant"])
        program.run(*wanted["words"])
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def main(folder: Path, program: ModuleType) -> None:
    alive: dict[int, int] = {}
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            note_the_ended(alive, folder)
        if 0 in ready:
            line = os.read(0, 65536)  # one at a time: each is answered before the next one comes
            if not line:
                break
            wanted = json.loads(line)
            pid = os.fork()
            if not pid:
                live(program, wanted)
            alive[pid] = wanted["n"]
            os.write(1, b"%d\n" % pid)
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def note_the_ended(alive: dict[int, int], folder: Path) -> None:
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        draft = folder / "draft"
        draft.write_text(str(os.waitstatus_to_exitcode(status)))
        draft.rename(folder / str(alive.pop(pid)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), importlib.import_module(sys.argv[2]))
