"""The alerts of alerts.yaml, which Prometheus watches: `joymigrate monitor --export prometheus`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert. `watch` is `key` or `key|pattern`, by the keys of series.yaml, in their units."""

    name: str
    watch: str
    text: str
    severity: str
    for_seconds: float
    above: float | None = None
    below: float | None = None


def load() -> list[AlertRule]:
    """All alerts."""
    text = (Path(__file__).parent / "alerts.yaml").read_text(encoding="utf-8")
    return [AlertRule(**one) for one in yaml.safe_load(text)["alerts"]]
