from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without settings, in an environment without any."""
    for name in list(os.environ):
        if name.startswith(("SIAFU_", "OPENAI_")) and name != "SIAFU_CI":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
