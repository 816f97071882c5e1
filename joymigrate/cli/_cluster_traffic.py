"""The commands of `cluster` that look at a service's traffic: replicas, and cards to buy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from joymigrate.cli._answers import Answer, answers, check_format, format_option, write_answer
from joymigrate.cli._cluster_orders import ADDRESS
from joymigrate.cli._common_options import OUTPUT
from joymigrate.cli._output import emit, one_of, talk, user
from joymigrate.errors import Exit, JoyError
from joymigrate.run.cluster import autoscale as scaling

NEEDS_TOO = {  # what must be there for the metric to exist
    "hpa": [
        "note: prometheus-adapter serves the metric: put the rule of the ConfigMap into its "
        "`rules.custom`; Prometheus must scrape the pods with the label `pod`"
    ],
    "keda": ["note: Prometheus must scrape the pods with the label `pod`, as PodMonitors do"],
}
TARGET = typer.Option(..., "--target", help="Requests per second of one replica.")


def register(app: typer.Typer) -> None:
    """Add the commands to `cluster`."""
    app.command("autoscale")(autoscale)
    app.command("forecast")(forecast)


def write_manifests(objects: Sequence[Any], form: str) -> str:
    """Manifests as YAML, or as the one JSON list that kubectl takes."""
    import yaml

    if form == "json":
        data = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return json.dumps(data, ensure_ascii=False, indent=2) + "\n"
    return yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=100)


def read_text(path: Path) -> str:
    """A text file; one that cannot be read is the user's mistake."""
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise JoyError(f"cannot read: {error.strerror}", where=str(path)) from error


def read_traffic(path: Path) -> list[scaling.Load]:
    """A record of traffic."""
    return scaling.read(read_text(path), str(path))


