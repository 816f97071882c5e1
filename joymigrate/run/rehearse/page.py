"""The report of a rehearsal as one html file without outside parts: tables and a memory plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from joymigrate.chips.calibration import provenance
from joymigrate.evidence import grade_line
from joymigrate.language import current_language, tell, traits
from joymigrate.run.rehearse.summary import gib

WIDTH, HEIGHT, LEFT, BOTTOM = 860, 220, 80, 24  # of the plot, in pixels
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7ea4", "#57606a")
NOTE = (
    "The vendor's package ran without a chip. Numbers, memory and kernels are the package's own; "
    "times mean nothing."
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; color: #1f2328; }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.note { background: #fff8c5; border: 1px solid #d4a72c; padding: .5rem .8rem; border-radius: 6px }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .25rem .6rem;
border-bottom: 1px solid #d1d9e0; vertical-align: top } td.n, th.n { text-align: right }
code { font: 13px ui-monospace, monospace } svg text { font: 12px system-ui, sans-serif }
"""


def page(result: Mapping[str, Any]) -> str:
    """The whole page, in the language that is spoken."""
    title = escape(tell("Rehearsal on {soc}", soc=result["soc"]))
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="note"><b>{tell("Simulated.")}</b> {escape(tell(NOTE))}</p>',
        table(("", ""), overview(result)),
        section("Memory over time", plot(result["ranks"])),
        section("Traps", trap_table(result["traps"])),
        section("Operators that fell back to the CPU", fallback_table(result["fallbacks"])),
        section("What the chip would refuse", refusal_table(result)),
        section("Kernels as launched", launch_table(result["launches"])),
        section("What chips were measured to do", measured_table(result["measured"])),
        section("Operators without simulation", count_table(result["unsimulated"], "op")),
        section("Results in another form than on the CPU", difference_table(result)),
        section("Ranks and processes", rank_table(result["ranks"])),
        section("Chip kernels asked for", kernel_table(result["kernels"])),
    ]
    lang = traits(current_language()).tag
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="{lang}"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def section(title: str, content: str) -> str:
    """A headed part; nothing when there is nothing to show."""
    return f"<h2>{escape(tell(title))}</h2>\n{content}" if content else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; numbers are aligned right."""
    if not rows:
        return ""
    top = "".join(f"<th>{escape(tell(head))}</th>" for head in heads)
    lines = []
    for row in rows:
        cells = [
            f'<td class="n">{value}</td>' if isinstance(value, int) else f"<td>{value}</td>"
            for value in row
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{top}</tr>{''.join(lines)}</table>"


def overview(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures at the top."""
    ways = result["checked_by"]
    peaks = ", ".join(f"{d}: {gib(b)}" for d, b in result["peak_memory_bytes"].items())
    return [
        (tell("Package"), f"torch_npu {escape(result['package']['torch_npu'])}"),
        (
            tell("Devices"),
            tell(
                "{number} with {memory} each",
                number=result["devices"],
                memory=gib(result["memory_bytes"]),
            ),
        ),
        (
            tell("Mode"),
            escape(
                tell(
                    "{mode}, matrix inputs {precision}",
                    mode=result["mode"],
                    precision=result["precision"],
                )
            ),
        ),
        (tell("Exit code of the program"), str(result["exit_code"])),
        (tell("How well it is known"), escape(grade_line(result["grades"]))),
        (tell("Processes on the device"), str(result["processes"])),
        (tell("Peak memory"), peaks or tell("the device was not used")),
        (
            tell("Operators"),
            tell(
                "{number} in {calls} call{calls_s}",
                number=result["operators"],
                calls=result["calls"],
            ),
        ),
        (
            tell("How they were checked"),
            checked(ways),
        ),
    ]


def checked(ways: Mapping[str, float]) -> str:
    """How the results were checked, in one sentence."""
    return tell(
        "{vendor} by the vendor's C++, {reference} computed by our reference, {alias} by torch's "
        "CPU kernel alone",
        vendor=f"{ways['vendor_cpp']:.1%}",
        reference=f"{ways['reference']:.1%}",
        alias=f"{ways['cpu_alias']:.1%}",
    )


