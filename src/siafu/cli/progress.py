"""Progress of a run on stderr: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from siafu.apps.filerun.job import Plan
from siafu.border.money import show_usd
from siafu.border.text import printable
from siafu.cli.lanes import Lanes
from siafu.errors import ApprovalPending
from siafu.observe.events import AttemptEnded, CheaperModel, Event, ItemEnded, ItemStarted, Waited
from siafu.swarm.results import MapResult

LINE_SECONDS = 5.0
RATE_SECONDS = 60
WIDTH = 80
_REASONS = {
    "rate_limited": "rate limited",
    "overloaded": "the endpoint is full",
    "backoff": "before another try",
    "waiting": "before asking again",
    "quota": "no credit left",
    "outage": "the endpoint fails",
    "tools": "a tool server is away",
}


class Counts:
    """What is known of a run at a moment. `clock`: monotonic seconds. Pure, apart from that clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began = clock()
        self.plan = Plan(total=0)
        self.written = self.failed = self.in_flight = self.refused = 0
        self.usd_pico = self.unpriced = 0
        self.waiting: dict[str, str] = {}  # items that wait, and the code of what for
        self._wait_until, self._wait_reason = 0.0, ""
        self._samples: deque[tuple[float, int]] = deque([(self.began, 0)], maxlen=RATE_SECONDS)

    def begin(self, plan: Plan) -> None:
        self.plan = plan
        self.began = self._clock()
        self._samples = deque([(self.began, 0)], maxlen=RATE_SECONDS)

    def ended(self, result: MapResult) -> None:
        if result.status == "waiting":
            self.waiting[result.key] = "" if result.error is None else result.error.code
            return
        self.waiting.pop(result.key, None)
        self.written += 1
        self.failed += not result.ok
        if self._clock() - self._samples[-1][0] >= 1.0:
            self._samples.append((self._clock(), self.written))

    def saw(self, event: Event) -> None:
        if isinstance(event, ItemStarted):
            self.in_flight += 1
        elif isinstance(event, ItemEnded):
            self.in_flight -= not event.restored
        elif isinstance(event, Waited):
            self._wait_until, self._wait_reason = self._clock() + event.seconds, event.reason
        elif isinstance(event, AttemptEnded):
            self.refused += event.status == 429
            self.usd_pico += event.usd_pico or 0
            self.unpriced += event.outcome == "ok" and event.usd_pico is None

    @property
    def done(self) -> int:
        """Lines that need no more work, those of earlier sessions and unusable ones included."""
        return self.plan.total - self.plan.todo + self.written

    def rate(self) -> float:
        """Items a minute over the last minute or so; 0.0 before the first ended."""
        since, before = self._samples[0]
        seconds = self._clock() - since
        return (self.written - before) * 60 / seconds if seconds > 0 else 0.0

    def eta(self) -> float | None:
        """Seconds until all is done at this rate but what waits; None = cannot be told."""
        rate, left = self.rate(), self.plan.total - self.done - len(self.waiting)
        return left * 60 / rate if rate and (left or not self.waiting) else None

    def facts(self) -> list[str]:
        """What stands beside the bar, the most important first."""
        eta = self.eta()
        failed = self.failed + self.plan.failed + self.plan.bad
        waiting = self._wait_until - self._clock()
        return [
            f"{self.rate():,.0f}/min",
            f"ETA {'-' if eta is None else span(eta)}",
            f"{max(0, self.in_flight)} in flight",
            *([f"{failed:,} failed"] if failed else []),
            *([f"{len(self.waiting):,} waiting"] if self.waiting else []),
            show_usd(self.usd_pico) if self.usd_pico or not self.unpriced else "cost ?",
            *([f"{self.refused:,} x 429"] if self.refused else []),
            *(
                [f"waiting {waiting:.0f} s: {_REASONS.get(self._wait_reason, self._wait_reason)}"]
                if waiting >= 1
                else []
            ),
        ]

    def share(self) -> int:
        """Per cent done, rounded down."""
        return 100 * self.done // self.plan.total if self.plan.total else 100


def span(seconds: float) -> str:
    """`m:ss`, or `h:mm:ss` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """Shows a run while the `with` block runs: an Observer and the engine's Watcher in one.

    label: what runs, as a file name. quiet: notes only, neither bar nor lines.
    """

    def __init__(
        self,
        label: str,
        *,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = Counts(clock)
        self._label = printable(label)
        self._quiet = quiet
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        self._live: Live | None = None
        self._told = (self.counts.began, 0)
        self._lanes = Lanes(self.note, clock)
        self._asked = False  # people have been told that something waits for them

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def restore(self) -> None:
        """Give the terminal back before the process ends without leaving the block."""
        self._console.show_cursor(True)

    def begin(self, plan: Plan) -> None:
        self.counts.begin(plan)
        if self._console.is_terminal and not self._quiet:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=5)
            self._live.start()

    def ended(self, result: MapResult) -> None:
        self.counts.ended(result)
        self._tell()

    def __call__(self, event: Event) -> None:
        self.counts.saw(event)
        self._lanes(event)
        if isinstance(event, CheaperModel):
            self.note(f"most of a budget is used: {event.instead} is asked instead of {event.model} from now on")
        if isinstance(event, Waited):
            if event.reason == "waiting" and not self._asked:
                self._asked = True
                asked = sum(code == ApprovalPending.code for code in self.counts.waiting.values())
                if asked:
                    self.note(f"{asked:,} wait for a person's decision: siafu approvals list")
                if later := len(self.counts.waiting) - asked:
                    self.note(f"{later:,} could not be settled yet and are tried again")
            self._tell()

    def note(self, text: str) -> None:
        self._console.print(Text(printable(text)), soft_wrap=not self._console.is_terminal)

    def _tell(self) -> None:
        """A plain line, when there is no bar and the last line is old or a tenth of the work away."""
        then, share = self._told
        age = self._clock() - then
        due = age >= LINE_SECONDS or (age >= 1 and self.counts.share() // 10 > share // 10)
        if self._quiet or self._console.is_terminal or not due:
            return
        self._told = (self._clock(), self.counts.share())
        counts = self.counts
        head = f"{self._label}: {counts.done:,}/{counts.plan.total:,} ({counts.share()} %)"
        self._console.print(Text(" · ".join([head, *counts.facts()])), soft_wrap=True)

    def _render(self) -> RenderableType:
        counts = self.counts
        width = min(self._console.width, WIDTH)
        label = set_cell_size(self._label, min(cell_len(self._label), 24))
        done = f"{counts.done:,}/{counts.plan.total:,}  {counts.share():>3} %"
        bar = Table.grid(padding=(0, 1))
        room = max(4, width - cell_len(label) - len(done) - 3)
        bar.add_row(label, ProgressBar(total=max(1, counts.plan.total), completed=counts.done, width=room), done)
        facts = Text("  " + " · ".join(counts.facts()), overflow="ellipsis", no_wrap=True)
        facts.truncate(width)
        return Group(bar, facts)
