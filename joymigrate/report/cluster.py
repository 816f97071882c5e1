"""Plans, answers and forecasts of a cluster as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from joymigrate.language import columns
from joymigrate.report.fields import fields
from joymigrate.run.cluster.kubernetes.validate import ManifestCheck


def plan(data: Mapping[str, Any]) -> str:
    """One line per pod of a placed job, then what waits, why, and what would free it."""
    lines: list[str] = []
    for placed in data["placements"]:
        for pod in placed["pods"]:
            cards = ",".join(str(card) for card in pod["cards"]) or "none"
            share = f" ({pod['share']:g} of it)" if "share" in pod else ""
            lines.append(f"{placed['job']}[{pod['rank']}]: {pod['node']} cards {cards}{share}")
    for evicted in data["evictions"]:
        lines.append(f"{evicted['job']}: stopped, {evicted['why']}")
    for waiting in data["waiting"]:
        lines.append(f"{waiting['job']}: waits, {waiting['reason']}")
        lines.append(f"  frees: {waiting['frees']}")
    placed_count, waiting_count = len(data["placements"]), len(data["waiting"])
    lines.append(
        f"Placed {placed_count} of {placed_count + waiting_count} jobs, "
        f"stopped {len(data['evicted'])}."
    )
    return "\n".join(lines) + "\n"


NEVER_SHOWN = 20  # jobs that never fit
TEAM_COLUMNS = (
    ("team", "team"),
    ("jobs", "jobs"),
    ("waited min", "recorded_min"),
    ("replayed", "replayed_min"),
    ("changed", "changed_min"),
    ("error: median", "error_median_min"),
    ("95 %", "error_p95_min"),
    ("mean", "error_mean_min"),
    ("near %", "within_pct"),
)


def what_if(data: Mapping[str, Any]) -> str:
    """The replay's error on the past by team, then what the change does to each of them."""
    rows = [[title for title, _ in TEAM_COLUMNS]]
    lines = []
    for team in data["teams"]:
        values = [team[key] for _, key in TEAM_COLUMNS]
        rows.append(
            [f"{v:.1f}" if isinstance(v, float) else "-" if v is None else str(v) for v in values]
        )
        name, change = team["team"], team["difference_min"]
        if change is None:
            lines.append(f"{name}: no difference is said: {team['unsaid']}")
        else:
            more = "more" if change > 0 else "less"
            lines.append(f"{name}: waits {abs(change):.1f} minutes {more} on average")
        before, after = team["not_started"]
        if before != after:
            lines.append(f"  {after} of its jobs don't start in the record's time, {before} before")
    lost = data["never_fit"]
    lines += [
        f"{one['job']} ({one['queue']}) never fits: {one['reason']}" for one in lost[:NEVER_SHOWN]
    ]
    lines += [f"{len(lost) - NEVER_SHOWN} more never fit"] if len(lost) > NEVER_SHOWN else []
    lines += [f"note: {text}" for text in data["notes"]]
    near = (
        f"near: started within {data['within_min']:g} minutes of the record; order {data['order']}"
    )
    return f"{align(rows)}{near}\n\n" + "".join(f"{line}\n" for line in lines)


def manifest_document(found: ManifestCheck) -> dict[str, Any]:
    """Problems of manifests as plain data (schema `joymigrate.manifests/1`)."""
    return {
        "schema": "joymigrate.manifests/1",
        "objects": found.objects,
        "problems": [fields(one, "where path what help") for one in found.problems],
        "notes": list(found.notes),
    }


def manifest_text(data: Mapping[str, Any]) -> str:
    """One problem a line with its remedy, and the count."""
    lines = []
    for item in data["problems"]:
        place = f"{item['where']}: {item['path']}" if item["path"] else item["where"]
        lines.append(f"{place}: {item['what']}")
        if item["help"]:
            lines.append(f"  help: {item['help']}")
    lines.append(f"Checked {data['objects']} objects, found {len(data['problems'])} problems.")
    return "\n".join(lines) + "\n"


def status(data: Mapping[str, Any]) -> str:
    """Jobs with their cards or reasons, then nodes with their free cards."""
    lines = []
    for row in data["jobs"]:
        lines.append(f"{row['job']}: {row['state']} (queue {row['queue']})")
        for pod in row["pods"]:
            cards = ",".join(str(card) for card in pod["cards"]) or "none"
            lines.append(f"  [{pod['rank']}] {pod['node']} cards {cards}")
        if row["reason"]:
            lines.append(f"  {row['reason']}")
        if row["frees"]:
            lines.append(f"  frees: {row['frees']}")
    ahead = data["looked_ahead"]
    if ahead["looked"] and ahead["looked"] < ahead["waiting"]:
        lines.append(
            f"What is enough was looked for at the first {ahead['looked']} of {ahead['waiting']} "
            "waiting jobs; `joymigrate cluster why JOB` says it of any."
        )
    for node in data["nodes"]:
        notes = [] if node["cordoned"] is None else [f"cordoned {node['cordoned']}".strip()]
        notes += [f"failed: {','.join(map(str, node['failed']))}"] if node["failed"] else []
        if node["cards"]:
            free = f"{node['free']}/{node['cards']} free"
            lines.append(", ".join([f"{node['node']}: {node['kind']}", free, *notes]))
    return "\n".join(lines) + "\n"