def autoscale(
    name: str = typer.Argument(..., help="The service (a Deployment's name)."),
    target: float = TARGET,
    least: int = typer.Option(1, "--min", help="Fewest replicas."),
    most: int = typer.Option(64, "--max", help="Most replicas."),
    window: float = typer.Option(300.0, "--down-window", help="Seconds before going down."),
    traffic: Path | None = typer.Option(None, "--traffic", help="Record (CSV: at,rate) to play."),
    start: float = typer.Option(60.0, "--start", help="Seconds until a new replica carries load."),
    season: float | None = typer.Option(
        None, "--season", help="Hours after which traffic repeats: replicas come before it rises."
    ),
    engine: str | None = typer.Option(None, "--for", help="hpa or keda: write the manifest."),
    server: str = typer.Option("http://prometheus:9090", "--prometheus", help="For keda."),
    live: Path | None = typer.Option(
        None, "--live", help="A job: keep so many of it on a Ray cluster, as NAME-0 and on."
    ),
    metrics: str = typer.Option("", "--metrics", help="With --live: the gateway's /metrics."),
    interval: float = typer.Option(15.0, "--interval", help="With --live: seconds between looks."),
    address: str | None = ADDRESS,
    form: str = format_option("autoscale"),
    output: Path | None = OUTPUT,
) -> int:
    """Play a replica rule over recorded traffic, write it for Kubernetes, or keep it on Ray."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster import forecast as foretelling

    check_format(form, "autoscale")
    if start < 0 or (season is not None and not 0 < season <= 24 * 366):
        raise JoyError("--start is at least 0 seconds, --season above 0 and at most 8784 hours")
    rule = scaling.ScalingRule(target, least, most, window, start_s=start)
    scaling.Autoscaler(rule)
    loads = [] if traffic is None else read_traffic(traffic)
    if live is not None:
        one_of(form, ("text",), "--format with --live")
        return keep_live(name, rule, loads, season, live, metrics, interval, address)
    if season is not None and not loads:
        raise JoyError("--season needs a record", help="give --traffic FILE")
    ahead = foretelling.ahead(loads, season * 3600, start) if season is not None else None
    if engine is not None:
        if ahead and (engine != "keda" or season != 24):
            raise JoyError(
                "a forecast is written as hours of a day, for KEDA only",
                help="use --for keda --season 24, or leave --season out",
            )
        plan = scaling.hourly(loads, rule, ahead) if ahead else ()
        made = {
            "hpa": [scaling.hpa(name, rule, scaling.RATE), scaling.adapter(name)],
            "keda": [scaling.keda(name, rule, server, scaling.query_of(name), plan)],
        }
        one_of(engine, tuple(made), "--for")
        talk(NEEDS_TOO[engine])
        emit(write_manifests(made[engine], form), output)
        return Exit.OK
    if not loads:
        raise JoyError("nothing to do", help="give --traffic FILE, or --for hpa|keda")
    played = scaling.play(loads, rule, ahead)
    if ahead and not any(ahead):
        talk(["warning: two seasons must be known before a forecast begins; nothing was forecast"])
    result = {
        "schema": "joymigrate.autoscale/1",
        "replica_hours": round(played.replica_hours, 3),
        "overload_pct": round(played.overload_pct, 3),
        "changes": played.changes,
        "most": max(played.replicas),
        "replicas": [
            {"at": at, "replicas": n} for at, n in zip(played.at, played.replicas, strict=True)
        ],
    }
    write_answer(Answer(result, report.autoscale(result)), form, output)
    return Exit.OK


def keep_live(
    name: str,
    rule: scaling.ScalingRule,
    loads: list[scaling.Load],
    season: float | None,
    live: Path,
    metrics: str,
    interval: float,
    address: str | None,
) -> int:
    """Keep as many replicas on a Ray cluster as the gateway's traffic needs, until interrupted."""
    import time

    from joymigrate.run.cluster import forecast as foretelling
    from joymigrate.run.cluster import jobs as work
    from joymigrate.run.cluster.on_ray import connect, serving
    from joymigrate.run.cluster.replicas import ServedReplicas

    if not metrics or not 1 <= interval <= 3600:
        raise JoyError(
            "--live needs --metrics URL, and an --interval of 1 to 3600 seconds",
            help="--metrics http://127.0.0.1:8080/metrics",
        )
    if bool(loads) != (season is not None):
        raise JoyError("--traffic and --season go together", help="or leave both out")
    (job, *others) = work.load(live).jobs
    if others:
        raise JoyError("--live takes one job", where=str(live), help="one job")
    known, step = None, 0.0
    if season is not None:
        known, step = foretelling.going_on(loads, season * 3600, rule.start_s, time.time())
    served = ServedReplicas(name, rule, known, step)

    captain = connect.ControllerClient(connect.attach(address))

    def total() -> float:
        return serving.read_total(metrics)

    for change in serving.keep(served, job, captain.ask, total, interval, user()):
        for word, names in (("start", change.start), ("stop", change.stop)):
            for one in names:
                print(f"{word} {one}: {change.rate:.1f} requests/s, {change.ahead:.1f} expected")
    return Exit.OK


@answers("forecast")
def forecast(
    traffic: Path = typer.Option(
        ..., "--traffic", help="Record (CSV: at,rate) of ten days or more."
    ),
    target: float = TARGET,
    cards: int = typer.Option(..., "--cards", help="Cards that there are for this service."),
    per_replica: int = typer.Option(1, "--cards-per-replica", help="Cards of one replica."),
    days: int = typer.Option(90, "--days", help="How far to look ahead."),
    level: float = typer.Option(0.9, "--interval", help="Share of outcomes the interval holds."),
) -> Answer:
    """Say when a service needs more cards than there are, and how many to buy, with an interval."""
    from joymigrate.report import cluster as report
    from joymigrate.run.cluster import forecast as foretelling

    if target <= 0 or cards < 0 or per_replica < 1 or not 1 <= days <= 1000 or not 0 < level < 1:
        raise JoyError(
            f"target {target:g}, cards {cards}, per replica {per_replica}, days {days}, "
            f"interval {level:g}",
            help="target above 0, cards from 0, per replica from 1, days to 1000, interval below 1",
        )
    loads = read_traffic(traffic)
    found = foretelling.outgrow(loads, target, cards, per_replica, days, level)
    test = found.backtest
    data = {
        "schema": "joymigrate.forecast/1",
        "cards": cards,
        "interval": level,
        "days": days,
        "full_in_days": dict(zip(("earliest", "expected", "latest"), found.full, strict=True)),
        "buy": dataclasses.asdict(found.buy),
        "backtest": dataclasses.asdict(test),
        "needed": [dataclasses.asdict(span) for span in found.days],
    }
    return Answer(data, report.forecast(data))
