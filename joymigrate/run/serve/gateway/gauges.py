"""Numbers of the gateway that are asked for when its metrics are read."""

from __future__ import annotations

from joymigrate.run.serve.gateway.routing import Router
from joymigrate.run.serve.gateway.shadow import Shadow
from joymigrate.run.serve.monitor.metrics import Metrics


def add(metrics: Metrics, router: Router, shadow: Shadow) -> None:
    """Register what can be read off the router and its rollout."""
    both, rollout = (router.primary, router.standby), router.rollout

    def of_upstream(name: str, help: str, read: str) -> None:
        metrics.gauge(
            name,
            help,
            "upstream",
            ask=lambda: {(up.name,): float(getattr(up, read)) for up in both},
        )

    of_upstream("joymigrate_inflight", "Requests at a backend", "inflight")
    of_upstream("joymigrate_waiting", "Requests waiting for a backend", "queued")
    of_upstream("joymigrate_upstream_up", "1 when the health checks pass", "up")
    metrics.gauge(
        "joymigrate_upstream_weight",
        "Percent of the requests",
        "upstream",
        ask=lambda: {(name,): weight for name, weight in router.weights().items()},
    )
    metrics.gauge(
        "joymigrate_rollout_state",
        "1 for the state that holds",
        "state",
        ask=lambda: {(rollout.state,): 1.0},
    )
    metrics.gauge(
        "joymigrate_standby_failure_rate",
        "Failures per request since the evidence began",
        ask=lambda: {(): rollout.total.failures / max(1, rollout.total.requests)},
    )
    metrics.gauge(
        "joymigrate_standby_failure_bound",
        "Upper 95 % bound of that rate",
        ask=lambda: {(): rollout.upper_bound},
    )
    metrics.gauge(
        "joymigrate_shadow_agreement",
        "Share of mirrored requests with the same text",
        ask=lambda: {(): shadow.agreed / shadow.compared} if shadow.compared else {},
    )
    metrics.gauge(
        "joymigrate_rule_level",
        "How near the rule is to a rollback: 0 quiet, 1 tripped",
        ask=lambda: {(): rollout.rule.level},
    )
