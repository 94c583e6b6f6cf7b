"""What the pages and the help name is there: files and headings behind links, commands, options, and settings."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from siafu.cli.main import COMMANDS
from siafu.config.settings import Given, Settings, leaves, sifted

HERE = Path(__file__).parents[2]
PAGES = sorted([*HERE.glob("*.md"), *HERE.glob("docs/*.md")])
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
CALL = re.compile(r"(?<![\w/.-])siafu ([a-z][^\n`|;&)\"']*)")
PROSE = {"upstream-keys names"}  # what begins as a command does, and is none


def headings(page: Path) -> set[str]:
    """The names under which the headings of a page are linked to."""
    found: list[str] = []
    for line in re.findall(r"^#+ +(.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.M):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)]\([^)]*\)", r"\1", line).lower()).strip().replace(" ", "-")
        found.append(name if (n := sum(name == each.rsplit("~")[0] for each in found)) == 0 else f"{name}~{n}")
    return {each.replace("~", "-") for each in found}


def dead_links(page: Path, text: str) -> list[str]:
    dead = []
    for link in re.findall(r"]\(([^)\s]+)\)", FENCED.sub("", text)):
        path, _, heading = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not re.match(r"[a-z]+:", link) and (
            not there.exists() or (heading and there.suffix == ".md" and heading not in headings(there))
        ):
            dead.append(link)
    return dead


def unknown_words(text: str, options: dict[str, set[str]]) -> list[str]:
    """Commands and options that there are not. options: by command, such as "batch run"; a group has none."""
    unknown = []
    for call in CALL.findall(text.replace("\\\n", " ")):
        words = call.split()
        if words[0] not in COMMANDS or " ".join(words[:2]) in PROSE:
            continue
        depth = 1 if words[0] in options else 2
        name = " ".join(words[:depth])
        if len(words) < depth or not re.fullmatch("[a-z][a-z-]*", words[depth - 1]):
            continue  # the group is named, and no command of it
        given = {word.partition("=")[0].rstrip(".,:") for word in call.partition(" #")[0].split()}
        known = options.get(name)
        if known is None:
            unknown.append(name)
        else:
            unknown += [
                f"{name} {word}" for word in given if re.fullmatch("--[a-z][a-z-]*", word) and word not in known
            ]
    return unknown


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    found = {}
    for name, (module, _) in COMMANDS.items():
        made: Any = typer.main.get_command(importlib.import_module(module).app)
        inner = getattr(made, "commands", None)
        for words, each in (
            {name: made}.items() if inner is None else {f"{name} {k}": v for k, v in inner.items()}.items()
        ):
            found[words] = {"--help", *(word for param in each.params for word in (*param.opts, *param.secondary_opts))}
    return found


def test_links_lead_somewhere() -> None:
    assert {page.name: dead for page in PAGES if (dead := dead_links(page, page.read_text(encoding="utf-8")))} == {}
    shown = "[a](docs/costs.md) [b](docs/none.md) [c](#nowhere) [d](docs/queue.md#nowhere) [e](https://x.example)"
    assert dead_links(HERE / "README.md", shown) == ["docs/none.md", "#nowhere", "docs/queue.md#nowhere"]


def test_commands_and_options_that_are_named_are_there(options: dict[str, set[str]]) -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in [*PAGES, *HERE.glob("src/siafu/cli/*.py")]}
    assert {name: wrong for name, text in texts.items() if (wrong := unknown_words(text, options))} == {}
    shown = "`siafu batch run x --out y --ouch`\nsiafu batch walk\nsiafu tasks\nsiafu worker --until-full."
    assert unknown_words(shown, options) == ["batch run --ouch", "batch walk", "worker --until-full"]


def wrong_settings(text: str) -> list[str]:
    found = sifted(Given(place, value, "the page", in_file=True) for place, value in leaves(tomllib.loads(text)))
    return [] if isinstance(found, Settings) else [each.text for each in found]


def test_settings_that_are_shown_are_taken() -> None:
    shown = [
        (page.name, text) for page in PAGES for kind, text in FENCED.findall(page.read_text("utf-8")) if kind == "toml"
    ]
    assert len(shown) > 5 and [(name, wrong) for name, text in shown if (wrong := wrong_settings(text))] == []
    assert wrong_settings("[limits]\nrmp = 60")
