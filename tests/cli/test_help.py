from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len

import siafu as package
from siafu.cli.main import COMMANDS, GROUPS

from .front import HEAVY, python, siafu, watched


def commands() -> list[tuple[str, ...]]:
    """Every command as the words that call it, groups included."""
    found: list[tuple[str, ...]] = [()]
    for name, (module, _) in COMMANDS.items():
        if importlib.util.find_spec(module):
            made: Any = typer.main.get_command(importlib.import_module(module).app)
            found += [(name,), *((name, inner) for inner in getattr(made, "commands", ()))]
    return found


ALL = commands()
SILENT = {
    ("shop", "serve"),
    ("shop", "token"),
    ("keys", "sign"),
}  # print nothing, or one word that programs take as it is
TYPERS = {"pydantic"}  # what typer itself imports to read the values of options
HELPS = f"""
import contextlib, io, json, sys
from siafu.cli.main import main
shown = {{}}
for words in {ALL!r}:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    shown[" ".join(words)] = out.getvalue()
print(json.dumps([shown, sorted(set(sys.modules) & set({HEAVY!r}))]))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each command shows with --help."""
    folder = tmp_path_factory.mktemp("help")
    texts, heavy = json.loads(python(folder, "-c", HELPS).stdout)
    assert list(folder.iterdir()) == [] and set(heavy) <= TYPERS
    return texts


def test_the_list_is_what_it_should_be() -> None:
    assert {("init",), ("doctor",), ("support", "run"), ("batch", "status"), ("shop", "orders"), ("sim",)} <= set(ALL)


@pytest.mark.parametrize("words", [" ".join(words) for words in ALL])
def test_help_has_examples_and_fits_a_terminal(shown: dict[str, str], words: str) -> None:
    assert f"siafu {words}".strip() in shown[words].partition("Examples:\n")[2]
    assert max(cell_len(line.rstrip()) for line in shown[words].splitlines()) <= 80
    assert "--json" in shown[words] or "Commands:" in shown[words] or tuple(words.split()) in SILENT or not words


def test_every_command_stands_in_one_group_with_its_whole_line(shown: dict[str, str]) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    text = shown[""]
    places = [text.index(f"\n{heading}:\n") for heading in GROUPS]
    assert places == sorted(places) and "More:" not in text
    assert all(f"  {name} " in text and line in text for name, (_, line) in COMMANDS.items())


@pytest.mark.parametrize("words", [" ".join(words) for words in ALL])
def test_lists_of_commands_are_not_cut_off(shown: dict[str, str], words: str) -> None:
    listed = shown[words].partition("Commands:\n")[2].partition("\n\n")[0]
    assert not any(line.endswith("...") for line in listed.splitlines())


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("--version",), ()], ids=" ".join)
def test_the_front_door_imports_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    done, heavy = watched(tmp_path, *words)
    assert done.returncode in (0, 2) and heavy == set()


def test_the_check_of_imports_can_fail(tmp_path: Path) -> None:
    (tmp_path / "siafu.toml").write_text("[mcp_servers.a]\ncommand = 'no-such-command'")
    done, heavy = watched(tmp_path, "doctor")
    assert done.returncode == 1 and heavy >= set(HEAVY) - {"genai_prices", "uvicorn"}, done.stderr


def test_version(tmp_path: Path) -> None:
    for flag in ("--version", "-V"):
        done = siafu(tmp_path, flag)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"siafu {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bacth",), "Did you mean 'batch'"),
        (("support", "rnu"), "Did you mean 'run'"),
        (("batch", "run", "x.jsonl", "--ou", "y"), "--out"),
        (("batch", "run"), "Missing argument"),
        (("sim", "--port", "no"), "--port"),
    ],
)
def test_wrong_words_are_told_with_the_right_ones(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = siafu(tmp_path, *words)
    assert done.returncode == 2 and said in done.stderr and done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("siafu ", {"init", "doctor", "batch"}),
        ("siafu do", {"doctor"}),
        ("siafu batch ", {"run", "check", "status"}),
        ("siafu batch run --con", {"--concurrency", "--config"}),
    ],
)
def test_completion(tmp_path: Path, line: str, expected: set[str]) -> None:
    words = line.split(" ")
    env = {"_SIAFU_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done, heavy = watched(tmp_path, **env)
    found = done.stdout.split()
    assert expected <= set(found) and heavy <= TYPERS
    assert all(word.startswith(words[-1]) for word in found)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_in_other_shells(tmp_path: Path, shell: str) -> None:
    env = {"_TYPER_COMPLETE_ARGS": "siafu batch ", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = siafu(tmp_path, _SIAFU_COMPLETE=f"complete_{shell}", **env)
    assert done.returncode == 0 and "status" in done.stdout


def test_the_script_that_installs_completion(tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        done = siafu(tmp_path, _SIAFU_COMPLETE=f"source_{shell}")
        assert done.returncode == 0 and "_SIAFU_COMPLETE" in done.stdout
