"""Counters and histograms that cost nothing to update, and their Prometheus text.

A hot path holds a `MetricValue` or `Histogram` and adds to it; labels are resolved once. Histograms
have twenty buckets per decade, so a percentile is off by at most 12 % of its value.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PER_DECADE = 20
DECADES = 6  # from 0.1 ms to 100 s
FIRST_SECONDS = 1e-4
BOUNDS = [FIRST_SECONDS * 10 ** (i / PER_DECADE) for i in range(PER_DECADE * DECADES + 1)]
SHOWN = 5  # every fifth bound goes to Prometheus: four per decade


class MetricValue:
    """One number."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Count `amount` more."""
        self.value += amount


class Histogram:
    """Durations in seconds, by bucket. `counts[i]` are those up to `BOUNDS[i]`."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect.bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    @property
    def total(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class MetricFamily:
    """All series of one metric."""

    name: str
    help: str
    kind: str  # counter, gauge, histogram
    labels: tuple[str, ...]
    series: dict[tuple[str, ...], Any] = field(default_factory=dict)
    ask: Callable[[], Mapping[tuple[str, ...], float]] | None = None

    def of(self, *values: str) -> Any:
        """The series with these label values."""
        found = self.series.get(values)
        if found is None:
            found = Histogram() if self.kind == "histogram" else MetricValue()
            self.series[values] = found
        return found


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.families: dict[str, MetricFamily] = {}

    def counter(self, name: str, help: str, *labels: str) -> MetricFamily:
        """A number that only grows."""
        return self.add(MetricFamily(name, help, "counter", labels))

    def histogram(self, name: str, help: str, *labels: str) -> MetricFamily:
        """Durations in seconds."""
        return self.add(MetricFamily(name, help, "histogram", labels))

    def gauge(
        self,
        name: str,
        help: str,
        *labels: str,
        ask: Callable[[], Mapping[tuple[str, ...], float]] | None = None,
    ) -> MetricFamily:
        """A number that goes up and down; `ask` is called whenever the metrics are read."""
        return self.add(MetricFamily(name, help, "gauge", labels, ask=ask))

    def add(self, family: MetricFamily) -> MetricFamily:
        return self.families.setdefault(family.name, family)

    def collect(self) -> Iterator[Any]:
        """The families as prometheus-client wants them (this object is a collector)."""
        from prometheus_client import core

        made: Any
        for family in self.families.values():
            if family.kind == "histogram":
                made = core.HistogramMetricFamily(family.name, family.help, labels=family.labels)
                for values, histogram in family.series.items():
                    made.add_metric(list(values), cumulative(histogram), histogram.sum)
                yield made
                continue
            kind = core.CounterMetricFamily if family.kind == "counter" else core.GaugeMetricFamily
            made = kind(family.name, family.help, labels=family.labels)
            for values, value in current(family):
                made.add_metric(list(values), value)
            yield made

    def describe(self) -> Iterable[Any]:
        """Nothing: names are checked when they are collected."""
        return ()

    def text(self) -> bytes:
        """The exposition format that Prometheus scrapes."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)


def current(family: MetricFamily) -> Iterator[tuple[tuple[str, ...], float]]:
    """The series of a counter or gauge with their values."""
    if family.ask is not None:
        yield from family.ask().items()
    for values, cell in family.series.items():
        yield values, cell.value


def cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    """Buckets as Prometheus counts them, at every fifth bound."""
    rows, seen = [], 0
    for place, count in enumerate(histogram.counts[:-1]):
        seen += count
        if place % SHOWN == 0:
            rows.append((f"{BOUNDS[place]:.4g}", float(seen)))
    rows.append(("+Inf", float(seen + histogram.counts[-1])))
    return rows
