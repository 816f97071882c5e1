"""The same alerts and panels for those who run Prometheus and Grafana."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from joymigrate.run.serve.monitor.alerts import AlertRule
from joymigrate.run.serve.monitor.derive import QUANTILES, MetricSeries, all_series

RANGE = "1m"


def expression(key: str) -> str | None:
    """PromQL for a key of series.yaml, or None for what our metrics do not hold."""
    base, quantile = key, None
    for label, share in QUANTILES.items():
        if key.endswith(f"_{label}"):
            base, quantile = key[: -len(label) - 1], share
    series = next((s for s in all_series() if s.key == base), None)
    if series is None or not series.names:
        return None
    metric = series.names[0]
    by = f" by ({series.by})" if series.by else ""
    if series.read == "gauge":
        return scale_gauge(metric, series)
    if series.read == "total":
        where = matchers(series)
        return f"sum{by} ({metric}{{{where}}})" if where else f"sum{by} ({metric})"
    if series.read == "rate":
        return f"sum{by} (rate({metric}[{RANGE}]))"
    if series.read == "share":
        where = matchers(series)
        part = f"sum{by} (rate({metric}{{{where}}}[{RANGE}]))"
        return f"100 * {part} / sum{by} (rate({metric}[{RANGE}]))"
    if series.read == "ratio":
        over = series.over[0]
        ratio = f"sum{by} (rate({metric}[{RANGE}])) / sum{by} (rate({over}[{RANGE}]))"
        return f"{series.scale:g} * {ratio}"
    if series.read == "quantile" and quantile is not None:
        names = ", ".join(["le", *([series.by] if series.by else [])])
        rate = f"sum by ({names}) (rate({metric}_bucket[{RANGE}]))"
        return f"{series.scale:g} * histogram_quantile({quantile}, {rate})"
    return None


def matchers(series: MetricSeries) -> str:
    """What a series counts, as PromQL writes it: several values are a pattern."""
    return ",".join(f'{k}{"=~" if "|" in v else "="}"{v}"' for k, v in series.where.items())


def scale_gauge(metric: str, series: MetricSeries) -> str:
    """A gauge in the unit that the key has."""
    return metric if series.scale == 1.0 else f"{series.scale:g} * {metric}"


def prometheus_rules(rules: Sequence[AlertRule]) -> str:
    """A rule file. Alerts on what Prometheus does not get from us are named in a comment."""
    made, left = [], []
    for rule in rules:
        key, _, who = rule.watch.partition("|")
        found = expression(key)
        if found is None:
            left.append(rule.name)
            continue
        if who not in ("", "*") and found.count("by (") == 0:
            found = f'{found}{{upstream="{who}"}}'
        sign, limit = (">", rule.above) if rule.above is not None else ("<", rule.below)
        made.append(
            {
                "alert": "".join(word.capitalize() for word in rule.name.split("-")),
                "expr": f"{found} {sign} {limit:g}",
                "for": f"{rule.for_seconds:g}s",
                "keep_firing_for": "1m",
                "labels": {"severity": rule.severity},
                "annotations": {
                    "summary": rule.text.replace("{who}", "{{ $labels.upstream }}")
                    .replace("{name}", rule.name)
                    .replace("{value:.0f}", "{{ $value }}")
                    .replace("{value:.2f}", "{{ $value }}")
                    .replace("{value:g}", "{{ $value }}")
                },
            }
        )
    text = yaml.safe_dump(
        {"groups": [{"name": "joymigrate", "rules": made}]}, sort_keys=False, width=1000
    )
    head = f"# Not exported, Prometheus has no metric of ours for them: {', '.join(left)}\n"
    return (head if left else "") + text


PANELS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Requests per second", "reqps", ("requests_per_s",)),
    ("Failure rate", "percent", ("failed_share",)),
    ("Standby failures with 95 % bound", "percent", ("standby_rate", "standby_bound")),
    ("Traffic weight", "percent", ("weight",)),
    ("Time to first token", "ms", ("ttft_p50", "ttft_p95", "ttft_p99")),
    ("Time per output token", "ms", ("tpot_p50", "tpot_p99")),
    ("Whole request", "ms", ("e2e_p50", "e2e_p99")),
    ("Tokens per second", "short", ("tokens_in", "tokens_out")),
    ("Running and waiting", "short", ("inflight", "waiting")),
    ("Same text in the shadow", "percent", ("agreement",)),
    ("KV cache and prefix hits", "percent", ("kv", "prefix")),
)


def grafana_dashboard() -> str:
    """A dashboard to import. It asks for the Prometheus data source when it is imported."""
    panels: list[dict[str, Any]] = []
    for number, (title, unit, keys) in enumerate(PANELS):
        targets = []
        for place, key in enumerate(keys):
            found = expression(key)
            if found is not None:
                targets.append(
                    {
                        "refId": chr(ord("A") + place),
                        "expr": found,
                        "legendFormat": f"{{{{upstream}}}} {key}",
                        "datasource": DATASOURCE,
                    }
                )
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": title,
                "datasource": DATASOURCE,
                "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": targets,
            }
        )
    board = {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
            }
        ],
        "title": "joymigrate",
        "uid": "joymigrate",
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["joymigrate"],
        "panels": panels,
    }
    return json.dumps(board, indent=2)


DATASOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
