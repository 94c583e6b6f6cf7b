"""Runs `siafu` in an environment without settings of the machine: in this process, or as one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from here import command

PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("SIAFU_", "OPENAI_", "_SIAFU"))}
PLAIN |= {"COLUMNS": "80", "TERM": "xterm-256color"}
PLAIN.pop("NO_COLOR", None)
HEAVY = ("aiohttp", "genai_prices", "httpx2", "jsonschema", "mcp", "pydantic", "rich", "sqlite3", "uvicorn")
# Says at its end, as the last line on stderr, which heavy modules were imported.
WATCHED = f"""
import atexit, sys
atexit.register(lambda: print("heavy:", *sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr))
"""


def siafu(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`siafu WORDS` in `folder`, in this process."""
    return command(folder, *words, environment={**PLAIN, **env})


def python(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**PLAIN, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def watched(folder: Path, *words: str, **env: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """The ended process of `siafu WORDS`, and the heavy modules that it imported."""
    script = f"{WATCHED}\nfrom siafu.cli.main import main\nmain({list(words)!r})"
    done = python(folder, "-c", script, **env)
    return done, set(done.stderr.splitlines()[-1].removeprefix("heavy:").split())
