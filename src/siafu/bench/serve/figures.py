"""From runs to figures: self-checks, rows and ratios. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from siafu.bench.gateway.figures import Spread, spread
from siafu.errors import MeasurementInvalid

BARE, SIAFU = "bare pass-through", "siafu serve"
FIGURES = ("requests_per_s", "cpu_ms_per_request", "p50_ms", "p99_ms")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One server under load once. mode: plain or streamed. cpu: seconds of its process, None = the system does not
    tell. upstream_calls: what the upstream counted meanwhile.
    """

    server: str
    mode: str
    clients: int
    answered: int
    errors: int
    seconds: float
    p50_ms: float
    p99_ms: float
    cpu: float | None
    upstream_calls: int

    def check(self) -> None:
        """Raises: MeasurementInvalid when the server has answered without its upstream, or asked it more than once."""
        if not self.answered:
            raise MeasurementInvalid(f"{self.server}, {self.mode}: nothing was answered, {self.errors} errors")
        most = self.answered + self.errors + 2 * self.clients  # some were left by an earlier run, some at the end
        if not self.answered <= self.upstream_calls <= most:
            raise MeasurementInvalid(
                f"{self.server}, {self.mode}: {self.answered} answers and {self.errors} errors of {self.clients} "
                f"clients, but the upstream counted {self.upstream_calls} calls"
            )

    def figure(self, name: str) -> float | None:
        """One of FIGURES."""
        if name == "requests_per_s":
            return self.answered / self.seconds
        if name == "cpu_ms_per_request":
            return None if self.cpu is None else self.cpu / self.answered * 1e3
        value: float = getattr(self, name)
        return value


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row for each mode and server: medians of its runs; answers and errors are summed."""
    table = []
    for (mode, server), group in _grouped(runs).items():
        found = {name: spread([run.figure(name) for run in group]) for name in FIGURES}
        table.append(
            {
                "server": server,
                "mode": mode,
                "clients": group[0].clients,
                "runs": len(group),
                "answered": sum(run.answered for run in group),
                "errors": sum(run.errors for run in group),
                **{name: None if value is None else round(value.median, 3) for name, value in found.items()},
            }
        )
    return table


def ratios(runs: Sequence[Run]) -> dict[str, dict[str, Spread | None]]:
    """By mode: figures of `siafu serve` as multiples of the bare pass-through's in the same repeat."""
    grouped = _grouped(runs)
    return {
        mode: {
            name: spread([_over(own.figure(name), bare.figure(name)) for own, bare in zip(group, base, strict=True)])
            for name in FIGURES
        }
        for (mode, server), group in grouped.items()
        if server == SIAFU
        for base in [grouped[mode, BARE]]
    }


def _grouped(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.mode, run.server), []).append(run)
    return groups


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
