"""`import siafu`: quick, complete, explained."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import siafu
from siafu.config.mapping import MapKeywords

HEAVY = {"aiohttp", "asyncio", "genai_prices", "jsonschema", "mcp", "msgspec", "pydantic", "rich", "sqlite3", "typer"}


def imported(code: str) -> set[str]:
    """The modules that a fresh interpreter has after `code`."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_the_package_itself_imports_nothing_heavy() -> None:
    found = imported("import siafu")
    assert not found & HEAVY and {name for name in found if name.startswith("siafu")} == {"siafu"}
    assert imported("import siafu; siafu.map") >= {"aiohttp", "msgspec", "pydantic"}  # the check can fail


def test_a_name_brings_only_what_it_needs() -> None:
    assert not imported("from siafu import SiafuError, ToolFault") & HEAVY
    assert not imported("import siafu; siafu.map; siafu.run_sync") & {"mcp", "typer", "rich", "genai_prices"}


@pytest.mark.parametrize("name", sorted(set(siafu.__all__) - {"__version__"}))
def test_every_public_name_is_there_and_explained(name: str) -> None:
    value: Any = getattr(siafu, name)
    assert name in dir(siafu) and value.__module__.startswith("siafu.")
    documented = inspect.getdoc(value) or ""
    assert len(documented) > 10 or issubclass(value, siafu.SiafuError)  # errors are explained as one tree


def test_names_are_sorted_and_those_that_are_loaded() -> None:
    assert sorted(set(siafu.__all__)) == sorted(siafu.__all__)
    assert set(siafu._HOMES) | {"__version__"} == set(siafu.__all__)
    scope: dict[str, Any] = {}
    exec("from siafu import *", scope)
    assert set(siafu.__all__) <= set(scope)


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="module 'siafu' has no attribute 'mapp'"):
        siafu.mapp  # noqa: B018
    with pytest.raises(ImportError):
        exec("from siafu import mapp")


def test_the_version_is_that_of_the_package() -> None:
    assert siafu.__version__.count(".") == 2


def test_map_tells_its_options() -> None:
    told = inspect.getdoc(MapKeywords) or ""
    assert all(option in told for option in MapKeywords.__annotations__)
    assert "journal" in (inspect.getdoc(siafu.map) or "")
