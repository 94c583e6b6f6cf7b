"""The Prometheus door: metrics in its text format, gathered when somebody asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from siafu.errors import StoreError
from siafu.observe.counts import Counts
from siafu.observe.figures import Family, Histogram, SlowSource, Source
from siafu.observe.lag import LoopLag
from siafu.pace.clock import Clock

KEPT_SECONDS = 5.0  # that an answer of a database is good for
ASK_SECONDS = 3.0  # for it to come: Prometheus waits for ten by default, for all of the page


class Scrape:
    """The metrics of a process. counts: an Observer to be told of everything. lag: measured by whoever runs.

    Further sources are added as they open; a slow one (a database) is asked once in KEPT_SECONDS, however many scrape,
    and one that fails is left out.
    """

    def __init__(self, counts: Counts, clock: Clock) -> None:
        self.counts = counts
        self.lag = LoopLag(clock)
        self._clock = clock
        self._sources: list[Source] = [counts.families, self.lag.families]
        self._slow: list[_Kept] = []

    def add(self, source: Source) -> None:
        self._sources.append(source)

    def add_slow(self, name: str, source: SlowSource) -> None:
        """name: a label that says which source it is."""
        self._slow.append(_Kept(name, source))

    async def render(self, accept: str) -> tuple[str, bytes]:
        """The content type and the text, in the format that `accept` asks for."""
        families = [family for source in self._sources for family in source()]
        for kept in self._slow:
            families += await kept.families(self._clock.now())
        told = [((kept.name,), float(not kept.failed)) for kept in self._slow]
        families.append(Family("siafu_metrics_source_up", "gauge", "1 = this source could be read", ("source",), told))
        families = [_still(family) for family in _merged(families)]  # here, as counting goes on
        return await asyncio.to_thread(_page, families, accept)


def _merged(families: Sequence[Family]) -> list[Family]:
    """Each name once: several sources may have rows of one."""
    found: dict[str, Family] = {}
    for family in families:
        same = found.get(family.name)
        found[family.name] = family if same is None else msgspec.structs.replace(same, rows=[*same.rows, *family.rows])
    return list(found.values())


def _still(family: Family) -> Family:
    """As it is now, whatever is counted later."""
    rows = [(labels, value.copy() if isinstance(value, Histogram) else value) for labels, value in family.rows]
    return msgspec.structs.replace(family, rows=rows)


class _Kept:
    def __init__(self, name: str, source: SlowSource) -> None:
        self.name = name
        self.failed = False
        self._source = source
        self._found: Sequence[Family] = ()
        self._until = float("-inf")
        self._asking = asyncio.Lock()

    async def families(self, now: float) -> Sequence[Family]:
        async with self._asking:
            if now >= self._until:
                self._until, failed_before = now + KEPT_SECONDS, self.failed
                try:
                    async with asyncio.timeout(ASK_SECONDS):
                        self._found, self.failed = await self._source(), False
                except (StoreError, TimeoutError) as error:
                    self._found, self.failed = (), True
                    if not failed_before:
                        why = error.message if isinstance(error, StoreError) else f"no answer in {ASK_SECONDS:g} s"
                        logging.getLogger("siafu").warning("metrics of %s are missing: %s", self.name, why)
        return self._found


class _Collector:
    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._families)


def _page(families: Sequence[Family], accept: str) -> tuple[str, bytes]:
    registry = CollectorRegistry()
    registry.register(_Collector(families))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


def _metric(family: Family) -> Metric:
    if family.kind == "histogram":
        found = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in family.rows:
            assert isinstance(value, Histogram)  # noqa: S101  by its kind
            found.add_metric(labels, list(_buckets(value)), value.total)
        return found
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    plain = make(family.name, family.help, labels=family.labels)
    for labels, value in family.rows:
        assert not isinstance(value, Histogram)  # noqa: S101  by its kind
        plain.add_metric(labels, value)
    return plain


def _buckets(histogram: Histogram) -> Iterable[tuple[str, float]]:
    so_far = 0
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        so_far += count
        yield bound, so_far
