"""Plans and simulations as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.run.cluster.kubernetes.validate import Checked

WAITING_SHOWN = 20  # distinct reasons under a simulation


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


COLUMNS = (
    ("policy", "policy", "{}"),
    ("allocated %", "allocation_pct", "{:.2f}"),
    ("wait mean h", "wait_mean_h", "{:.2f}"),
    ("wait p99 h", "wait_p99_h", "{:.1f}"),
    ("blocked %", "blocked_pct", "{:.1f}"),
    ("fragmented %", "fragmentation_pct", "{:.2f}"),
    ("fairness", "fairness", "{:.3f}"),
    ("stopped", "evictions", "{}"),
    ("unplaced", "unplaced", "{}"),
    ("decisions/s", "decisions_per_s", "{:.0f}"),
)


def simulations(results: Sequence[Mapping[str, Any]]) -> str:
    """A table, one policy a line, and why jobs were never placed."""
    rows = [[title for title, _, _ in COLUMNS]]
    for result in results:
        row = []
        for _, key, form in COLUMNS:
            value = result.get(key)
            if key == "unplaced":
                value = len(result[key])
            row.append("-" if value is None else form.format(value))
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    lines += reasons(results[0]["unplaced"])
    return "\n".join(lines) + "\n"


def reasons(unplaced: Sequence[Mapping[str, str]]) -> list[str]:
    """The most frequent reasons, with how many jobs have them."""
    found: dict[str, int] = {}
    for item in unplaced:
        found[item["reason"]] = found.get(item["reason"], 0) + 1
    ranked = sorted(found.items(), key=lambda item: -item[1])
    lines = [f"  {number} × {reason}" for reason, number in ranked[:WAITING_SHOWN]]
    return ["", "Never placed under the first policy:", *lines] if lines else []


def checked_data(found: Checked) -> dict[str, Any]:
    """Problems of manifests as plain data (schema `joymigrate.manifests/1`)."""
    return {
        "schema": "joymigrate.manifests/1",
        "objects": found.objects,
        "problems": [
            {"where": p.where, "path": p.path, "what": p.what, "help": p.help}
            for p in found.problems
        ],
        "notes": list(found.notes),
    }


def checked(data: Mapping[str, Any]) -> str:
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
    for node in data["nodes"]:
        if node["cards"]:
            lines.append(f"{node['node']}: {node['kind']}, {node['free']}/{node['cards']} free")
    return "\n".join(lines) + "\n"
