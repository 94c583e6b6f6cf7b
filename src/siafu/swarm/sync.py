"""Async work from code that is not async: scripts, threads, notebooks."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar, overload

from siafu.border.text import preview
from siafu.errors import UsageError
from siafu.swarm.ending import put_down

GRACE = 5.0
T = TypeVar("T")
log = logging.getLogger("siafu")


@overload
def run_sync(work: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]]) -> T: ...
@overload
def run_sync(work: AsyncIterable[T]) -> list[T]: ...
def run_sync(work: Any) -> Any:
    """Run a coroutine, or an async function without arguments, to its end; an async iterable, such as a map, to a list.

    Works anywhere and any number of times, each time in an event loop of its own: in this thread when it has none
    running; else (a notebook) in a fresh thread, for which this one waits. Ctrl-C cancels the work and waits for it; a
    second one does not wait any longer. Tasks that the work leaves behind are cancelled as in `asyncio.run`, and so is
    the work when `sys.exit` breaks it off, in another task or a signal's handler; those that do not end after twice 5
    seconds are named in the log and left, where `asyncio.run` would wait for ever.

    Raises: whatever the work raises; UsageError when `work` is none of these.
    """
    coroutine = _coroutine(work)
    return _in_thread(coroutine) if _loop_runs_here() else _run(coroutine)


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    runner = asyncio.Runner()
    stuck = True  # or not to be waited for, after a second Ctrl-C
    try:
        try:
            return runner.run(coroutine)
        finally:
            if not _being_cancelled(runner.get_loop(), coroutine):
                stuck = runner.run(_left_behind())
    finally:
        if stuck:
            runner.get_loop().close()  # the runner's own end would cancel them and wait
        else:
            runner.close()


def _being_cancelled(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Whether the work was cancelled and still runs. (What `sys.exit` breaks off was not: it has to clean up.)"""
    return any(task.cancelling() for task in asyncio.all_tasks(loop) if task.get_coro() is coroutine)


async def _left_behind() -> bool:
    """End all other tasks, within bounds; whether some did not."""
    me = {asyncio.current_task()}
    others = asyncio.all_tasks() - me
    stuck = await put_down(others, GRACE)
    stuck |= await put_down(asyncio.all_tasks() - others - me, GRACE)  # what those have begun as they ended
    for task in stuck:
        what = preview(task.get_name(), 100)
        log.warning("%s does not end when it is cancelled, and is left; let CancelledError through", what)
    return bool(stuck)


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


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
    outcome: Future[Any] = Future()
    inner: list[asyncio.Task[Any]] = []
    begun = threading.Event()

    async def supervised() -> Any:
        inner.extend(asyncio.all_tasks())
        begun.set()
        return await coroutine

    def body() -> None:
        try:
            outcome.set_result(_run(supervised()))
        except BaseException as error:  # noqa: BLE001  raised in the waiting thread
            outcome.set_exception(error)
        finally:
            begun.set()

    outer = asyncio.current_task()
    before = outer.cancelling() if outer else 0
    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), name="siafu.run_sync", daemon=True)
    thread.start()
    try:
        # Ctrl-C under asyncio.run does not raise here: it cancels the outer task, which cannot notice while it waits.
        while thread.is_alive() and not (outer and outer.cancelling() > before):
            thread.join(0.05)
    finally:
        begun.wait()
        for task in inner if thread.is_alive() else ():
            with suppress(RuntimeError):  # its loop has just closed
                task.get_loop().call_soon_threadsafe(task.cancel)
        thread.join()
    return outcome.result()
