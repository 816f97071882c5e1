"""Everything that a service says about itself at one moment, from its metrics or their text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from joymigrate.errors import JoyError
from joymigrate.run.serve.monitor.metrics import BOUNDS, Histogram, Metrics, current

Labels = tuple[tuple[str, str], ...]
Buckets = list[tuple[float, float]]  # upper bound in seconds, observations up to it


@dataclass(slots=True)
class Snapshot:
    """Values by name and labels. `time` in seconds since the epoch."""

    time: float
    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    buckets: dict[str, dict[Labels, Buckets]] = field(default_factory=dict)

    def of(self, *names: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """The series of the first of these names that is there."""
        for name in names:
            if name in self.values:
                for labels, value in self.values[name].items():
                    yield dict(labels), value
                return


def of_metrics(metrics: Metrics, time: float) -> Snapshot:
    """The metrics of this process, with all their buckets."""
    made = Snapshot(time)
    for family in metrics.families.values():
        name = family.name + ("_total" if family.kind == "counter" else "")
        if family.kind != "histogram":
            values = made.values.setdefault(name, {})
            for labels, value in current(family):
                values[tuple(zip(family.labels, labels, strict=True))] = value
            continue
        rows = made.buckets.setdefault(family.name, {})
        for labels, histogram in family.series.items():
            rows[tuple(zip(family.labels, labels, strict=True))] = buckets_of(histogram)
    return made


def buckets_of(histogram: Histogram) -> Buckets:
    """All bounds with the observations up to each."""
    bounds = (*BOUNDS, float("inf"))
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


def of_text(text: str, time: float, where: str) -> Snapshot:
    """What a `/metrics` page says."""
    from prometheus_client.parser import text_string_to_metric_families

    made = Snapshot(time)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = dict(sample.labels)
                if sample.name.endswith("_bucket") and "le" in labels:
                    bound = float(labels.pop("le"))
                    rows = made.buckets.setdefault(sample.name[:-7], {})
                    rows.setdefault(tuple(sorted(labels.items())), []).append((bound, sample.value))
                else:
                    key = tuple(sorted(labels.items()))
                    made.values.setdefault(sample.name, {})[key] = sample.value
    except ValueError as error:
        raise JoyError(
            f"not Prometheus text: {error}", where=where, help="name a /metrics page"
        ) from None
    for family_rows in made.buckets.values():
        for buckets in family_rows.values():
            buckets.sort()
    return made
