"""What a rehearsal says: tables, and memory over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.blame import text
from joymigrate.chips.calibration import provenance
from joymigrate.evidence import grade_line
from joymigrate.language import tell
from joymigrate.report.blocks import (
    Block,
    BlockDocument,
    CellStack,
    Chapter,
    Code,
    Picture,
    Preformatted,
    TableBlock,
    facts,
)
from joymigrate.report.html.plots import Curve, PlotStyle, lines
from joymigrate.run.rehearse.summary import gib

NOTE = (
    "The vendor's package ran without a chip. Numbers, memory and kernels are the package's own; "
    "times mean nothing."
)


def describe(result: Mapping[str, Any]) -> BlockDocument:
    """The whole of it: a chapter for each kind of thing that was seen."""
    memory = plot(result["ranks"])
    stopped = result.get("stopped")
    parts: dict[str, tuple[str, Block | None]] = {
        "overview": ("Overview", facts(overview(result))),
        "memory": ("Memory over time", memory),
        "traps": ("Traps", trap_table(result["traps"])),
        "unread": (
            "Only seen while running", unread_table(result.get("only_seen_while_running") or ())
        ),
        "fallbacks": (
            "Operators that fell back to the CPU", fallback_table(result["fallbacks"])
        ),
        "stopped": ("Why the program stopped", stop_text(stopped) if stopped else None),
        "refusals": ("What the chip would refuse", refusal_table(result)),
        "races": ("Uses of memory without an order", race_table(result)),
        "slow_kernels": (
            "Kernels on the chip's slow CPU", slow_table(result.get("slow_kernels") or ())
        ),
        "measured": ("What chips were measured to do", measured_table(result["measured"])),
        "unsimulated": ("Operators without simulation", count_table(result["unsimulated"], "op")),
        "triton": (
            "Triton kernels, in Triton's interpreter",
            count_table(result.get("triton_kernels") or (), "kernel"),
        ),
        "differences": (
            "Results in another form than on the CPU", difference_table(result)
        ),
        "processes": ("Ranks and processes", rank_table(result["ranks"])),
        "kernels": ("Chip kernels asked for", kernel_table(result["kernels"])),
    }  # fmt: skip
    return BlockDocument(
        title=tell("Rehearsal on {soc}", soc=result["soc"]),
        subtitle=f"{tell('Simulated.')} {tell(NOTE)}",
        chapters=[
            Chapter(id, said, [block])
            for id, (said, block) in parts.items()
            if block and not (isinstance(block, TableBlock) and not block.rows)
        ],
    )


def overview(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures at the top."""
    ways = result["checked_by"]
    peaks = ", ".join(f"{d}: {gib(b)}" for d, b in result["peak_memory_bytes"].items())
    return [
        ("Package", ", ".join(f"{name} {one}" for name, one in result["package"].items())),
        ("Devices", tell("{number} with {memory} each", number=result["devices"],
                         memory=gib(result["memory_bytes"]))),
        ("Mode", tell("{mode}, matrix inputs {precision}", mode=result["mode"],
                      precision=result["precision"])),
        ("Exit code of the program", str(result["exit_code"])),
        ("How well it is known", grade_line(result["grades"])),
        ("Processes on the device", str(result["processes"])),
        ("Peak memory", peaks or "the device was not used"),
        ("Operators", tell("{number} in {calls} call{calls_s}", number=result["operators"],
                           calls=result["calls"])),
        ("How they were checked", check_words(ways)),
    ]  # fmt: skip


def check_words(ways: Mapping[str, float]) -> str:
    """How the results were checked, in one sentence."""
    return tell(
        "{vendor} by the vendor's C++, {reference} computed by our reference, {alias} by torch's "
        "CPU kernel alone",
        vendor=f"{ways['vendor_cpp']:.1%}",
        reference=f"{ways['reference']:.1%}",
        alias=f"{ways['cpu_alias']:.1%}",
    )


def stop_text(stop: Mapping[str, Any]) -> Preformatted:
    """Why the program stopped, as the summary says it."""
    return Preformatted("\n".join(tell(line) for line in text.lines(stop)))


