"""Says on stdout what it is, as one JSON line. With an argument it waits instead; with `nest` it starts another one
that waits, and says its process id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

if sys.argv[1:] == ["nest"]:
    inner = subprocess.Popen([sys.executable, __file__, "wait"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    print(inner.pid, flush=True)
if sys.argv[1:]:
    threading.Event().wait(60)

files: tuple[Any, ...] = (sys.stdin, sys.stdout, sys.stderr)
found = {
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "command": Path("/proc/self/cmdline").read_text().rstrip("\0"),
    "comm": Path("/proc/self/comm").read_text(),
    "folder": str(Path.cwd()),
    "environment": dict(os.environ),
    "path": sys.path,
    "name": __name__,
    "file": __file__,
    "bytecode": sys.dont_write_bytecode,
    "files": [(file.encoding, file.errors, file.isatty()) for file in files],
    "buffered": [(file.line_buffering, file.write_through) for file in files],
    "open": sorted(path.name for path in Path("/proc/self/fd").iterdir()),
    "signals": {n: str(signal.getsignal(n)).split(" at ")[0] for n in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "threads": threading.active_count(),
    "child": os.getppid(),
    "leads": os.getsid(0) == os.getpid(),
    "group": os.getpgid(0) == os.getpid(),
    "read": sys.stdin.read(),
}
print(json.dumps(found))
