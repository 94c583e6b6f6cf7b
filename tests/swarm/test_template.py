"""Prompt templates and the other kinds of work."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.agents.task import TaskContext
from siafu.errors import ConfigError, InputError
from siafu.swarm.template import Template
from siafu.swarm.work import as_job


@dataclasses.dataclass
class Order:
    id: int
    name: str


class Note(msgspec.Struct):
    text: str


@pytest.mark.parametrize(
    ("text", "item", "filled"),
    [
        ("번역: {item}", "안녕", "번역: 안녕"),
        ("{이름}님, {n}개", {"이름": "김철수", "n": 3}, "김철수님, 3개"),
        ("{{{item}}} {{}}", "x", "{x} {}"),
        ("{item}", {"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'),
        ("{item}", {"item": "mine", "b": 1}, "mine"),
        ("{id} {name}", Order(7, "Kim"), "7 Kim"),
        ("{text}", Note("hi"), "hi"),
        ("{item}", 12, "12"),
        ("{a-b}", {"a-b": True}, "true"),
        ("{a}", {"a": "{b} {{ %s"}, "{b} {{ %s"),
    ],
)
def test_what_is_filled_in(text: str, item: Any, filled: str) -> None:
    assert Template(text).fill(item) == filled


@pytest.mark.parametrize(
    "text", ["{a.__class__}", "{a[0]}", "{a!r}", "{a:>9}", "{}", "{ a}", '{"a": {item}}', "{item", "a}"]
)
def test_only_plain_names_are_places(text: str) -> None:
    with pytest.raises(ConfigError, match="written twice"):
        Template(text)


def test_a_prompt_without_a_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="same for every item"):
        Template("{{hello}}")


@pytest.mark.parametrize("item", [{"b": 1}, "text", 3])
def test_a_missing_field_is_named(item: Any) -> None:
    with pytest.raises(InputError, match="no field 'a'"):
        Template("{a}").fill(item)


def test_an_item_that_is_no_data_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Template("{item}").fill(object())


@given(st.text())
def test_what_is_filled_in_is_never_looked_at_again(text: str) -> None:
    assert Template("<{item}>").fill(text) == f"<{text}>"


class Ant:
    def __init__(self, role: str) -> None:
        self.role = role

    async def work(self, item: Any, ctx: TaskContext) -> str:
        return self.role

    def fingerprint(self) -> str:
        return self.role


async def function(item: Any, ctx: TaskContext) -> None: ...


class Callable:
    async def __call__(self, item: Any, ctx: TaskContext) -> None: ...


def test_what_a_work_is_known_by() -> None:
    def print_of(work: Any, model: str = "m", version: str = "") -> str:
        return as_job(work, defaults={"model": model}, version=version).work_print

    assert print_of("{item}") == print_of("{item}") != print_of("{item}!")
    assert print_of("{item}") != print_of("{item}", model="n")
    assert print_of(Ant("a")) == print_of(Ant("a"), model="n") != print_of(Ant("b"))
    assert print_of(function) == print_of(functools.partial(function)) != print_of(Callable()) == print_of(Callable())
    assert len({print_of(function), print_of(function, version="1"), print_of(function, version="2")}) == 3


def sync(item: Any, ctx: TaskContext) -> None: ...


@pytest.mark.parametrize(
    ("work", "says"), [(sync, "async def sync"), (print, "async def print"), (Ant, "must be async"), (7, "not int")]
)
def test_work_that_cannot_be_mapped_is_refused(work: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        as_job(work, defaults={}, version="")
