"""What a coverage says: shares, time by status, the longest operators, every gap."""

from __future__ import annotations

from collections.abc import Sequence

from joymigrate.evidence import grade_line
from joymigrate.language import mark, tell
from joymigrate.profile.attribute import NAME, REASONS
from joymigrate.profile.coverage import LOOSE, Coverage, CoveredOperator, weight
from joymigrate.profile.support import SupportStatus
from joymigrate.report.blocks import (
    Amount,
    Badge,
    Block,
    BlockDocument,
    CellStack,
    Chapter,
    Code,
    Listing,
    Paragraph,
    Picture,
    StackedBar,
    TableBlock,
    TileRow,
)
from joymigrate.report.coverage import document
from joymigrate.report.html.page import BarPart, Html, Tile
from joymigrate.report.html.plots import Bar, bars, beside

TONES = {
    SupportStatus.NATIVE: "safe",
    SupportStatus.FUSED: "safe",
    SupportStatus.COMPOSITE: "plain",
    SupportStatus.CPU_FALLBACK: "unsafe",
    SupportStatus.MISSING: "report",
    SupportStatus.UNKNOWN: "report",
}
LONGEST = 25  # bars of the chart
FIRST = 10  # rows of operators that stay, and of loose kernels, on a terminal
SIDE = 6  # bars; more stand in two columns


def describe(coverage: Coverage) -> BlockDocument:
    """Shares, time by status, the longest operators, every gap."""
    gaps = coverage.gaps()
    chapters = [Chapter("summary", "Summary", summary(coverage))]
    longest = sorted(coverage.ops, key=lambda op: -value(op, coverage))[:LONGEST]
    caption = tell(
        "The {number} operators with the most {measure}, by status.",
        number=len(longest),
        measure=measure(coverage),
    )
    chapters.append(Chapter("longest", "Longest", [Picture(chart(longest, coverage), caption)]))
    if gaps:
        chapters.append(
            Chapter("gaps", "Not on the chip", [gap_table(gaps, coverage)], len(gaps), "Gaps")
        )
    rest = [op for op in coverage.ops if op.status.supported]
    if rest:
        chapters.append(
            Chapter("supported", "On the chip", [rest_table(rest, coverage)], len(rest))
        )
    if coverage.unattributed_us:
        chapters.append(
            Chapter("unattributed", "Unattributed", loose_table(coverage), len(coverage.loose))
        )
    if set(coverage.phases) - {"unknown"}:
        seen = sum(phase.exact + phase.by_name > 0 for phase in coverage.phases.values())
        chapters.append(Chapter("phases", "Phases", phase_table(coverage), seen))
    known = grade_line(coverage.grades())
    if coverage.notes:
        chapters.append(Chapter("notes", "Notes", [Listing(coverage.notes)]))
    return BlockDocument(
        title=tell("Operators on {chip} {version}", chip=coverage.chip, version=coverage.version),
        subtitle=f"{', '.join(coverage.traces)} · {coverage.source} · {known}",
        chapters=chapters,
        footer="joymigrate profile coverage",
        data=document(coverage),
        closing=[closing(coverage)],
    )


def measure(coverage: Coverage) -> str:
    """What the bars show."""
    return tell("calls") if coverage.basis == "none" else tell("{basis} time", basis=coverage.basis)


def value(op: CoveredOperator, coverage: Coverage) -> float:
    """Time of an operator, or its calls where no time was recorded."""
    return float(op.calls) if coverage.basis == "none" else weight(op, coverage.basis)


def summary(coverage: Coverage) -> list[Block]:
    """Tiles of the shares, and a bar of time (or calls) by status."""
    share = coverage.share
    kept = sum(1 for op in coverage.ops if op.status.supported)
    items = [
        Tile(
            percent(share.ops),
            "of the operators",
            tell("{number} of {total}", number=kept, total=len(coverage.ops)),
        ),
        Tile(percent(share.calls), "of the calls", f"{sum(op.calls for op in coverage.ops):,}"),
    ]
    if share.time is not None:
        total = sum(weight(op, coverage.basis) for op in coverage.ops) + coverage.unattributed_us
        items.append(
            Tile(
                percent(share.time),
                tell("of {basis} time", basis=coverage.basis),
                f"{total / 1e3:,.1f} ms",
            )
        )
    if coverage.unattributed_us:
        items.append(
            Tile(
                f"{coverage.unattributed_us / 1e3:,.1f} ms",
                "of device time is unattributed",
                tell("counted as not on the chip"),
                "report",
            )
        )
    parts = [
        BarPart(
            sum(value(op, coverage) for op in coverage.ops if op.status is status),
            status.value,
            TONES[status],
        )
        for status in SupportStatus
        if coverage.count(status)
    ]
    if coverage.unattributed_us:
        parts.append(BarPart(coverage.unattributed_us, "unattributed", "report"))
    unit = "calls" if coverage.basis == "none" else "µs"
    words = tell("{measure} by status, {unit}.", measure=measure(coverage).capitalize(), unit=unit)
    found: list[Block] = [TileRow(items), Paragraph(words), StackedBar(parts)]
    ways = attribution_lines(coverage)
    return [*found, Listing(ways)] if ways else found


