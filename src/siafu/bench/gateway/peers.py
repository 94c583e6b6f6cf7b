"""Throw-away environments for clients that siafu does not depend on, made by pip when they are first needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from siafu.border.text import preview

OPENAI = "openai==3.57.0"
UVLOOP = "uvloop>=0.23,<1"
SECONDS = 600.0


class Peer(msgspec.Struct, frozen=True):
    """A client of others. file: in `clients`. package: with its version, as pip takes it."""

    name: str
    file: str
    package: str


PEERS = {
    "openai": Peer("OpenAI SDK", "openai_sdk.py", OPENAI),
    "litellm": Peer("LiteLLM Router", "litellm_router.py", "litellm==1.110.2"),
    "langchain": Peer("LangChain", "langchain_chat.py", "langchain-openai==1.7.4"),
    "pydantic-ai": Peer("Pydantic AI", "pydantic_ai_agent.py", "pydantic-ai-slim[openai]==2.68.0"),
    "openai-agents": Peer("OpenAI Agents SDK", "openai_agents_sdk.py", "openai-agents==0.24.0"),
}


def environment(folder: Path, packages: list[str]) -> Path | str:
    """The Python of an environment with `packages` in `folder`, or why there is none. Blocks while pip works."""
    python = folder / "bin" / "python"
    done = folder / "installed.txt"
    wanted = "\n".join(packages)
    if done.exists() and done.read_text() == wanted and python.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages]
    for command in ([sys.executable, "-m", "venv", str(folder)], pip):
        if wrong := _fails(command):
            return f"{' and '.join(packages)} cannot be installed: {wrong}"
    done.write_text(wanted)
    return python


def _fails(command: list[str]) -> str:
    """Run `command`; returns what went wrong, empty when nothing did."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return preview(str(error))
    said = ended.stderr.strip().splitlines() or ended.stdout.strip().splitlines() or ["no reason given"]
    return preview(said[-1]) if ended.returncode else ""