def plot(ranks: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Memory over time, one line per process; nothing where nothing was recorded."""
    curves = [
        Curve(name_of(rank), [(t, held / 2**20) for t, held in rank["timeline"]])
        for rank in ranks
        if len(rank["timeline"]) > 1
    ]
    if not curves:
        return None
    words = tell("Memory over time")
    drawn = lines(curves, words, "s", "MiB", style=PlotStyle(steps=True, ground=True))
    return Picture(drawn, words)


def name_of(rank: Mapping[str, Any]) -> str:
    """How a process is called in the page."""
    if rank["rank"] is not None:
        return tell("rank {number}", number=rank["rank"])
    return tell("process {pid}", pid=rank["pid"])


def trap_table(traps: Sequence[Mapping[str, Any]]) -> TableBlock:
    rows = [(Code(trap["where"]), trap["message"], trap["remedy"], trap["count"]) for trap in traps]
    return TableBlock(("where", "what", "what to do", "times"), rows)


def unread_table(rows: Sequence[Mapping[str, Any]]) -> TableBlock:
    """Where the origin's words reached torch though the program was rewritten."""
    made = [(Code(row["line"]), Code(row["what"]), row["calls"]) for row in rows]
    return TableBlock(("where", "what was given the origin's word", "calls"), made)


def race_table(result: Mapping[str, Any]) -> TableBlock:
    """The races of the asynchronous mode, with both of their lines."""
    rows = [
        (
            Code(tell(row["where"])),
            Code(tell(row["first_where"])),
            row["message"],
            row["remedy"],
            row["count"],
        )
        for row in result.get("races") or ()
    ]
    return TableBlock(("where", "the earlier one", "what", "what to do", "times"), rows)


def fallback_table(fallbacks: Sequence[Mapping[str, Any]]) -> TableBlock:
    rows = [
        (
            Code(row["op"]),
            row["calls"],
            CellStack([Code(tell(place)) for place in row["where"][:5]]),
        )
        for row in fallbacks
    ]
    return TableBlock(("operator", "calls", "where"), rows)


def refusal_table(result: Mapping[str, Any]) -> TableBlock:
    rows = [
        (
            Code(row["where"]),
            Code(row["op"]),
            row["message"],
            row["calls"],
            row["grade"],
            row["source"],
        )
        for row in result["refusals"]
    ]
    return TableBlock(("where", "operator", "refused", "calls", "grade", "source"), rows)


def count_table(rows: Sequence[Mapping[str, Any]], label: str) -> TableBlock:
    return TableBlock(("operator", "calls"), [(Code(r[label]), r["calls"]) for r in rows])


def slow_table(rows: Sequence[Mapping[str, Any]]) -> TableBlock:
    """Per operator: the kernels of its calls that run on the chip's own CPU, and who says so."""
    made = [
        (Code(r["where"]), Code(r["op"]), ", ".join(r["aicpu"]), r["calls"], r["source"])
        for r in rows
    ]
    return TableBlock(("where", "operator", "on the chip's slow CPU", "calls", "source"), made)


def measured_table(measured: Sequence[Mapping[str, Any]]) -> TableBlock:
    rows = [
        (
            Code(row["op"]),
            f"{row['dtype']} {row['layout']}",
            ", ".join(row["deviations"]),
            provenance(row),
        )
        for row in measured
    ]
    return TableBlock(("operator", "case", "deviates", "known by"), rows)


def difference_table(result: Mapping[str, Any]) -> TableBlock:
    rows = [(Code(d["op"]), d["vendor"]) for d in result["differences"]]
    return TableBlock(("operator", "the vendor's C++ gives"), rows)


def kernel_table(kernels: Mapping[str, int]) -> TableBlock:
    return TableBlock(("kernel", "times"), [(Code(k), count) for k, count in kernels.items()])


def rank_table(ranks: Sequence[Mapping[str, Any]]) -> TableBlock:
    rows = [
        (
            name_of(rank),
            Code(" ".join(rank["command"])[:120]),
            rank["calls"],
            rank["fallback_calls"],
            ", ".join(f"{d} {gib(b)}" for d, b in rank["peak_memory_bytes"].items()),
            tell("to its end" if rank["finished"] else "cut short"),
        )
        for rank in ranks
    ]
    return TableBlock(("process", "command", "calls", "fallbacks", "peak memory", "ran"), rows)
