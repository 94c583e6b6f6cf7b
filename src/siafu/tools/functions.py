"""Python functions as tools: the schema comes from the type hints, the description from the docstring."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints, overload

import msgspec

from siafu.border.canonical import dumps
from siafu.border.secrets import redact
from siafu.border.text import clean, preview
from siafu.errors import ConfigError, SiafuError, ToolArgumentsInvalid, ToolDenied, ToolTimeout
from siafu.observe.calls import CallContext
from siafu.pace.clock import Clock, SystemClock
from siafu.tools.bounds import MAX_RESULT_BYTES, fitted, seconds_left
from siafu.tools.naming import MAX_NAME, distinct_names
from siafu.tools.schema import check_schema, require
from siafu.tools.toolset import Tool, ToolResult

MAX_THREADS = 32
MAX_DESCRIPTION = 4000
_UNCHANGING = (type(None), bool, int, float, str, bytes, tuple, frozenset)


class FunctionTool:
    """A function with what a model needs to know of it. Calling it calls the function.

    `timeout`: seconds for one call. `read_only`: it changes nothing. `idempotent`: calling it again with the same
    arguments changes nothing more.

    Raises: ConfigError when it is no function, or a parameter has no type hint, or one that JSON cannot express.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        idempotent: bool = False,
        timeout: float = 30.0,
    ) -> None:
        if not callable(function):
            raise ConfigError(f"a tool is a function, not {type(function).__name__}")
        self.function = function
        self.timeout = timeout
        called = name or str(getattr(function, "__name__", ""))
        if distinct_names([("", called)]) != [called]:
            raise ConfigError(f"{called!r} is no tool name: at most {MAX_NAME} of [A-Za-z0-9_-]; give name=")
        self._parameters, self._context_name = _parameters(function, called)
        self.tool = Tool(
            name=called,
            description=(description or inspect.getdoc(function) or "")[:MAX_DESCRIPTION],
            input_schema=_schema(self._parameters, called),
            read_only=read_only,
            idempotent=idempotent,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def bind(self, arguments: Mapping[str, Any], context: CallContext) -> Callable[[], Any]:
        """The call, ready to run, with `arguments` as the types the function asks for.

        Raises: ToolArgumentsInvalid.
        """
        require(self.tool.input_schema, arguments, self.tool.name)
        try:
            values = msgspec.convert(arguments, self._parameters, strict=True)
        except msgspec.ValidationError as error:
            message = f"the arguments do not fit {self.tool.name}: {preview(str(error))}"
            raise ToolArgumentsInvalid(message, tool=self.tool.name) from None
        given = {name: getattr(values, name) for name in self._parameters.__struct_fields__}
        if self._context_name:
            given[self._context_name] = context
        return lambda: self.function(**given)


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    timeout: float = 30.0,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorator, plain or with the options of `FunctionTool`. Functions without it work in `Functions` too."""
    if function is not None:
        return FunctionTool(function)
    return lambda given: FunctionTool(given, **options)


class Functions:
    """Python functions as a ToolSet.

    Coroutine functions run on the event loop, plain functions each in a daemon thread (at most 32 at a time), so that
    one that blocks stops nobody. A parameter annotated `CallContext` is filled in and hidden from the schema. What a
    function returns becomes the result: text as it is, a ToolResult as it is, anything else as JSON. An exception
    becomes a result with `is_error`, its code is the name of the exception; a SiafuError goes on to the caller.

    A plain function whose time is over goes on in its thread, unheard, and keeps its place among the 32.

    Raises: ConfigError when two functions have one name.
    """

    def __init__(self, *functions: Callable[..., Any], clock: Clock | None = None) -> None:
        made = [each if isinstance(each, FunctionTool) else FunctionTool(each) for each in functions]
        self._functions = {each.tool.name: each for each in made}
        if len(self._functions) != len(made):
            names = [each.tool.name for each in made]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"two functions are called {twice!r}; give one of them a name=")
        self._tools = tuple(each.tool for each in made)
        self._clock = clock or SystemClock()
        self._threads = _Threads()

    async def list(self) -> Sequence[Tool]:
        """The tools, in the order given."""
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """Run one function.

        Raises: ToolDenied (no such function), ToolArgumentsInvalid, ToolTimeout, and a SiafuError of the function.
        Cancelling cancels a coroutine function; a plain function goes on in its thread.
        """
        function = self._functions.get(name)
        if function is None:
            raise ToolDenied(f"there is no tool {preview(name, 64)!r}", tool=preview(name, 64))
        left = seconds_left(name, context, self._clock)
        limit = function.timeout if left is None else min(function.timeout, left)
        run = function.bind(arguments, context)
        try:
            async with asyncio.timeout(limit) as timer:
                if inspect.iscoroutinefunction(function.function):
                    value = await run()
                else:
                    value = await self._threads.run(run)
            return _result(value)
        except SiafuError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is its answer
            if timer.expired():
                raise ToolTimeout(f"{name} did not answer within {limit:g} s", tool=name) from None
            return _failure(error)


class _Threads:
    """Daemon threads, one a call. Unlike a pool's they never hold up the end of the process."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places = asyncio.Semaphore(MAX_THREADS)

    async def run(self, call: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a semaphore belongs to one event loop
            self._loop, self._places = loop, asyncio.Semaphore(MAX_THREADS)
        places = self._places
        await places.acquire()
        outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            places.release()
            if not outcome.done():
                outcome.set_result((value, error))

        def work() -> None:
            value, error = None, None
            try:
                value = call()
            except BaseException as raised:  # noqa: BLE001 - also sys.exit() of a tool ends here
                error = raised
            try:
                loop.call_soon_threadsafe(settle, value, error)
            except RuntimeError:  # the loop has ended, so nobody waits
                return

        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True, name="siafu-tool")
        try:
            thread.start()
        except RuntimeError:  # the machine has no more threads
            places.release()
            raise
        value, error = await outcome
        if error is not None:
            raise error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        return value


def _parameters(function: Callable[..., Any], name: str) -> tuple[type[msgspec.Struct], str]:
    """The parameters as a Struct, and the name of the one that takes the CallContext ("" when none does)."""
    try:
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"the type hints of {name} cannot be read: {error}") from None
    fields: list[Any] = []
    context_name = ""
    for parameter in signature.parameters.values():
        hint = hints.get(parameter.name)
        if hint is CallContext:
            context_name = parameter.name
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{name} cannot be a tool: {parameter} is not a parameter with one name")
        if hint is None:
            raise ConfigError(f"{name} cannot be a tool: its parameter {parameter.name} needs a type hint")
        fields.append((parameter.name, hint, *_default(parameter)))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True), context_name


