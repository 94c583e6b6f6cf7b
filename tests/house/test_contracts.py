"""The import contracts in pyproject.toml hold, and each of them can fail."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import api
from importlinter.contracts.forbidden import ForbiddenContract

CONFIGURATION = api.read_configuration(str(Path(__file__).parents[2] / "pyproject.toml"))
FORBIDDEN = [options for options in CONFIGURATION["contracts_options"] if options["type"] == "forbidden"]
PAIRS = [(source, options) for options in FORBIDDEN for source in options["source_modules"]]


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph(
        "siafu", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )


def kept(options: dict[str, Any], imports: grimp.ImportGraph) -> bool:
    fields = {name: value for name, value in options.items() if name not in ("name", "type")}
    contract = ForbiddenContract(options["name"], CONFIGURATION["session_options"], fields)
    return contract.check(copy.deepcopy(imports), verbose=False).kept


@pytest.mark.parametrize("options", FORBIDDEN, ids=lambda options: options["name"])
def test_a_contract_holds(options: dict[str, Any], imports: grimp.ImportGraph) -> None:
    assert kept(options, imports)


@pytest.mark.parametrize(("source", "options"), PAIRS, ids=[source for source, _ in PAIRS])
def test_it_would_break_with_one_import_more(source: str, options: dict[str, Any], imports: grimp.ImportGraph) -> None:
    inside = min(imports.find_children(source))
    for target in options["forbidden_modules"]:
        for through in (target, "siafu.errors"):  # directly, or by way of a module that may be imported
            changed = copy.deepcopy(imports)
            changed.add_import(importer=inside, imported=through)
            if through != target:
                changed.add_import(importer=through, imported=min(imports.find_children(target)))
            assert not kept(options, changed), (inside, through, target)
