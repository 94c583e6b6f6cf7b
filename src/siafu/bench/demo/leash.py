"""Becomes the command it is given, after asking the kernel to end it with its parent, however that ends.

    python leash.py PARENT_PID COMMAND [ARGUMENT ...]

Only Linux can do that; elsewhere the command runs without.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be asked for
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - that is its purpose


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