def _default(parameter: inspect.Parameter) -> tuple[Any, ...]:
    value = parameter.default
    if value is parameter.empty:
        return ()
    if isinstance(value, _UNCHANGING):
        return (value,)
    return (msgspec.field(default_factory=lambda: copy.deepcopy(value)),)


def _schema(parameters: type[msgspec.Struct], name: str) -> dict[str, Any]:
    """The JSON Schema of the parameters: one object at the root, unknown keys refused at every level."""
    try:
        (top,), parts = msgspec.json.schema_components([parameters], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise ConfigError(f"{name} cannot be a tool: {preview(str(error))}") from None
    schema = parts.pop(top["$ref"].removeprefix("#/$defs/"))
    del schema["title"]
    for part in parts.values():
        if "properties" in part:
            part.setdefault("additionalProperties", False)
    if parts:
        schema["$defs"] = parts
    check_schema(schema)
    return dict(schema)


def _result(value: Any) -> ToolResult:
    if isinstance(value, ToolResult):
        return msgspec.structs.replace(value, text=fitted(value.text))
    if isinstance(value, str):
        return ToolResult(text=fitted(value))
    try:
        data = dumps(_cleaned(msgspec.to_builtins(value, str_keys=True)))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"the function returned a value that JSON cannot hold: {error}") from None
    structured = msgspec.json.decode(data) if len(data) <= MAX_RESULT_BYTES else None
    return ToolResult(text=fitted(data.decode()), structured=structured)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(key) if isinstance(key, str) else key: _cleaned(item) for key, item in value.items()}
    return value


def _failure(error: Exception) -> ToolResult:
    kind = type(error).__name__
    detail = preview(redact(str(error)), 500)
    return ToolResult(text=f"{kind}: {detail}" if detail else kind, is_error=True, code=kind)
