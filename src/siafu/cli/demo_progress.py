"""Progress of a demo on stderr: a bar for each program on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from siafu.bench.demo.phases import Moment

LINE_SECONDS, SAME_SECONDS = 5.0, 60.0  # between two lines; until one is said again that says nothing new
_STAGES = {"running": "", "killed": "kill -9", "again": "started again", "done": "done"}


class Progress:
    """A phases.Listener that shows what the endpoint has seen. quiet: show nothing. clock: monotonic seconds."""

    def __init__(
        self, *, quiet: bool, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False, quiet=quiet)
        self._clock = clock
        self._bars = Bars(
            TextColumn("{task.description:<6.12}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._rows: dict[str, TaskID] = {}
        self._line = self._stage = ""
        self._told = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=not self._console.is_terminal)

    def __call__(self, moment: Moment) -> None:
        calls = "" if moment.calls is None else f"{moment.calls:,} calls, {moment.refused:,} x 429  "
        facts = calls + _STAGES[moment.stage]
        if not self._bars.disable:
            if moment.program not in self._rows:
                self._rows[moment.program] = self._bars.add_task(moment.program, total=moment.total, facts="")
            self._bars.update(self._rows[moment.program], completed=moment.answered, facts=facts)
            return
        stage = f"{moment.program} {moment.stage}"
        line = f"{moment.program}: {moment.answered}/{moment.total} answered  {facts}".rstrip()
        wait = SAME_SECONDS if line == self._line else LINE_SECONDS
        if stage == self._stage and self._clock() - self._told < wait:
            return
        self._stage, self._line, self._told = stage, line, self._clock()
        self.note(line)
