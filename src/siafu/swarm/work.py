"""What can be done with each item: a prompt template, an agent, or a function; all become one kind of callable."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

from siafu.agents.task import ModelOptions, TaskContext
from siafu.border.canonical import fingerprint
from siafu.errors import ConfigError
from siafu.swarm.template import Template


@runtime_checkable
class Work(Protocol):
    """Anything that does an item's work and can say what it is made of, such as an Agent."""

    async def work(self, item: Any, ctx: TaskContext) -> Any: ...

    def fingerprint(self) -> str:
        """Changes when, and only when, the same item could now get another answer by design."""
        ...


WorkFunction = Callable[[Any, TaskContext], Awaitable[Any]]


class Job(msgspec.Struct, frozen=True):
    """`perform` does one item. `work_print`: fingerprint of the work, empty = unknown, never taken as changed."""

    perform: WorkFunction
    work_print: str = ""


def as_job(work: str | Work | WorkFunction, *, defaults: ModelOptions, version: str) -> Job:
    """The Job that `work` stands for.

    A template asks the model once and gives its text; it is fingerprinted with the model options. A function is
    opaque: it is known by its name, and `version` tells one state of it from another.

    Raises: ConfigError when `work` is none of these.
    """
    if isinstance(work, str):
        template = Template(work)

        async def ask(item: Any, ctx: TaskContext) -> str:
            return (await ctx.model(template.fill(item))).text

        return Job(ask, fingerprint(["template", work, defaults, version]))
    if isinstance(work, Work) and not isinstance(work, type):
        return Job(work.work, fingerprint(["agent", work.fingerprint(), version]))
    if inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(getattr(work, "__call__", None)):  # noqa: B004
        return Job(work, fingerprint(["function", _name(work), version]))
    if callable(work):
        name = getattr(work, "__name__", type(work).__name__)
        raise ConfigError(f"{name} must be async to be mapped: async def {name}(item, ctx)")
    raise ConfigError(f"work is a prompt, an Agent or an async function of (item, ctx), not {type(work).__name__}")


def _name(work: WorkFunction) -> str:
    function = getattr(work, "func", work)  # of a functools.partial
    return str(getattr(function, "__qualname__", type(function).__qualname__))
