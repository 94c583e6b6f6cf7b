"""Progress of a demo on stderr: a bar for each program on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from siafu.bench.demo.phases import Moment

LINE_SECONDS = 5.0
_STAGES = {"running": "", "killed": "kill -9", "again": "started again", "done": "done"}


class Progress:
    """A phases.Listener that shows what the endpoint has seen. quiet: show nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=quiet)
        self._bars = Bars(
            TextColumn("{task.description:<6.12}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._rows: dict[str, TaskID] = {}
        self._stage = ""
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
        if stage == self._stage and time.monotonic() - self._told < LINE_SECONDS:
            return
        self._stage, self._told = stage, time.monotonic()
        self.note(f"{moment.program}: {moment.answered}/{moment.total} answered  {facts}".rstrip())
