"""The result of a rehearsal: the records of its processes as one json document and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from joymigrate.blame import text
from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import tell, tidy
from joymigrate.run.rehearse.constraints import KINDS, NOBODY
from joymigrate.run.rehearse.job_facts import job_traps
from joymigrate.run.rehearse.operator_releases import release_lines, some_releases
from joymigrate.run.rehearse.overheads import (
    host_waits,
    merge_overheads,
    overhead_lines,
    slow_kernels,
)
from joymigrate.run.rehearse.settings import RehearsalSettings

SCHEMA = "joymigrate.rehearsal/1"
COMPARED = (
    "of {calls} calls the chip's recorded limits were compared: dtypes of {dtypes}, "
    "ranks of {rank}, relations of {relations}, shapes of {shapes}, attributes of {attributes}, "
    "formats of {formats}"
)
WAYS = ("vendor_cpp", "reference", "cpu_alias")


def summarise(
    settings: RehearsalSettings,
    records: Sequence[Mapping[str, Any]],
    exit_code: int,
    measured: Sequence[Mapping[str, Any]] = (),
    stop: Mapping[str, Any] | None = None,
    unread: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """One document for all processes; `measured` are the calibration's rows of their operators,
    `stop` says why the program ended with an error, `unread` where the origin's words reached torch
    though the program was rewritten as it loaded."""
    operators = merged_operators(records)
    refused, judged = refusals(records), count_judged(records)
    on_cpu = fallbacks(records)
    costs = merge_overheads(records)
    return {
        "schema": SCHEMA,
        "rehearsal": True,
        "chip": settings.chip,
        "soc": settings.soc,
        "package": {"torch_npu": settings.package, "cann": settings.cann},
        "mode": settings.mode,
        "devices": settings.devices,
        "memory_bytes": settings.memory_bytes,
        "precision": settings.precision,
        "policy": settings.policy,
        "strict": settings.strict,
        "inject": settings.inject,
        "exit_code": exit_code,
        "stopped": stop,
        "processes": len(records),
        "operators": len(operators),
        "calls": sum(total(record["calls"]) for record in records),
        "checked_by": shares(operators),
        "checked_by_operators": dict(Counter(operators.values())),
        "fallbacks": on_cpu,
        "some_releases": some_releases(settings.chip, records, on_cpu),
        "unsimulated": named_counts(records, "unsimulated", "op"),
        "triton_kernels": named_counts(records, "triton", "kernel"),
        "peak_memory_bytes": highest(records, "peak_bytes"),
        "peak_reserved_bytes": highest(records, "reserved_bytes"),
        "kernels": dict(
            (sum_counters(records, "kernels") + sum_counters(records, "repeated")).most_common()
        ),
        "kernel_sequence": next(
            (r["kernel_sequence"] for r in records if r["kernel_sequence"]), []
        ),
        "traps": traps(records) + job_traps(settings, records),
        "only_seen_while_running": list(unread),
        "refusals": refused,
        "races": races(records),
        "ordered": count_ordered(settings, records),
        "steps": max((record["steps"] for record in records), default=0),
        "overheads": costs,
        "slow_kernels": slow_kernels(costs),
        "host_waits": host_waits(costs),
        "documented": [row for row in refused if row["grade"] == "documented"],
        "judged": judged,
        "arguments_judged": {
            "calls": judged["calls"],
            "by": {"documents": judged["calls"] - judged["nobody"]},
            "nobody": judged["nobody"],
        },
        "differences": [
            {"op": name, "vendor": text}
            for name, text in sorted(
                {k: v for record in records for k, v in record["differences"].items()}.items()
            )
        ],
        "ranks": [rank_view(record) for record in records],
        "measured": list(measured),
        "grades": count_grades(statements(operators, refused, measured)),
    }


def statements(
    operators: Mapping[str, str],
    refused: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """The grade of everything that a rehearsal says about the chip: each operator of which somebody
    stated something (the vendor's C++, our reference), each refusal, each row that a chip was
    measured to deviate in. What torch's CPU kernel alone computed states nothing about a chip."""
    yield from ("rehearsed" for source in operators.values() if source != "cpu_alias")
    for row in (*refused, *measured):
        yield row["grade"]


def triton_lines(kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    """What of the program ran in Triton's interpreter, and what that leaves open."""
    if not kernels:
        return []
    said = tell(
        "Triton: {number} kernel{number_s}, {calls} launch{calls_es}, ran in Triton's interpreter; "
        "triton-ascend judged none of them: {names}",
        number=len(kernels),
        calls=sum(row["calls"] for row in kernels),
        names=", ".join(row["kernel"].rpartition(".")[2] for row in kernels[:6])
        + (", …" if len(kernels) > 6 else ""),
    )
    return [f"  {said}"]


def total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


def sum_counters(records: Iterable[Mapping[str, Any]], key: str) -> Counter[str]:
    """The counters of all processes added up."""
    made: Counter[str] = Counter()
    for record in records:
        made.update(record[key])
    return made


def highest(records: Iterable[Mapping[str, Any]], key: str) -> dict[str, int]:
    """Per device, the highest figure of any process."""
    made: dict[str, int] = {}
    for record in records:
        for device, bytes_ in record[key].items():
            made[device] = max(bytes_, made.get(device, 0))
    return dict(sorted(made.items()))


def merged_operators(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """How each operator's results came about; checked anywhere counts as checked."""
    made: dict[str, str] = {}
    for record in records:
        for name, way in record["operators"].items():
            if made.get(name) != "vendor_cpp":
                made[name] = way
    return made


def shares(operators: Mapping[str, str]) -> dict[str, float]:
    """Share of operators per way; they add up to 1 unless no operator ran."""
    counts = Counter(operators.values())
    return {way: round(counts[way] / len(operators), 4) if operators else 0.0 for way in WAYS}


def named_counts(
    records: Iterable[Mapping[str, Any]], key: str, label: str
) -> list[dict[str, Any]]:
    """A counter as rows, most frequent first."""
    return [
        {label: name, "calls": calls} for name, calls in sum_counters(records, key).most_common()
    ]


def fallbacks(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Operators that ran on the CPU: calls in all, and where from, most frequent place first."""
    places: dict[str, Counter[str]] = {}
    for record in records:
        for operator, counts in record["fallbacks"].items():
            places.setdefault(operator, Counter()).update(counts)
    rows = [
        {"op": operator, "calls": total(counts), "where": [p for p, _ in counts.most_common()]}
        for operator, counts in places.items()
    ]
    return sorted(rows, key=lambda row: (-int(str(row["calls"])), str(row["op"])))


def merge_rows(
    records: Iterable[Mapping[str, Any]], key: str, repeated: str = "", count: str = "calls"
) -> list[dict[str, Any]]:
    """Rows of all processes; the same one in several ranks is one, its counts added up."""
    rows: dict[str, dict[str, Any]] = {}
    for record in records:
        for name, row in record[key].items():
            more = record[repeated].get(name, 0) if repeated else 0
            rows.setdefault(name, {**row, count: 0})[count] += row[count] + more
    return list(rows.values())


def refusals(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls that the chip refuses, of all processes, most calls first."""
    rows = merge_rows(records, "refusals", "repeated_refusals")
    return sorted(rows, key=lambda row: (-row["calls"], row["op"]))


def count_judged(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """In how many calls each kind of limit was compared, and of how many nothing was."""
    counts = sum_counters(records, "checks") + sum_counters(records, "repeated_checks")
    calls = sum(total(record["calls"]) for record in records)
    known = {kinds: count for kinds, count in counts.items() if kinds != NOBODY}
    by = {kind: sum(n for kinds, n in known.items() if kind in kinds.split()) for kind in KINDS}
    return {"calls": calls, **by, "nobody": calls - sum(known.values())}


def races(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Uses of the same memory that nothing orders, of all processes, by place."""
    rows = merge_rows(records, "races", count="count")
    return sorted(rows, key=lambda row: (row["where"], row["first_where"], row["race"]))


def count_ordered(
    settings: RehearsalSettings, records: Sequence[Mapping[str, Any]]
) -> dict[str, int] | None:
    """What the order was asked of in the asynchronous mode: accesses to memory, non-blocking
    copies and collectives in all, and the most streams of a process."""
    if settings.mode != "async":
        return None
    counts = sum_counters(records, "ordered")
    most = max((record["ordered"].get("streams", 0) for record in records), default=0)
    return {name: counts[name] for name in ("accesses", "copies", "collectives")} | {
        "streams": most
    }


def exit_code(result: Mapping[str, Any]) -> int:
    """The program's own; 1 where it ended well though a strict rehearsal met a refusal or
    `--policy error` a fallback, which the program then swallowed, or the asynchronous mode a
    race."""
    code = int(result["exit_code"])
    found = (result["strict"] and result["refusals"]) or result["races"]
    found = found or (result["policy"] == "error" and result["fallbacks"])
    return 1 if code == 0 and found else code


def traps(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Traps of all processes; the same place in several ranks is one trap."""
    rows = merge_rows(records, "traps", count="count")
    return sorted(rows, key=lambda trap: (trap["trap"], trap["where"]))


def rank_view(record: Mapping[str, Any]) -> dict[str, Any]:
    """What one process did, for comparing ranks."""
    return {
        "rank": record["rank"],
        "pid": record["pid"],
        "command": record["command"],
        "finished": record["finished"],
        "calls": total(record["calls"]),
        "fallback_calls": sum(total(counts) for counts in record["fallbacks"].values()),
        "peak_memory_bytes": record["peak_bytes"],
        "timeline": record["timeline"],
    }


def gib(bytes_: int) -> str:
    """Bytes for people."""
    if bytes_ >= 1 << 30:
        return f"{bytes_ / (1 << 30):.2f} GiB"
    if 10 * bytes_ >= 1 << 20:
        return f"{bytes_ / (1 << 20):.1f} MiB"
    return f"{bytes_ / (1 << 10):.1f} KiB"


def as_text(result: Mapping[str, Any]) -> str:
    """The summary that is printed after the program."""
    package = result["package"]["torch_npu"]
    head = (
        "rehearsal: {soc} × {devices}, torch_npu {package}, mode {mode}; simulated, not a chip's "
        "result"
    )
    about = {"soc": result["soc"], "devices": result["devices"], "mode": result["mode"]}
    lines = [tell(head, package=package, **about)]
    if not result["processes"]:
        lines.append("  " + tell("no process of the program loaded the device:"))
        if result["exit_code"]:
            lines += stop_lines(result)
        else:
            never = "it never imported torch, or ran in a Python without joymigrate"
            lines.append("  " + tell(never))
        return "\n".join(lines)
    lines.append("  " + tell("program ended with exit code {code}", code=result["exit_code"]))
    lines += stop_lines(result)
    cut = sum(not rank["finished"] for rank in result["ranks"])
    if cut:
        lost = "{count} process{count_es} ended without a last word; its last seconds are missing"
        lines.append("  " + tell(lost, count=cut))
    lines.append("  " + refusal_line(result))
    lines += [f"  {line}" for line in text.unread_lines(result.get("only_seen_while_running", ()))]
    lines += order_lines(result)
    peaks = ", ".join(f"{d} {gib(b)}" for d, b in result["peak_memory_bytes"].items())
    lines.append("  " + tell("peak memory: {peaks}", peaks=peaks or "the device was not used"))
    if result["mode"] == "dry":
        kernels = result["kernels"]
        calls = sum(kernels.values())
        counts = tell(
            "chip kernels: {calls} call{calls_s} of {kinds}", calls=calls, kinds=len(kernels)
        )
        lines.append(f"  {counts}")
        lines += [f"    {count:>8} {name}" for name, count in list(kernels.items())[:10]]
    elif result["operators"]:
        ways = result["checked_by"]
        counts = tell(
            "operators: {number} ({calls} call{calls_s}): {vendor} checked by the vendor's C++, "
            "{reference} computed by our reference, {alias} by torch's CPU kernel alone",
            number=result["operators"],
            calls=result["calls"],
            vendor=f"{ways['vendor_cpp']:.0%}",
            reference=f"{ways['reference']:.0%}",
            alias=f"{ways['cpu_alias']:.0%}",
        )
        lines.append(f"  {counts}")
    lines += slow_lines(result.get("slow_kernels", ()))  # reports of before have none
    lines += overhead_lines(result.get("overheads", ()))
    lines += text_of("fell back to the CPU", result["fallbacks"])
    lines += release_lines(result.get("some_releases", []))
    lines += text_of("without simulation", result["unsimulated"])
    lines += triton_lines(result["triton_kernels"])
    for row in result["refusals"][:10]:
        refused = tell(
            "refused ({grade}): {message} ({op}, {calls} call{calls_s})",
            grade=tell(row["grade"]),
            message=tell(row["message"]),
            op=row["op"],
            calls=row["calls"],
        )
        lines.append(f"  {row['where']}: {refused}")
        if row.get("remedy"):
            lines.append(f"    {tell('help:')} {tell(row['remedy'])}")
    if len(result["refusals"]) > 10:
        lines.append("  " + tell("… and {number} more", number=len(result["refusals"]) - 10))
    lines.append("  " + grade_line(result["grades"]))
    for trap in result["traps"]:
        lines.append(f"  {trap['where']}: {tell(trap['message'])}")
        lines.append(f"    {tell('help:')} {tell(trap['remedy'])}")
    return tidy("\n".join(lines))


def stop_lines(result: Mapping[str, Any]) -> list[str]:
    """Why the program ended with an error, whose it is and what to do; reports of before don't
    say."""
    stop = result.get("stopped")
    return ["  " + tell(line) for line in text.lines(stop)] if stop else []


RACES_SHOWN = 20


def order_lines(result: Mapping[str, Any]) -> list[str]:
    """What the asynchronous mode looked at, and each race with both of its lines."""
    looked, found = result["ordered"], result["races"]
    if looked is None:
        return []
    asked = tell(
        "{accesses} accesses on {streams} stream{streams_s}, {copies} non-blocking copies, "
        "{collectives} collectives were looked at",
        **looked,
    )
    if not found:
        return ["  " + tell("races: none; {asked}", asked=asked)]
    lines = [
        "  " + tell("RACES: {count} pair{count_s} of lines; {asked}", count=len(found), asked=asked)
    ]
    for row in found[:RACES_SHOWN]:
        lines.append(f"  {tell(row['where'])}: {tell(row['message'])}")
        lines.append("    " + tell("the earlier one: {where}", where=tell(row["first_where"])))
        lines.append(f"    {tell('help:')} {tell(row['remedy'])}")
    if len(found) > RACES_SHOWN:
        lines.append("  " + tell("… and {number} more", number=len(found) - RACES_SHOWN))
    return lines


def slow_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Operators of which a kernel runs on the chip's own CPU."""
    return [
        "  "
        + tell(
            "{where}: {op} runs on the chip's slow CPU ({kernels}, {calls} call{calls_s})",
            where=row["where"],
            op=row["op"],
            kernels=", ".join(row["aicpu"]),
            calls=row["calls"],
        )
        for row in rows[:10]
    ]


def refusal_line(result: Mapping[str, Any]) -> str:
    """How many calls the chip would refuse, and of how many that was asked."""
    share = tell(COMPARED, **{kind: result["judged"][kind] for kind in ("calls", *KINDS)})
    calls = sum(row["calls"] for row in result["refusals"])
    if not calls and result.get("stopped"):
        return tell("refusals until it stopped: none; {share}", share=share)
    if not calls:
        return tell("refusals: none; {share}", share=share)
    return tell(
        "REFUSALS: the chip would refuse {calls} call{calls_s} of {kinds} kind{kinds_s}; {share}",
        calls=calls,
        kinds=len(result["refusals"]),
        share=share,
    )


def text_of(title: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A short list of operators with their first place."""
    if not rows:
        return []
    lines = ["  " + tell("{title}: {number} operator{number_s}", title=title, number=len(rows))]
    for row in rows[:10]:
        place = f"  {tell(row['where'][0])}" if row.get("where") else ""
        lines.append(f"    {row['calls']:>8} {row['op']}{place}")
    if len(rows) > 10:
        lines.append("    " + tell("… and {number} more", number=len(rows) - 10))
    return lines
