"""Options that several commands have in the same words; those of commands that list records are in `showing`."""

from __future__ import annotations

from enum import StrEnum

import typer

Source = typer.Argument(metavar="FILE", help="Requests, one a line; - reads standard input.")
Written = typer.Argument(metavar="OUT", help="The results file of a run.")
BaseUrl = typer.Option(None, help="The endpoint, such as https://host/v1. Default: from the settings")
AllowUnpriced = typer.Option(False, "--allow-unpriced", help="Under a budget, also models without a price.")
Limit = typer.Option(None, "--limit", min=1, help="Only the first so many lines.")
Strict = typer.Option(False, "--strict", help="Refuse a file with a line that cannot be used.")
Fresh = typer.Option(False, "--fresh", help="Start over; what is there is kept as *.bak-N.")
Drain = typer.Option(10.0, "--drain", min=0, max=3600, help="Seconds for what is in flight when it is stopped.")
Quiet = typer.Option(False, "--quiet", "-q", help="No progress.")


class LogForm(StrEnum):
    text = "text"
    json = "json"


MetricsAt = typer.Option(
    None,
    "--metrics",
    metavar="[HOST:]PORT[-PORT]",
    envvar="SIAFU_METRICS",
    show_envvar=True,
    help="Serve metrics for Prometheus there, usually at 8000; of 8000-8003 at the first that is free.",
)
LogFormat = typer.Option(
    LogForm.text,
    "--log-format",
    envvar="SIAFU_LOG_FORMAT",
    show_envvar=True,
    help="What stderr gets: text, or a JSON object a line.",
)
ReadyFile = typer.Option(None, help="Write the URL and pid here, as JSON, once it listens.")
ParentPid = typer.Option(None, min=1, help="End when this process ends.")
UrlAsJson = typer.Option(False, "--json", help="Print the URL as JSON.")
