"""The schema for editors and the reader of the file agree, and both say what is documented."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given as generated
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from siafu.cli import starter
from siafu.config.checking import problems
from siafu.config.described import DESCRIBED, described
from siafu.config.schema import json_schema, schema_text
from siafu.config.settings import ENVIRONMENT, Given, leaves, settled
from siafu.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = json_schema()
CHECK = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
SAMPLES: dict[str, list[Any]] = {
    "url": ["https://a.example/v1", "http://127.0.0.1:8000/v1"],
    "base_url": ["https://a.example/v1", "http://localhost:11434/v1"],
    "api_key": ["env:KEY", "file:/run/secrets/key"],
    "api_keys[]": ["env:A", "file:/b"],
    "secret": ["env:SECRET", "file:/run/secrets/webhook"],
    "day": ["20 USD", "$0.50", "1,000 usd", "3", 5],
    "per_item": ["0.05 USD", 1],
    "per_agent": ["US$ .5"],
    "date": [date(2026, 1, 31)],
    "soft": [0.5, 1, "0.8"],
    "share": [0.1, "0.05"],
}
WORDS = st.text("ab가나 -.", min_size=1, max_size=5)


def accepted(tree: dict[str, Any]) -> bool:
    """Whether the reader takes a file that holds this."""
    try:
        settled([Given(place, value, "x", in_file=True) for place, value in leaves(tree)])
    except ConfigError:
        return False
    return True


def fits(tree: Any) -> bool:
    """Whether the schema does; editors see dates as texts."""
    return bool(CHECK.is_valid(json.loads(json.dumps(tree, default=str))))


def values(node: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """What fits a part of the schema."""
    if name in SAMPLES:
        return st.sampled_from(SAMPLES[name])
    if "const" in node or "enum" in node:
        return st.sampled_from(node.get("enum") or [node["const"]])
    if "anyOf" in node:
        return st.one_of([values(each, name) for each in node["anyOf"]])
    kind = node["type"]
    if kind == "boolean":
        return st.booleans()
    if kind == "object":
        return tables(node)
    if kind == "array":
        return st.lists(values(node["items"], f"{name}[]"), min_size=node.get("minItems", 0), max_size=3)
    if kind == "string":
        return st.sampled_from(["0.4", "12"]) if "pattern" in node else WORDS
    least, most = node.get("minimum", node.get("exclusiveMinimum", 0)), node.get("maximum", 1000)
    most = min(most, node.get("exclusiveMaximum", most))
    if kind == "integer":
        return st.integers(least, most)
    open_ends = "exclusiveMinimum" in node, "exclusiveMaximum" in node
    return st.floats(least, most, exclude_min=open_ends[0], exclude_max=open_ends[1])


def tables(node: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "properties" not in node:
        return st.dictionaries(WORDS, values(node["additionalProperties"]), max_size=2)
    inner = {name: values(each, name) for name, each in node["properties"].items() if name != "effects"}
    needed = {name: inner.pop(name) for name in node.get("required", ())}
    for name in ("api_keys", "command"):  # beside another one that excludes them
        inner.pop(name, None)
    if "oneOf" in node:
        needed["url"] = inner.pop("url")
    return st.fixed_dictionaries(needed, optional=inner)


@hypothesis_settings(max_examples=60, deadline=None)
@generated(values(SCHEMA))
def test_what_the_schema_takes_the_reader_takes(tree: dict[str, Any]) -> None:
    assert fits(tree), next(CHECK.iter_errors(json.loads(json.dumps(tree, default=str))))
    assert accepted(tree)


def put(table: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**table, name: value}


def without(gone: str, table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != gone}


def broken(node: dict[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """What does not fit, somewhere within."""
    wrong: list[st.SearchStrategy[Any]] = [st.sampled_from([True, [[]], {"x": {"y": {"z": 1}}}])]
    if node.get("type") == "boolean":
        return st.sampled_from([0, "true"])
    if node.get("type") == "object" and "properties" in node:
        whole = tables(node)
        wrong.append(whole.map(lambda table: {**table, "no-such-setting": 1}))
        for inner, each in node["properties"].items():
            if inner not in ("effects", "headers", "env", "query", "cheaper"):
                wrong.append(st.builds(put, whole, st.just(inner), broken(each, inner)))
        wrong += [whole.map(partial(without, gone)) for gone in node.get("required", ())]
    elif node.get("type") == "object":
        wrong.append(broken(node["additionalProperties"]).map(lambda value: {"a": value}))
    elif node.get("type") == "array":
        wrong.append(broken(node["items"]).map(lambda value: [value]))
    elif node.get("type") in ("integer", "number"):
        beyond = [node.get("minimum", node.get("exclusiveMinimum", 0)) - 1, "5"]
        beyond += [node["maximum"] + 1] if "maximum" in node else []
        wrong.append(st.sampled_from(beyond))
    elif "enum" in node or "pattern" in node:
        wrong.append(st.just("no such value"))
    return st.one_of(wrong)


@hypothesis_settings(max_examples=150, deadline=None)
@generated(broken(SCHEMA).filter(lambda tree: isinstance(tree, dict)))
def test_what_the_schema_refuses_the_reader_refuses(tree: dict[str, Any]) -> None:
    assert not fits(tree)
    assert not accepted(tree) or "no such value" in str(tree)  # an address is looked at when it is used


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("limits.concurrency = 5", True),
        ('limits.concurrency = "5"', False),
        ("limits.concurrency = true", False),
        ("limits.rpm = 60", True),
        ('limits.rpm = "60"', False),
        ('budgets.day = "20 dollars"', False),
        ("budgets.day = -1", False),
        ("budgets.day = 1.5", False),
        ("budgets.soft = 2", False),
        ('budgets.soft = "a lot"', False),
        ("prices.m = { input = 1, output = 2, date = 2026-01-01 }", True),
        ('prices.m = { input = 1, output = 2, date = "2026-01-01" }', True),
        ("prices.m = { input = 1, output = 2, date = 20260101 }", False),
        ("prices.m = { input = -1, output = 2, date = 2026-01-01 }", False),
        ('upstreams.a = { base_url = "https://a.example", api_key = "env:A", api_keys = ["env:B"] }', False),
        ('endpoint.api_key = "sk-0123456789abcdefghij"', False),
        ('mcp_servers.a = { command = "a", url = "https://a.example" }', False),
        ("mcp_servers.a = { args = [] }", False),
        ('upstreams."a#1" = { base_url = "https://a.example/v1" }', False),
        ('tools.effects."a.b" = { key = ["request", "id"], approval = { argument = "n", above = 5 } }', True),
        ('tools.effects."a.b" = { kye = "step" }', False),
        ('tools.effects."a.b" = { pending = "later" }', False),
        ("routes = [{ use = [] }]", False),
        ("routes = [{ use = ['m'], priority = [4] }]", False),
    ],
)
def test_both_agree_on(tmp_path: Path, text: str, good: bool) -> None:
    file = tmp_path / "siafu.toml"
    file.write_text(text, encoding="utf-8")
    assert (problems(file) == []) is good
    assert fits(tomllib.loads(text)) is good


def test_the_file_that_init_writes_fits() -> None:
    text = "\n".join(re.sub(r"^# (?=\[|[\w.]+ = )", "", line) for line in starter.SETTINGS.splitlines())
    tree = tomllib.loads(text)
    assert tree["limits"] and tree["tools"]["effects"] and fits(tree)
    assert starter.SETTINGS.startswith("#:schema ./siafu.schema.json\n")


def test_the_schema_in_docs_is_this_one() -> None:
    assert (DOCS / "siafu.schema.json").read_text(encoding="utf-8") == schema_text(), (
        "siafu config schema > docs/siafu.schema.json"
    )


def settings_of(node: dict[str, Any], place: str = "") -> dict[str, Any]:
    """Every setting of the schema, by its place."""
    found = {place: node} if place else {}
    for name, each in node.get("properties", {}).items():
        found |= settings_of(each, f"{place}.{name}".lstrip("."))
    for mark, name in (("additionalProperties", ".*"), ("items", "[]")):
        if isinstance(each := node.get(mark), dict) and "properties" in each:
            found |= settings_of(each, place + name)
    for each in node.get("anyOf", ()):
        found |= {inner: value for inner, value in settings_of(each, place).items() if inner != place}
    return found


def test_every_setting_is_described_and_nothing_else_is() -> None:
    there = settings_of(SCHEMA)
    assert all(described(place) for place in there)
    assert set(DESCRIBED) <= {"", *there}
    for name, place in ENVIRONMENT:
        assert name in described(place), name


HEAD = "| key | default | what it is |\n|---|---|---|"
NEEDED = {"upstreams.*.base_url", "routes[].use", "reuse[].seconds"} | {
    f"prices.*.{name}" for name in ("input", "output", "date")
}


def tables_of_the_page() -> dict[str, list[str]]:
    """The lines that docs/configuration.md has for settings, by the headings of its tables. The contract of tools
    stands in docs/effects.md.
    """
    found: dict[str, list[str]] = {}
    for place, node in settings_of(SCHEMA).items():
        inner = node.get("additionalProperties")
        if "properties" in node or (isinstance(inner, dict) and "properties" in inner) or place in ("routes", "reuse"):
            continue  # a table of its own
        if not place.startswith(("tools.", "upstreams.*.prompt_cache.")):
            section, _, name = place.replace("[]", "").rpartition(".")
            heading = f"### `[{section.replace('*', 'NAME')}]`" if section else "### At the top"
            default = f"`{json.dumps(node['default'])}`" if "default" in node else "needed" * (place in NEEDED)
            found.setdefault(heading, []).append(f"| `{name}` | {default} | {described(place)} |")
    return found


def test_the_page_has_a_line_for_every_setting() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    tables = ["\n".join((heading, "", HEAD, *rows, "")) for heading, rows in tables_of_the_page().items()]
    missing = [table for table in tables if table not in page]
    assert not missing, "\n".join(missing)