def plot(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Memory over time, one line per process, as SVG."""
    lines = [(rank, rank["timeline"]) for rank in ranks if len(rank["timeline"]) > 1]
    if not lines:
        return ""
    longest = max(points[-1][0] for _, points in lines) or 1.0
    most = max(bytes_ for _, points in lines for _, bytes_ in points) or 1
    drawn = []
    for number, (rank, points) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(
            f"{LEFT + (WIDTH - LEFT) * t / longest:.1f},"
            f"{(HEIGHT - BOTTOM) * (1 - b / most) + 4:.1f}"
            for t, b in points
        )
        label = escape(name_of(rank))
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5">'
            f"<title>{label}</title></polyline>"
        )
    axis = (
        f'<text x="0" y="14">{gib(most)}</text><text x="0" y="{HEIGHT - BOTTOM}">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">0 s</text>'
        f'<text x="{WIDTH - 60}" y="{HEIGHT - 4}">{longest:.1f} s</text>'
        f'<line x1="{LEFT}" y1="{HEIGHT - BOTTOM + 4}" x2="{WIDTH}" y2="{HEIGHT - BOTTOM + 4}" '
        f'stroke="#d1d9e0"/>'
    )
    label = escape(tell("Memory over time"))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" '
        f'aria-label="{label}">{axis}{"".join(drawn)}</svg>'
    )


def name_of(rank: Mapping[str, Any]) -> str:
    """How a process is called in the page."""
    if rank["rank"] is not None:
        return tell("rank {number}", number=rank["rank"])
    return tell("process {pid}", pid=rank["pid"])


def trap_table(traps: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"<code>{escape(trap['where'])}</code>",
            escape(tell(trap["message"])),
            escape(tell(trap["remedy"])),
            trap["count"],
        )
        for trap in traps
    ]
    return table(("where", "what", "what to do", "times"), rows)


def fallback_table(fallbacks: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"<code>{escape(row['op'])}</code>",
            row["calls"],
            "<br>".join(f"<code>{escape(tell(place))}</code>" for place in row["where"][:5]),
        )
        for row in fallbacks
    ]
    return table(("operator", "calls", "where"), rows)


def refusal_table(result: Mapping[str, Any]) -> str:
    rows = [
        (
            f"<code>{escape(row['where'])}</code>",
            f"<code>{escape(row['op'])}</code>",
            escape(tell(row["message"])),
            row["calls"],
            escape(tell(row["grade"])),
            escape(tell(row["source"])),
        )
        for row in result["refusals"]
    ]
    return table(("where", "operator", "refused", "calls", "grade", "source"), rows)


def count_table(rows: Sequence[Mapping[str, Any]], label: str) -> str:
    return table(
        ("operator", "calls"), [(f"<code>{escape(r[label])}</code>", r["calls"]) for r in rows]
    )


def launch_table(launches: Sequence[Mapping[str, Any]]) -> str:
    """Per operator: what its calls launch, which of it only casts or moves, which of it is slow."""
    rows = [
        (
            f"<code>{escape(row['where'])}</code>",
            f"<code>{escape(row['op'])}</code>",
            escape(" → ".join(row["kernels"])),
            escape(", ".join(row["moving"])),
            escape(", ".join(row["aicpu"])),
            row["calls"],
        )
        for row in launches
    ]
    heads = ("where", "operator", "kernels", "casts and copies", "on the chip's slow CPU", "calls")
    return table(heads, rows)


def measured_table(measured: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"<code>{escape(row['op'])}</code>",
            escape(f"{row['dtype']} {row['layout']}"),
            escape(", ".join(row["deviations"])),
            escape(provenance(row)),
        )
        for row in measured
    ]
    return table(("operator", "case", "deviates", "known by"), rows)


def difference_table(result: Mapping[str, Any]) -> str:
    rows = [
        (f"<code>{escape(d['op'])}</code>", escape(tell(d["vendor"])))
        for d in result["differences"]
    ]
    return table(("operator", "the vendor's C++ gives"), rows)


def kernel_table(kernels: Mapping[str, int]) -> str:
    return table(
        ("kernel", "times"), [(f"<code>{escape(k)}</code>", count) for k, count in kernels.items()]
    )


def rank_table(ranks: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            name_of(rank),
            f"<code>{escape(' '.join(rank['command'])[:120])}</code>",
            rank["calls"],
            rank["fallback_calls"],
            ", ".join(f"{d} {gib(b)}" for d, b in rank["peak_memory_bytes"].items()),
            tell("to its end" if rank["finished"] else "cut short"),
        )
        for rank in ranks
    ]
    return table(("process", "command", "calls", "fallbacks", "peak memory", "ran"), rows)
