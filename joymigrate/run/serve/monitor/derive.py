"""From two snapshots of a service to the numbers that people look at."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.chips import read_yaml
from joymigrate.run.serve.monitor.snapshot import Buckets, Snapshot

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One quantity, as series.yaml describes it."""

    key: str
    read: str
    unit: str
    en: str
    zh: str
    names: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    by: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0


@functools.cache
def all_series() -> tuple[MetricSeries, ...]:
    """Every quantity that we know."""
    rows: list[dict[str, Any]] = read_yaml(Path(__file__).parent / "series.yaml")
    made = []
    for row in rows:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        made.append(MetricSeries(**values))
    return tuple(made)


def readings(before: Snapshot | None, after: Snapshot, who: str) -> dict[str, float]:
    """Numbers by `key` or `key|who`. Rates and quantiles are about the time between the two."""
    found: dict[str, float] = {}
    for series in all_series():
        if series.read == "gauge":
            for labels, value in after.of(*series.names):
                found[name(series, labels, who)] = value * series.scale
        elif series.read == "total":
            for labels, value in after.of(*series.names):
                if fits(labels, series.where):
                    key = name(series, labels, who)
                    found[key] = found.get(key, 0.0) + value * series.scale
        elif before is not None and after.time > before.time:
            found |= between(series, before, after, who)
    return found


def between(series: MetricSeries, before: Snapshot, after: Snapshot, who: str) -> dict[str, float]:
    """The readings of one quantity that needs two snapshots."""
    seconds = after.time - before.time
    if series.read == "rate":
        grown = growth(series, series.names, before, after, who)
        return {key: value / seconds * series.scale for key, value in grown.items()}
    if series.read == "share":
        all_of = growth(series, series.names, before, after, who)
        some = growth(series, series.names, before, after, who, series.where)
        return {key: some.get(key, 0.0) / value * 100 for key, value in all_of.items() if value > 0}
    if series.read == "ratio":
        hits = growth(series, series.names, before, after, who)
        over = growth(series, series.over, before, after, who)
        return {
            key: hits.get(key, 0.0) / value * series.scale
            for key, value in over.items()
            if value > 0
        }
    if series.read == "quantile":
        return quantiles(series, before, after, who)
    return {}


def growth(
    series: MetricSeries,
    names: Iterable[str],
    before: Snapshot,
    after: Snapshot,
    who: str,
    where: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """How much counters grew. One that was reset counts from zero."""
    found: dict[str, float] = {}
    for wanted in names:
        if wanted not in after.values:
            continue
        old = before.values.get(wanted, {})
        for labels, value in after.values[wanted].items():
            given = dict(labels)
            if where and not fits(given, where):
                continue
            grown = value - old.get(labels, 0.0)
            key = name(series, given, who)
            found[key] = found.get(key, 0.0) + (grown if grown >= 0 else value)
        break
    return found


def fits(labels: Mapping[str, str], where: Mapping[str, str]) -> bool:
    """Whether labels have one of the values that `where` names, parted by |."""
    return all(labels.get(key) in wanted.split("|") for key, wanted in where.items())


def quantiles(
    series: MetricSeries, before: Snapshot, after: Snapshot, who: str
) -> dict[str, float]:
    """Quantiles of what was observed in between."""
    merged: dict[str, Buckets] = {}
    for wanted in series.names:
        if wanted not in after.buckets:
            continue
        old = before.buckets.get(wanted, {})
        for labels, buckets in after.buckets[wanted].items():
            then = dict(old.get(labels, []))
            new = [(bound, count - then.get(bound, 0.0)) for bound, count in buckets]
            if any(count < 0 for _, count in new):
                new = buckets
            key = name(series, dict(labels), who)
            have = merged.get(key)
            merged[key] = (
                new
                if have is None
                else [(b, x + y) for (b, x), (_, y) in zip(have, new, strict=False)]
            )
        break
    found = {}
    for key, buckets in merged.items():
        base, _, rest = key.partition("|")
        for label, share in QUANTILES.items():
            value = quantile(buckets, share)
            if value is not None:
                found[f"{base}_{label}|{rest}" if rest else f"{base}_{label}"] = (
                    value * series.scale
                )
    return found


def quantile(buckets: Buckets, share: float) -> float | None:
    """Interpolated inside its bucket; None when nothing was observed."""
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    rank, low, seen = share * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > seen:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - seen) / (count - seen)
        low, seen = (bound if bound != float("inf") else low), count
    return low


def name(series: MetricSeries, labels: Mapping[str, str], who: str) -> str:
    """`key|who`: who it is about is a label's value, or the service."""
    if not series.by:
        return series.key
    return f"{series.key}|{labels.get(series.by) or who}"


def describe() -> list[dict[str, Any]]:
    """Keys, units and titles, for the page."""
    return [
        {"key": s.key, "unit": s.unit, "en": s.en, "zh": s.zh, "read": s.read} for s in all_series()
    ]
