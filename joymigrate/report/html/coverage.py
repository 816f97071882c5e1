"""The page of a coverage: shares, time by status, the longest operators, every gap."""

from __future__ import annotations

from collections.abc import Sequence

from joymigrate.evidence import grade_line
from joymigrate.language import current_language, tell
from joymigrate.profile.attribute import REASONS
from joymigrate.profile.coverage import LOOSE, Coverage, Covered, weight
from joymigrate.profile.support import Status
from joymigrate.report.coverage import attribution_lines, document, percent, phase_lines
from joymigrate.report.html.page import (
    BarPart,
    Html,
    Page,
    Section,
    Tile,
    badge,
    bar,
    code,
    escape,
    figure,
    notes,
    table,
    tiles,
    translate,
)
from joymigrate.report.html.plots import Bar, bars, beside
from joymigrate.report.labels import Labels

TONES = {
    Status.NATIVE: "safe",
    Status.FUSED: "safe",
    Status.COMPOSITE: "plain",
    Status.CPU_FALLBACK: "unsafe",
    Status.MISSING: "report",
    Status.UNKNOWN: "report",
}
LONGEST = 25  # bars of the chart
SIDE = 6  # bars; more stand in two columns


def render(coverage: Coverage) -> str:
    """One HTML document."""
    gaps = coverage.gaps()
    sections = [Section("summary", "Summary", summary(coverage))]
    longest = sorted(coverage.ops, key=lambda op: -value(op, coverage))[:LONGEST]
    caption = tell(
        "The {number} operators with the most {measure}, by status.",
        number=len(longest),
        measure=measure(coverage),
    )
    sections.append(Section("longest", "Longest", figure(chart(longest, coverage), caption)))
    if gaps:
        sections.append(
            Section("gaps", "Not on the chip", gap_table(gaps, coverage), len(gaps), menu="Gaps")
        )
    rest = [op for op in coverage.ops if op.status.supported]
    sections.append(Section("supported", "On the chip", rest_table(rest, coverage), len(rest)))
    if coverage.unattributed_us:
        sections.append(
            Section("unattributed", "Unattributed", loose_table(coverage), len(coverage.loose))
        )
    if phase_lines(coverage):
        sections.append(Section("phases", "Phases", phase_table(coverage), len(coverage.phases)))
    known = grade_line(coverage.grades())
    if coverage.notes:
        sections.append(Section("notes", "Notes", notes(coverage.notes)))
    return Page(
        title=tell("Operators on {chip} {version}", chip=coverage.chip, version=coverage.version),
        subtitle=f"{', '.join(coverage.traces)} · {coverage.source} · {known}",
        sections=sections,
        say=Labels(current_language()),
        footer="joymigrate profile coverage",
        data=document(coverage),
    ).render()


def measure(coverage: Coverage) -> str:
    """What the bars show."""
    return tell("calls") if coverage.basis == "none" else tell("{basis} time", basis=coverage.basis)


def value(op: Covered, coverage: Coverage) -> float:
    """Time of an operator, or its calls where no time was recorded."""
    return float(op.calls) if coverage.basis == "none" else weight(op, coverage.basis)


def summary(coverage: Coverage) -> Html:
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
        for status in Status
        if coverage.count(status)
    ]
    if coverage.unattributed_us:
        parts.append(BarPart(coverage.unattributed_us, "unattributed", "report"))
    unit = "calls" if coverage.basis == "none" else "µs"
    words = tell("{measure} by status, {unit}.", measure=measure(coverage).capitalize(), unit=unit)
    said = Html(f'<p class="note">{escape(words)}</p>')
    ways = attribution_lines(coverage)
    return Html(tiles(items) + said + bar(parts, legend=True) + (notes(ways) if ways else ""))


def chart(ops: Sequence[Covered], coverage: Coverage) -> Html:
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


def gap_table(ops: Sequence[Covered], coverage: Coverage) -> Html:
    """Everything that is known about the operators that do not stay on the chip."""
    head = ("Operator", "Status", "Calls", "µs", "Dtypes", "Where", "Why and what instead")
    rows = [
        (
            code(f"`{shorten(op.name, 60)}`"),
            badge(op.status.value, TONES[op.status]),
            op.calls,
            (f"{weight(op, coverage.basis):,.1f}", f"{weight(op, coverage.basis):.3f}"),
            " ".join(op.dtypes),
            "\n".join(site.where for site in op.sites[:5]),
            reason(op),
        )
        for op in ops
    ]
    return table(head, rows, right=(2, 3))


def reason(op: Covered) -> Html:
    """Why an operator does not stay, what to use instead, and where that is known from."""
    parts = [
        translate(op.note),
        Html(f"<b>{translate('Instead:')}</b> {translate(op.alternative)}")
        if op.alternative
        else Html(""),
        Html(f"<small>{escape(op.source)}</small>") if op.source else Html(""),
    ]
    return Html("<br>".join(part for part in parts if part))


def rest_table(ops: Sequence[Covered], coverage: Coverage) -> Html:
    """The operators that stay."""
    head = ("Operator", "Status", "Calls", "µs", "Dtypes", "Note")
    rows = [
        (
            code(f"`{op.name}`"),
            badge(op.status.value, TONES[op.status]),
            op.calls,
            (f"{weight(op, coverage.basis):,.1f}", f"{weight(op, coverage.basis):.3f}"),
            " ".join(op.dtypes),
            op.note,
        )
        for op in ops
    ]
    return table(head, rows, right=(2, 3))


def loose_table(coverage: Coverage) -> Html:
    """Device work that is not known to belong to an operator, the longest first."""
    rows = [
        (
            code(f"`{shorten(one.name, 60)}`"),
            REASONS[one.reason],
            one.calls,
            (f"{one.device_us:,.1f}", f"{one.device_us:.3f}"),
        )
        for one in coverage.loose[:LOOSE]
    ]
    more = len(coverage.loose) - len(rows)
    rest = f'<p class="note">{escape(tell("… and {number} more", number=more))}</p>'
    found = table(("Kernel", "Reason", "Calls", "µs"), rows, right=(2, 3))
    return Html(found + rest if more > 0 else found)


def phase_table(coverage: Coverage) -> Html:
    """Which phases of the program were seen, and how: numbers of distinct operators."""
    head = ("Phase", "Seen", "Operators, exactly", "Operators, by name", "Not on the chip")
    rows = [
        (tell(name), tell(phase.seen), phase.exact, phase.by_name, phase.gaps)
        for name, phase in coverage.phases.items()
    ]
    return table(head, rows, right=(2, 3, 4))
