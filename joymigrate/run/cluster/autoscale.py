"""How many replicas a service needs: a pure policy over recorded traffic, no clock of its own.

Up at once, down slowly: the wanted number follows the load over a short window; it falls only when
a whole longer window would have allowed it, as Kubernetes' own autoscaler does, so that what the
simulation says is what the rendered manifest does.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from joymigrate.errors import JoyError

HOURS = 24  # of a day
COUNTER = "joymigrate_requests_total"  # what gateways and engines count
RATE = "joymigrate_requests_per_second"  # what prometheus-adapter makes of it


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """`target` requests per second that one replica should carry; windows in seconds.

    `up_per_step` bounds growth as a factor per decision; `tolerance` is the share by which load may
    differ from the target before anything changes.
    """

    target: float
    least: int = 1
    most: int = 64
    down_window_s: float = 300.0
    up_per_step: float = 2.0
    tolerance: float = 0.1
    start_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """Traffic at one moment: requests per second."""

    at: float
    rate: float


class Autoscaler:
    """State machine: `on(load)` returns the number of replicas wanted now."""

    def __init__(self, rule: ScalingRule, replicas: int | None = None) -> None:
        if rule.target <= 0 or not 0 <= rule.least <= rule.most:
            raise JoyError(
                f"target {rule.target}, least {rule.least}, most {rule.most}",
                help="a target above 0, and 0 ≤ least ≤ most",
            )
        self.rule = rule
        self.replicas = max(rule.least, replicas if replicas is not None else rule.least)
        self.wanted: deque[tuple[float, int]] = deque()

    def take_over(self, at: float, replicas: int) -> int:
        """Begin beside replicas that are there: they go as after any load that fell."""
        self.replicas = min(max(replicas, self.rule.least), self.rule.most)
        self.wanted.append((at, self.replicas))
        return self.replicas

    def on(self, load: Load, ahead: float = 0.0) -> int:
        """Take in a load and decide.

        `ahead`: requests per second that a forecast expects before a new replica could be ready;
        replicas for it come at once, `up_per_step` bounds only what follows the load.
        """
        rule = self.rule
        ratio = load.rate / (rule.target * max(self.replicas, 1))
        raw = self.replicas
        if not self.replicas or abs(ratio - 1) > rule.tolerance:
            raw = math.ceil(load.rate / rule.target - 1e-9)
        raw = min(max(raw, rule.least), rule.most)
        if raw > self.replicas:
            grown = max(self.replicas + 1, math.floor(self.replicas * rule.up_per_step))
            raw = min(raw, grown)
        raw = max(raw, min(math.ceil(ahead / rule.target - 1e-9), rule.most))
        self.wanted.append((load.at, raw))
        while self.wanted and self.wanted[0][0] < load.at - rule.down_window_s:
            self.wanted.popleft()
        # Down only to the largest number that was wanted inside the window.
        self.replicas = max(number for _, number in self.wanted) if raw < self.replicas else raw
        return self.replicas


@dataclass(frozen=True, slots=True)
class AutoscaleReplay:
    """A traffic record under a rule: replicas over time, and what that cost and served."""

    at: tuple[float, ...]
    replicas: tuple[int, ...]
    replica_hours: float
    overload_pct: float  # share of requests that came above what ready replicas carry
    changes: int


def play(
    loads: Sequence[Load], rule: ScalingRule, ahead: Sequence[float] | None = None
) -> AutoscaleReplay:
    """Run a rule over recorded traffic; a new replica carries load after `start_s`.

    `ahead`: what a forecast expected at each of these moments (`Autoscaler.on`).
    """
    scaler = Autoscaler(rule)
    numbers: list[int] = []
    pending: list[tuple[float, int]] = []
    ready, hours, asked, over, changes = scaler.replicas, 0.0, 0.0, 0.0, 0
    for i, load in enumerate(loads):
        before = scaler.replicas
        now = scaler.on(load, ahead[i] if ahead else 0.0)
        changes += now != before
        if now > before:
            pending.append((load.at + rule.start_s, now))
        for due, number in pending:
            if due <= load.at:
                ready = max(ready, min(number, now))
        pending = [(due, number) for due, number in pending if due > load.at]
        ready = min(ready, now)
        span = (loads[i + 1].at if i + 1 < len(loads) else load.at) - load.at
        hours += now * span / 3600
        asked += load.rate * span
        over += max(0.0, load.rate - ready * rule.target * (1 + rule.tolerance)) * span
        numbers.append(now)
    share = 100 * over / asked if asked else 0.0
    return AutoscaleReplay(tuple(load.at for load in loads), tuple(numbers), hours, share, changes)


def read(text: str, where: str) -> list[Load]:
    """Traffic from a CSV with the columns `at` (or `seconds`, `time`) and `rate` (or `rps`)."""
    reader = csv.DictReader(io.StringIO(text))
    names = reader.fieldnames or []
    at = next((name for name in ("at", "seconds", "time") if name in names), None)
    rate = next((name for name in ("rate", "rps", "qps") if name in names), None)
    if at is None or rate is None:
        raise JoyError(
            f"columns {', '.join(names) or 'none'}", where=where, help="columns at,rate are wanted"
        )
    found = []
    for line, row in enumerate(reader, start=2):
        try:
            found.append(Load(float(row[at]), float(row[rate])))
        except (TypeError, ValueError) as error:
            raise JoyError(f"not a number: {error}", where=f"{where}:{line}") from error
    if not found:
        raise JoyError("the record has no row", where=where)
    return sorted(found, key=lambda load: load.at)


def hpa(name: str, rule: ScalingRule, metric: str) -> dict[str, Any]:
    """The rule as a HorizontalPodAutoscaler over a per-pod metric."""
    up = max(1, round((rule.up_per_step - 1) * 100))
    policies = [{"type": "Percent", "value": up, "periodSeconds": 15}]
    window = round(rule.down_window_s)
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": max(1, rule.least),
            "maxReplicas": rule.most,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": metric},
                        "target": {"type": "AverageValue", "averageValue": quantity(rule.target)},
                    },
                }
            ],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 0, "policies": policies},
                "scaleDown": {"stabilizationWindowSeconds": window},
            },
        },
    }


def keda(
    name: str, rule: ScalingRule, server: str, query: str, plan: Sequence[int] = ()
) -> dict[str, Any]:
    """The rule as a KEDA ScaledObject over a Prometheus query; it can go to no replica at all.

    `plan`: replicas for each hour of a day in UTC. KEDA takes the largest of what its triggers ask.
    """
    window = {"scaleDown": {"stabilizationWindowSeconds": round(rule.down_window_s)}}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"name": name},
            "minReplicaCount": rule.least,
            "maxReplicaCount": rule.most,
            "cooldownPeriod": round(rule.down_window_s),
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": window}},
            "triggers": [
                {
                    "type": "prometheus",
                    "metadata": {
                        "serverAddress": server,
                        "query": query,
                        "threshold": f"{rule.target:g}",
                    },
                },
                *crons(plan, rule),
            ],
        },
    }


def query_of(name: str) -> str:
    """The requests per second that the pods of a Deployment were asked, for Prometheus.

    Who scrapes pods (PodMonitor, ServiceMonitor, annotations) labels their series with `pod`.
    """
    return f'sum(rate({COUNTER}{{pod=~"{name}-[a-z0-9]+-[a-z0-9]+"}}[1m]))'


def adapter(name: str) -> dict[str, Any]:
    """The rule by which prometheus-adapter makes the metric that the HPA asks for.

    A HorizontalPodAutoscaler reads the custom metrics API, which serves nothing by itself.
    """
    rule = {
        "seriesQuery": f'{COUNTER}{{namespace!="",pod!=""}}',
        "resources": {
            "overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}
        },
        "name": {"matches": f"^{COUNTER}$", "as": RATE},
        "metricsQuery": "sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>)",
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-prometheus-adapter"},
        "data": {"config.yaml": yaml.safe_dump({"rules": [rule]}, sort_keys=False)},
    }


def quantity(value: float) -> str:
    """A number as a Kubernetes quantity."""
    return f"{value:g}" if float(value).is_integer() else f"{round(value * 1000)}m"


def crons(plan: Sequence[int], rule: ScalingRule) -> list[dict[str, Any]]:
    """Triggers for the hours that need more than the fewest replicas, equal ones together."""
    found: list[dict[str, Any]] = []
    hour = 0
    for replicas, hours in itertools.groupby(plan):
        begin, hour = hour, hour + len(list(hours))
        if replicas <= rule.least:
            continue
        end = "59 23" if hour == HOURS else f"0 {hour}"
        times = {"timezone": "Etc/UTC", "start": f"0 {begin} * * *", "end": f"{end} * * *"}
        wanted = {"desiredReplicas": str(min(replicas, rule.most))}
        found.append({"type": "cron", "metadata": times | wanted})
    return found


def hourly(loads: Sequence[Load], rule: ScalingRule, ahead: Sequence[float]) -> list[int]:
    """Replicas for each hour of a day: the most that was expected in it on the record's last day.

    `at` of the rows is in seconds since a midnight in UTC.
    """
    most = [0.0] * HOURS
    for load, rate in zip(loads, ahead, strict=True):
        if load.at > loads[-1].at - HOURS * 3600:
            hour = int(load.at // 3600) % HOURS
            most[hour] = max(most[hour], rate)
    return [min(math.ceil(rate / rule.target - 1e-9), rule.most) for rate in most]