def chart(ops: Sequence[CoveredOperator], coverage: Coverage) -> Html:
    """Bars with names and figures; the colour is the status."""
    rows = [
        Bar(
            shorten(op.name),
            [(f"{TONES[op.status]}-fill", value(op, coverage))],
            f"{value(op, coverage):,.0f} {tell(op.status.value)}",
        )
        for op in ops
    ]
    unit = "calls" if coverage.basis == "none" else "µs"
    half = -(-len(rows) // 2)
    columns = [rows[:half], rows[half:]] if half > SIDE else [rows]
    most = max((value(op, coverage) for op in ops), default=0)
    return beside(
        *(
            bars(part, f"longest-{number}", measure(coverage), unit, [], most=most)
            for number, part in enumerate(columns)
        )
    )


def shorten(name: str, limit: int = 40) -> str:
    """A name that fits beside its bar."""
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def gap_table(ops: Sequence[CoveredOperator], coverage: Coverage) -> TableBlock:
    """Everything that is known about the operators that do not stay on the chip."""
    head = ("Operator", "Status", "Calls", "µs", "Dtypes", "Where", "Why and what instead")
    rows = [
        (
            Code(shorten(op.name, 60)),
            Badge(op.status.value, TONES[op.status]),
            op.calls,
            Amount(f"{weight(op, coverage.basis):,.1f}", weight(op, coverage.basis)),
            " ".join(op.dtypes),
            CellStack([site.where for site in op.sites[:5]]),
            reason(op, coverage),
        )
        for op in ops
    ]
    return TableBlock(head, rows)


def reason(op: CoveredOperator, coverage: Coverage) -> CellStack:
    """Why an operator does not stay, what to use instead, and where that is known from."""
    instead = f"{tell('Instead:')} {tell(op.alternative)}" if op.alternative else ""
    source = "" if op.source == f"not in {coverage.source}" else op.source
    return CellStack([one for one in (op.note, instead, source) if one])


def rest_table(ops: Sequence[CoveredOperator], coverage: Coverage) -> TableBlock:
    """The operators that stay."""
    head = ("Operator", "Status", "Calls", "µs", "Dtypes", "Note")
    rows = [
        (
            Code(op.name),
            Badge(op.status.value, TONES[op.status]),
            op.calls,
            Amount(f"{weight(op, coverage.basis):,.1f}", weight(op, coverage.basis)),
            " ".join(op.dtypes),
            op.note,
        )
        for op in ops
    ]
    return TableBlock(head, rows, first=FIRST)


def loose_table(coverage: Coverage) -> list[Block]:
    """Device work that is not known to belong to an operator, the longest first."""
    rows = [
        (
            Code(shorten(one.name, 60)),
            REASONS[one.reason],
            one.calls,
            Amount(f"{one.device_us:,.1f}", one.device_us),
        )
        for one in coverage.loose[:LOOSE]
    ]
    more = len(coverage.loose) - len(rows)
    found: list[Block] = [TableBlock(("Kernel", "Reason", "Calls", "µs"), rows, first=FIRST)]
    if more > 0:
        found.append(Paragraph(tell("… and {number} more", number=more)))
    return found


def phase_table(coverage: Coverage) -> list[Block]:
    """Which phases of the program were seen, and how: numbers of distinct operators."""
    head = ("Phase", "Seen", "Operators, exactly", "Operators, by name", "Not on the chip")
    rows, unseen = [], []
    for name, phase in coverage.phases.items():
        if phase.exact + phase.by_name:
            rows.append((tell(name), tell(phase.seen), phase.exact, phase.by_name, phase.gaps))
        else:
            unseen.append(tell("{phase} {seen}", phase=tell(name), seen=tell(phase.seen)))
    found: list[Block] = [TableBlock(head, rows)] if rows else []
    return [*found, Paragraph(", ".join(unseen))] if unseen else found


def attribution_lines(coverage: Coverage) -> list[str]:
    """What has to be installed beside the chip's package, and how owners of kernels were found."""
    lines = [
        tell("needs {package} beside {chip}: {number} operators, {us} us", package=name,
             chip=coverage.chip, number=count, us=f"{us:,.0f}")
        for name, (count, us) in coverage.packages().items()
    ]  # fmt: skip
    if coverage.device_us:
        lines.append(sum_line(coverage))
    for how, us in coverage.found_by.items():
        words = "{us} us of device time belong to operators by {how}; {kept} us stay on the chip."
        if how == NAME:
            words = "{us} us of device time are known by kernels' names alone, which is no yes."
        kept = coverage.evidence[how].kept_us if how in coverage.evidence else 0.0
        lines.append(tell(words, us=f"{us:,.0f}", how=tell(how), kept=f"{kept:,.0f}"))
    return lines


def sum_line(coverage: Coverage) -> str:
    """What all device time is made of."""
    parts = {
        name: getattr(coverage, f"{name}_us") for name in ("device", "owned", "by_name", "loose")
    }
    words = "device time: {device} us = {owned} of operators + {by_name} by name + {loose} loose"
    return tell(words, **{name: f"{us:,.1f}" for name, us in parts.items()})


def percent(share: float) -> str:
    """A share from 0 to 1 as text; what is not all never reads as 100 %."""
    return f"{100 * share:.1f} %" if share == 1.0 else f"{min(100 * share, 99.9):.1f} %"


def closing(coverage: Coverage) -> str:
    """The last line."""
    parts = [
        tell(words, number=coverage.count(status))
        for status, words in (
            (SupportStatus.CPU_FALLBACK, "{number} on the CPU"),
            (SupportStatus.MISSING, "{number} missing"),
            (SupportStatus.UNKNOWN, "{number} unknown"),
        )
        if coverage.count(status)
    ]
    number = len(coverage.ops)
    kept = "all stay on the chip" if number else "nothing is known to stay on the chip"
    said = mark("list").join(parts) if parts else tell(kept)
    return tell(
        "Judged {operators} for {chip} {version}: {said}.",
        operators=tell("{number} operator{number_s}", number=number),
        chip=coverage.chip,
        version=coverage.version,
        said=said,
    )
