"""`siafu bench` as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def bench(name: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "siafu", "bench", name, "--home", str(home), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
