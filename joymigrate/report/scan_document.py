"""A scan as one document that a lead can forward: summary first, every finding behind filters.

Markdown is a comment on a pull request: the summary, the heaviest work, a folded part a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from joymigrate import __version__
from joymigrate.language import bracket, traits
from joymigrate.model import Finding, Tier
from joymigrate.report.blocks import (
    Amount,
    Block,
    BlockDocument,
    Cell,
    CellBar,
    CellFold,
    CellStack,
    Chapter,
    Code,
    CodeRow,
    FilterLink,
    Fold,
    Listing,
    Paragraph,
    Preformatted,
    Scripted,
    StackedBar,
    TableBlock,
    TileRow,
)
from joymigrate.report.changes import hunks
from joymigrate.report.html.page import BarPart, Html, Tile, checks, choice, escape, filters, search
from joymigrate.report.labels import Labels
from joymigrate.report.result import ScanResult, count_words
from joymigrate.rewrite.readiness import Readiness, RuleEffort

TIERS = tuple(Tier)
MOST = 60_000  # characters of Markdown; GitHub refuses a comment of more than 65,536
LONGEST_LINE = 400  # minified sources have lines of megabytes
MOST_LINES = 12
SCRIPT_WORDS = ("safe", "unsafe", "report", "cell", "more", "shown", "no_match")


def describe(result: ScanResult, when: str = "") -> BlockDocument:
    """The whole of it, in the language that is spoken; `when` is the time of the page."""
    say = Labels()
    scan, found = result.scan, result.readiness
    chapters = [Chapter("summary", say("summary"), summary(result, say))]
    if found.sites:
        heavy: list[Block] = [Paragraph(say("no_blockers"), note=True)]
        if found.blockers:
            table = work_table(result, found.blockers, say)
            heavy = [Paragraph(say("blockers_note"), note=True), table]
        count = len(found.blockers)
        chapters += [
            Chapter("blockers", say("blockers"), heavy, count, extra=True),
            Chapter("areas", say("areas"), [area_table(found, say)]),
        ]
        if found.manual:
            table = work_table(result, found.manual, say)
            menu = say("menu_by_hand")
            chapters.append(Chapter("manual", say("manual"), [table], len(found.manual), menu))
        note, lines = Paragraph(say("model_note"), note=True), Listing(say.model(found.model))
        chapters += [
            Chapter(
                "places", say("places"), [place_table(found, say)], None, say("menu_places"), True
            ),
            Chapter("findings", say("findings"), [list_findings(result, say)], found.sites),
            *kept_chapter(result, say),
            *loose_chapter(result, say),
            Chapter("model", say("model"), [note, lines], extra=True),
        ]
    else:
        chapters += loose_chapter(result, say)
    return BlockDocument(
        title=say("title_of", name=scan.root.resolve().name),
        subtitle=say("from_to", origin=scan.origin, to=scan.to, style=scan.style.value),
        chapters=chapters,
        footer=say("written", when=when, version=__version__),
        data=page_data(result, say) if scan.findings else {},
        scripts=("findings.js",) if scan.findings else (),
        closing=[result.last_line()],
    )


def summary(result: ScanResult, say: Labels) -> list[Block]:
    """The figures a lead asks for, one bar, and what they leave out."""
    found, scan = result.readiness, result.scan
    if not found.sites:
        return [Paragraph(f"{say('nothing')} {result.last_line()}")]
    read = f"{scan.scanned:,} {say('files_read')}"
    if scan.lines:
        read += f"{traits(say.lang).marks['clause']}{scan.lines:,} {say('lines')}"
    tiles = [
        Tile(f"{found.automatic or 0:.0%}", say("automatic"),
             f"{found.automatic_unsafe or 0:.0%} {say('automatic_unsafe')}", "safe"),
        Tile(f"{found.sites:,}", say("sites"),
             say("in_files", number=f"{found.files:,}", read=read)),
        Tile(f"{found.tiers[Tier.UNSAFE]:,}", say("unsafe"), say("with_review"), "unsafe"),
        Tile(f"{found.tiers[Tier.REPORT]:,}", say("by_hand"),
             say.duration(found.tier_minutes[Tier.REPORT]), "report"),
        Tile(say.duration(found.minutes), say("effort"), say("estimate")),
    ]  # fmt: skip
    left_out = [
        say("since", base=result.base) if result.base is not None else "",
        f"{result.known:,} {say('known')}" if result.known else "",
        f"{scan.suppressed:,} {say('suppressed')}" if scan.suppressed else "",
    ]
    remarks = ["; ".join(filter(None, left_out)), result.grades(say.tell)]
    notes = [Paragraph(line, note=True) for line in remarks if line]
    return [TileRow(tiles), StackedBar(tier_parts(found.tiers, say)), *notes]


def tier_parts(counts: Any, say: Labels) -> list[BarPart]:
    """Sites by who changes them."""
    return [BarPart(counts[tier], say(tier.value), tier.value) for tier in TIERS]


def duration(minutes: float, say: Labels) -> Amount:
    """Minutes as people say them."""
    return Amount(say.duration(minutes), round(minutes, 2))


def area_table(found: Readiness, say: Labels) -> TableBlock:
    """Sites per area with their bar and effort."""
    rows: list[list[Cell]] = [
        [say.area(area.name), area.sites, *(area.tiers[tier] for tier in TIERS),
         CellBar(tier_parts(area.tiers, say)), duration(area.minutes, say)]
        for area in found.areas
    ]  # fmt: skip
    head = [say("area"), say("sites"), say("safe"), say("unsafe"), say("by_hand"), "",
            say("effort")]  # fmt: skip
    return TableBlock(head, rows)


def work_table(result: ScanResult, items: Iterable[RuleEffort], say: Labels) -> TableBlock:
    """Work by hand, one row per rule, with its reason folded away."""
    rows: list[list[Cell]] = []
    for item in items:
        pieces = [f"{text} × {n:,}" if n > 1 else text for text, n in item.samples]
        what: list[Cell] = [item.title, *([CodeRow(pieces)] if pieces else ())]
        rule = result.rules.get(item.rule)
        if rule is not None and rule.why:
            what.append(CellFold(say("why"), " ".join(rule.why.split()), rule.reference or ""))
        rows.append(
            [FilterLink(item.rule), CellStack(what), say.area(item.area), item.sites, item.files,
             duration(item.minutes, say)]
        )  # fmt: skip
    head = [say("rule"), say("what"), say("area"), say("sites"), say("files"), say("effort")]
    return TableBlock(head, rows)


def place_table(found: Readiness, say: Labels) -> TableBlock:
    """The files with the most work."""
    rows: list[list[Cell]] = [
        [FilterLink(one.path, "text"), one.sites, one.by_hand, duration(one.minutes, say)]
        for one in found.places
    ]
    return TableBlock([say("file"), say("sites"), say("by_hand"), say("effort")], rows)


def list_findings(result: ScanResult, say: Labels) -> Scripted:
    """Filters and an empty list, which the script fills; elsewhere a folded part per file."""
    found = result.readiness
    rules = {item.rule: item.name for item in found.items}
    form = filters(
        checks("tier", say("tier"), [(t.value, say(t.value), t.value) for t in TIERS]),
        choice("area", say("area"),
               [("", say("all")), *((a.name, say.area(a.name)) for a in found.areas)]),
        choice("rule", say("rule"),
               [("", say("all")), *((r, f"{r} {name}") for r, name in rules.items())]),
        search("text", say("search")),
    )  # fmt: skip
    tools = (
        '<div class="tools"><output id="shown" aria-live="polite"></output>'
        f'<button type="button" id="expand">{escape(say("expand"))}</button>'
        f'<button type="button" id="collapse">{escape(say("collapse"))}</button></div>'
    )
    no_script = f"<noscript><p>{escape(say('no_script'))}</p></noscript>"
    page = Html(f'{form}{tools}<div id="files"></div>{no_script}')
    files = groupby(result.scan.findings, key=lambda finding: finding.path)
    return Scripted(page, [file_fold(result, path, list(group), say) for path, group in files])


def file_fold(result: ScanResult, path: str, findings: list[Finding], say: Labels) -> Fold:
    """The findings of one file."""
    title = f"{path}: {count_words(len(findings), 'site', say.tell)}"
    return Fold(title, [one for each in findings for one in finding_blocks(result, each, say)])


def finding_blocks(result: ScanResult, finding: Finding, say: Labels) -> Iterator[Block]:
    """One finding, with its difference below it."""
    cell = "" if finding.cell is None else f"{say('cell')} {finding.cell + 1}, "
    reason = bracket(finding.reason, say.tell) if finding.reason else ""
    tier = say(finding.tier.value) if finding.tier is not Tier.REPORT else say("by_hand")
    where = f"{cell}{say('line')} {finding.line}: {finding.rule} ({tier})"
    yield Listing([f"{where} {finding.message}{reason}"])
    changes = () if finding.tier is Tier.REPORT else hunks(finding, result.excerpts)
    lines = [
        f"{sign}{line}"
        for hunk in changes
        for sign, part in (("-", hunk.before), ("+", hunk.after))
        for line in part
    ]
    if lines:
        yield Preformatted("\n".join(lines), "diff")


def kept_chapter(result: ScanResult, say: Labels) -> Iterator[Chapter]:
    """Mentions of the origin that stay, when the user asked for them."""
    if result.show_kept and result.scan.kept:
        rows: list[list[Cell]] = [
            [f"{one.path}:{one.line}:{one.column}", one.kind, Code(one.text)]
            for one in result.scan.kept
        ]
        fold = Fold(f"{len(rows):,}", [TableBlock([say("path"), say("kind"), say("text")], rows)])
        yield Chapter("kept", say("kept"), [fold], len(rows))


def loose_chapter(result: ScanResult, say: Labels) -> Iterator[Chapter]:
    """Files that were not read, dead ignore comments and dead baseline entries."""
    scan = result.scan
    parts: list[Block] = []
    if scan.skipped:
        rows = [[one.path, one.reason] for one in scan.skipped]
        parts += [Paragraph(say("skipped")), TableBlock([say("path"), say("reason")], rows)]
    if scan.unused_ignores:
        ignores = [f"{path}:{line} {text}" for path, line, text in scan.unused_ignores]
        parts += [Paragraph(say("unused")), Listing(ignores)]
    if result.stale:
        entries = [f"{one.path}: {one.rule} {one.before}" for one in result.stale]
        parts += [Paragraph(say("stale")), Listing(entries)]
    if parts:
        number = len(scan.skipped) + len(scan.unused_ignores) + len(result.stale)
        yield Chapter("loose", say("loose_ends"), parts, number, extra=True)


def page_data(result: ScanResult, say: Labels) -> dict[str, Any]:
    """The findings for the script. The order of their fields is that of findings.js."""
    texts = TextTable()
    rules = TextTable()
    areas = TextTable()
    files = [
        {
            "path": path,
            "findings": [finding_data(result, one, texts, rules, areas) for one in group],
        }
        for path, group in groupby(result.scan.findings, key=lambda finding: finding.path)
    ]
    known = result.rules
    names = {item.rule: item.name for item in result.readiness.items}
    return {
        "files": files,
        "texts": texts.items,
        "rules": [
            {"id": rule, "name": names[rule], "title": known[rule].title if rule in known else ""}
            for rule in rules.items
        ],
        "areas": [{"id": area, "name": say.area(area)} for area in areas.items],
        "words": {key: say(key) for key in SCRIPT_WORDS},
        "total": len(result.scan.findings),
    }


class TextTable:
    """Texts that occur often, by number."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The number of `text`."""
        if text not in self.numbers:
            self.numbers[text] = len(self.items)
            self.items.append(text)
        return self.numbers[text]


def finding_data(
    result: ScanResult, finding: Finding, texts: TextTable, rules: TextTable, areas: TextTable
) -> list[Any]:
    """One finding as the list that findings.js reads."""
    changes = () if finding.tier is Tier.REPORT else hunks(finding, result.excerpts)
    lines = [] if changes else [text for _, text in result.excerpts.around(finding)]
    return [
        rules(finding.rule),
        TIERS.index(finding.tier),
        areas(finding.area),
        -1 if finding.cell is None else finding.cell,
        finding.line,
        finding.column,
        finding.end_line,
        finding.end_column,
        texts(finding.message),
        texts(finding.reason or ""),
        [[one.line, clip(one.before), clip(one.after)] for one in changes],
        clip(lines),
    ]


def clip(lines: Any) -> list[str]:
    """A few lines of bearable length."""
    return [line[:LONGEST_LINE] for line in lines[:MOST_LINES]]