def live(data: Mapping[str, Any]) -> str:
    """Waiting gangs of a Kubernetes cluster, one after the other, and what is not looked at."""
    lines = []
    for row in data["waiting"]:
        if "fits" in row:
            places = "; ".join(
                f"{pod['node']} cards {','.join(map(str, pod['cards'])) or 'none'}"
                for pod in row["fits"]
            )
            lines.append(f"{row['job']}: fits by these rules: {places}")
            if row["stops"]:
                lines.append(f"  after stopping {', '.join(row['stops'])}")
        else:
            lines.append(f"{row['job']}: waits, {row['reason']}")
            lines.append(f"  frees: {row['frees']}")
        if row["kubernetes"]:
            lines.append(f"  Kubernetes says: {row['kubernetes']}")
    lines += [f"note: {text}" for text in data["notes"]]
    lines.append(f"{len(data['waiting'])} gangs wait, {len(data['running'])} have nodes.")
    return "\n".join(lines) + "\n"


def reason(data: Mapping[str, Any]) -> str:
    """Why one job waits, line by line."""
    lines = [f"{data['job']}: {data['state']}"]
    if data["reason"]:
        lines.append(f"  reason: {data['reason']}")
    if data.get("frees"):
        lines.append(f"  frees: {data['frees']}")
    for kind, cards in data.get("idle", {}).items():
        lines.append(f"  idle: {cards} cards of {kind} on nodes that it may use")
    for one in data.get("held", ()):
        until = "" if one["until_s"] is None else f", for {one['until_s'] / 60:.0f} more minutes"
        if one["cards"]:
            lines.append(f"  held: {one['cards']} of them for {one['for']}{until}")
    for node, ids in data.get("failed", {}).items():
        lines.append(f"  out of use: cards {','.join(map(str, ids))} of {node}")
    if "start" in data:
        at = data["start"]["in_s"]
        when = "unknown" if at is None else f"in {at / 60:.0f} minutes"
        lines.append(f"  start: {when} ({data['start']['basis']})")
    return "\n".join(lines) + "\n"


def history(facts: Sequence[Mapping[str, Any]]) -> str:
    """One fact a line: when, what, about which job, by whom."""
    lines = []
    for fact in facts:
        at = datetime.fromtimestamp(fact["at"], timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        more = {key: value for key, value in fact["data"].items() if key != "job" and value}
        text = json.dumps(more, ensure_ascii=False) if more else ""
        lines.append(f"{at} {fact['kind']} {fact['job']} by {fact['by']} {text}".rstrip())
    return "\n".join(lines) + "\n" if lines else ""


def quotas(data: Mapping[str, Any]) -> str:
    """A line per queue and what its limits are on."""
    rows = [["queue", "on", "MIN", "deserved", "MAX", "used", "running", "waiting"]]
    for queue in data["queues"]:
        for limit in queue["limits"] or [{"what": "-", "used": 0}]:
            bounds = [limit.get(key) for key in ("min", "deserved", "max")]
            rows.append(
                [
                    queue["queue"],
                    limit["what"],
                    *("-" if bound is None else f"{bound:g}" for bound in bounds),
                    f"{limit['used']:g}",
                    str(queue["running"]),
                    str(queue["waiting"]),
                ]
            )
    return align(rows)


def quota_change(data: Mapping[str, Any]) -> str:
    """What differs, and what that would do at once."""
    lines = [*data["changes"], *data["notes"]]
    lines += [f"would be stopped: {name}" for name in data["stops"]]
    lines += [f"would start: {name}" for name in data["starts"]]
    return "\n".join(lines or ["No difference."]) + "\n"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Rows of words as columns, the first one to the left."""
    return "\n".join(columns(rows, right=True)) + "\n"


def autoscale(data: Mapping[str, Any]) -> str:
    """What a replica rule would have done over recorded traffic."""
    return (
        f"{data['replica_hours']:g} replica hours, at most {data['most']} replicas, "
        f"{data['changes']} changes\n"
        f"{data['overload_pct']:g} % of the requests came above what the replicas carry\n"
    )


def forecast(data: Mapping[str, Any]) -> str:
    """When the cards run out and how many to buy, as text."""
    full, buy, test, days = data["full_in_days"], data["buy"], data["backtest"], data["days"]
    when = {
        key: f"not in {days} days" if day is None else f"day {day}" for key, day in full.items()
    }
    return (
        f"cards run out: {when['expected']} "
        f"(earliest {when['earliest']}, latest {when['latest']})\n"
        f"to buy for {days} days: {buy['middle']:g} cards "
        f"({100 * data['interval']:g} % interval {buy['low']:g} to {buy['high']:g})\n"
        f"tried on the record's past: {test['forecasts']} forecasts over "
        f"{test['days_ahead']} days, mean error {test['error_pct']:.1f} %, "
        f"{test['inside_pct']:.0f} % of the days inside the model's interval, "
        f"which is widened {test['widened']:.1f} times\n"
        "Not looked at: prices, new customers, and anything that the record has not seen.\n"
    )
