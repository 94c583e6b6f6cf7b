"""Async work from code that is not async: scripts, threads, notebooks."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar, overload

from siafu.errors import UsageError

T = TypeVar("T")


@overload
def run_sync(work: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]]) -> T: ...
@overload
def run_sync(work: AsyncIterable[T]) -> list[T]: ...
def run_sync(work: Any) -> Any:
    """Run a coroutine, or an async function without arguments, to its end; an async iterable, such as a map, to a list.

    Works anywhere and any number of times, each time in an event loop of its own: in this thread when it has none
    running; else (a notebook) in a fresh thread, for which this one waits. Ctrl-C cancels the work and waits for it.

    Raises: whatever the work raises; UsageError when `work` is none of these.
    """
    coroutine = _coroutine(work)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    return _in_thread(coroutine)


def _coroutine(work: Any) -> Coroutine[Any, Any, Any]:
    if isinstance(work, AsyncIterable):
        return _collect(work)
    made = work() if callable(work) else work
    if not isinstance(made, Coroutine):
        raise UsageError(f"run_sync takes a coroutine, an async function or a map, not {type(work).__name__}")
    return made


async def _collect(results: AsyncIterable[Any]) -> list[Any]:
    async with AsyncExitStack() as stack:
        if hasattr(results, "aclose"):
            stack.push_async_callback(results.aclose)
        return [result async for result in results]


def _in_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    outcome: list[Any] = []
    failed: list[BaseException] = []
    started = threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def supervised() -> Any:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        running.append((task.get_loop(), task))
        started.set()
        return await coroutine

    def body() -> None:
        try:
            outcome.append(asyncio.run(supervised()))
        except BaseException as error:  # noqa: BLE001  raised in the waiting thread
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), name="siafu.run_sync")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        started.wait()
        for loop, task in running:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    if failed:
        raise failed[0]
    return outcome[0]
