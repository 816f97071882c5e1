"""Text for people: the rollout, a simulation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from joymigrate.language import columns


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns, the first to the left, the others to the right."""
    return columns([head, *([text(value) for value in row] for row in rows)], right=True)


def text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.4g} %"


def duration(seconds: float | None) -> str:
    """Days, hours or minutes, whichever reads best."""
    if seconds is None:
        return "-"
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} s"


def rollout(found: dict[str, Any]) -> str:
    """The state of a running gateway."""
    evidence, step = found["evidence"], found["step"]
    weights = ", ".join(f"{name} {weight:g} %" for name, weight in found["weights"].items())
    lines = [
        f"{found['state']}: {weights}",
        f"evidence: {evidence['failures']} of {evidence['requests']} standby requests failed, "
        f"at most {percent(evidence['upper_bound'])} ({evidence['confidence']:.0%} bound; "
        f"limit {percent(evidence['limit'])}, {evidence['needed']} requests needed)",
        f"rule: {evidence['rule']}, at {evidence['level']:.0%} of its threshold",
        f"gate: {'open' if found['gate']['open'] else 'closed'}: {found['gate']['reason']}",
    ]
    if step["waits_for"]:
        lines.append(f"step {step['number']} of {step['of']} waits for: {step['waits_for']}")
    for name, upstream in found["upstreams"].items():
        word = "up" if upstream["up"] else "DOWN"
        lines.append(f"{name} ({upstream['role']}): {word}, {upstream['inflight']} in flight")
    lines.append("history:")
    for event in found["events"][-10:]:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
        lines.append(f"  {when}  {event['kind']:<11} {event['weight']:g} %  {event['text']}")
    return "\n".join(lines)


def study(found: dict[str, Any]) -> str:
    """The simulation's tables."""
    lines = [f"{name}: {text}" for name, text in found["rules"].items()]
    if found["rates"]:
        horizon = found["rates"][0]["within"]
        lines += ["", f"{found['runs']} runs each; requests are the standby's", ""]
        lines += table(
            ("rule", "true rate", f"rolled back in {horizon:,}", "median", "95 %", "99 %"),
            (
                (
                    row["rule"],
                    percent(row["rate"]) if row["rate"] is not None else "recorded",
                    percent(row["rolled_back_share"]),
                    row["median"],
                    row["p95"],
                    row["p99"],
                )
                for row in found["rates"]
            ),
        )
    if found.get("promotions"):
        lines += ["", f"promoted within {horizon:,} requests: at the limit or above, wrongly", ""]
        lines += table(
            ("rule", "true rate", "runs", "promoted"),
            (
                (row["rule"], percent(row["rate"]), row["runs"], percent(row["promoted_share"]))
                for row in found["promotions"]
            ),
        )
    for row in found.get("replay", ()):
        at = row["rolled_back_at"]
        when = f" ({duration(row['time'])} after the first)" if row["time"] is not None else ""
        decision = f"would have rolled back at request {at:,}{when}" if at else "would have gone on"
        lines += [
            "",
            f"{row['rule']} {decision}: {row['failures']} of {row['requests']:,} requests failed, "
            f"at most {percent(row['upper_bound'])}",
        ]
    if verdict := found.get("verdict"):
        lines += ["", *describe_logs(verdict)]
    if "calendar" in found:
        lines += ["", *calendar(found["calendar"])]
    return "\n".join(lines)


def describe_logs(found: dict[str, Any]) -> list[str]:
    """What access logs of both sides say about the standby."""
    counts = ", ".join(f"{name} {found['failures'][name]:,} of {many:,} failed"
                       for name, many in found["requests"].items())  # fmt: skip
    return [
        f"{found['state']}: {counts}, at most {percent(found['upper_bound'])}; "
        f"{found['unjudged']:,} unjudged",
        f"covers {found['covers']}",
        *([f"waits for: {found['waits_for']}"] if found["waits_for"] else []),
        *(f"  {reason}" for reason in found["reasons"][-10:]),
    ]


def calendar(found: dict[str, Any]) -> list[str]:
    """When the steps come."""
    promoted = duration(found["promoted"])
    return [
        f"the ramp with {found['requests_per_s'] * 86_400:,.0f} requests a day, "
        f"{found['shadow']:g} % mirrored:",
        *table(
            ("step", "begins after", "standby requests/day", "proof at this step takes"),
            (
                (
                    f"{step['weight']:g} %",
                    duration(step["entered"]),
                    f"{step['standby_per_s'] * 86_400:,.0f}",
                    duration(step["proof_seconds"]),
                )
                for step in found["steps"]
            ),
        ),
        f"promoted after {promoted} ({percent(found['promoted_share'])} of the runs; "
        f"{percent(found['rolled_back_share'])} rolled back)",
    ]
