from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .raw import Make, Raw


@pytest.fixture
async def raw(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes `raw_stdio.py` servers with the wishes and options given, and closes them."""
    made: list[Raw] = []

    def make(*wishes: str, **options: Any) -> Raw:
        made.append(Raw(tmp_path / f"log{len(made)}", *wishes, **options))
        return made[-1]

    yield make
    for each in made:
        await each.tools.aclose()
