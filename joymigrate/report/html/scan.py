"""A scan as one HTML file that a lead can forward: summary first, every finding behind filters."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from joymigrate import __version__
from joymigrate.language import traits
from joymigrate.model import Finding, Tier
from joymigrate.report.changes import hunks
from joymigrate.report.html.page import (
    BarPart,
    Html,
    Page,
    Section,
    Tile,
    bar,
    checks,
    choice,
    code,
    details,
    escape,
    filters,
    notes,
    search,
    table,
    tiles,
)
from joymigrate.report.labels import Labels
from joymigrate.report.result import ScanResult
from joymigrate.rewrite.readiness import Readiness, RuleEffort

TIERS = tuple(Tier)


def render(result: ScanResult, lang: str = "en", when: str = "") -> str:
    """The page. `when` is the time it is made, as text for its footer."""
    say = Labels(lang)
    scan = result.scan
    subtitle = say("from_to", origin=scan.origin, to=scan.to, style=scan.style.value)
    return Page(
        title=say("title_of", name=scan.root.resolve().name),
        subtitle=subtitle,
        sections=[one for one in sections(result, say) if one is not None],
        say=say,
        footer=say("written", when=when, version=__version__),
        data=data_of(result, say) if scan.findings else {},
        scripts=("findings.js",) if scan.findings else (),
    ).render()


def sections(result: ScanResult, say: Labels) -> list[Section | None]:
    """All parts of the page, None for those with nothing to say."""
    found = result.readiness
    if not found.sites:
        empty = Html(f"<p>{escape(say('nothing'))} {escape(result.last_line())}</p>")
        return [Section("summary", say("summary"), empty), loose_ends(result, say)]
    return [
        Section("summary", say("summary"), summary(result, say)),
        Section("blockers", say("blockers"), blockers(result, say), len(found.blockers)),
        Section("areas", say("areas"), areas(found, say)),
        Section(
            "manual",
            say("manual"),
            work(result, found.manual, say),
            len(found.manual),
            say("menu_by_hand"),
        )
        if found.manual
        else None,
        Section("places", say("places"), places(found, say), menu=say("menu_places")),
        Section("findings", say("findings"), findings(result, say), found.sites),
        kept_section(result, say),
        loose_ends(result, say),
        Section("model", say("model"), model(found, say)),
    ]


def summary(result: ScanResult, say: Labels) -> Html:
    """The figures a lead asks for, and one bar."""
    found, scan = result.readiness, result.scan
    unsafe, by_hand = found.tiers[Tier.UNSAFE], found.tiers[Tier.REPORT]
    read = f"{scan.scanned:,} {say('files_read')}"
    if scan.lines:
        read += f"{traits(say.lang).marks['clause']}{scan.lines:,} {say('lines')}"
    shown = tiles(
        [
            Tile(f"{found.automatic or 0:.0%}", say("automatic"),
                 f"{found.automatic_unsafe or 0:.0%} {say('automatic_unsafe')}", "safe"),
            Tile(f"{found.sites:,}", say("sites"),
                 say("in_files", number=f"{found.files:,}", read=read)),
            Tile(f"{unsafe:,}", say("unsafe"), say("with_review"), "unsafe"),
            Tile(f"{by_hand:,}", say("by_hand"),
                 say.duration(found.tier_minutes[Tier.REPORT]), "report"),
            Tile(say.duration(found.minutes), say("effort"), say("estimate")),
        ]
    )  # fmt: skip
    parts = [BarPart(found.tiers[tier], say(tier.value), tier.value) for tier in TIERS]
    return Html(shown + bar(parts, legend=True) + remarks(result, say))


def remarks(result: ScanResult, say: Labels) -> str:
    """What the figures leave out: ignored, known and older sites; how well the rest is known."""
    lines = []
    if result.base is not None:
        lines.append(say("since", base=result.base))
    if result.known:
        lines.append(f"{result.known:,} {say('known')}")
    if result.scan.suppressed:
        lines.append(f"{result.scan.suppressed:,} {say('suppressed')}")
    shown = ["; ".join(lines), result.grades(say.tell)]
    return "".join(f'<p class="note">{escape(line)}</p>' for line in shown if line)


def blockers(result: ScanResult, say: Labels) -> Html:
    """Work whose single sites take an hour or more."""
    if not result.readiness.blockers:
        return Html(f"<p class=empty>{escape(say('no_blockers'))}</p>")
    note = f'<p class="note">{escape(say("blockers_note"))}</p>'
    return Html(note + work(result, result.readiness.blockers, say))


def areas(found: Readiness, say: Labels) -> Html:
    """Sites per area with their bar and effort."""
    rows = []
    for area in found.areas:
        parts = [BarPart(area.tiers[tier], say(tier.value), tier.value) for tier in TIERS]
        effort = (say.duration(area.minutes), round(area.minutes, 2))
        counts = [area.tiers[tier] for tier in TIERS]
        rows.append([say.area(area.name), area.sites, *counts, bar(parts), effort])
    head = [say("area"), say("sites"), say("safe"), say("unsafe"), say("by_hand"), "",
            say("effort")]  # fmt: skip
    return table(head, rows, right=(1, 2, 3, 4, 6))


def work(result: ScanResult, items: tuple[RuleEffort, ...], say: Labels) -> Html:
    """Work by hand, one row per rule, with its reason folded away."""
    rows = []
    for item in items:
        rule = result.rules.get(item.rule)
        link = Html(f'<a href="#findings" data-rule="{escape(item.rule)}">{escape(item.rule)}</a>')
        what = Html(code(item.title) + samples(item))
        if rule is not None and rule.why:
            reference = f"<p>{link_reference(rule.reference)}</p>" if rule.reference else ""
            body = Html(f"<p>{code(' '.join(rule.why.split()))}</p>{reference}")
            what = Html(what + details(say("why"), body))
        effort = (say.duration(item.minutes), round(item.minutes, 2))
        rows.append([link, what, say.area(item.area), item.sites, item.files, effort])
    head = [say("rule"), say("what"), say("area"), say("sites"), say("files"), say("effort")]
    return table(head, rows, right=(3, 4, 5))


def places(found: Readiness, say: Labels) -> Html:
    """The files with the most work."""
    rows = [
        [
            Html(f'<a class="path" href="#findings" data-text="{escape(one.path)}">'
                 f"{escape(one.path)}</a>"),
            one.sites,
            one.by_hand,
            (say.duration(one.minutes), round(one.minutes, 2)),
        ]
        for one in found.places
    ]  # fmt: skip
    head = [say("file"), say("sites"), say("by_hand"), say("effort")]
    return table(head, rows, right=(1, 2, 3))


def samples(item: RuleEffort) -> str:
    """The commonest texts of a rule's sites."""
    shown = "".join(
        f"<code>{escape(text)}</code>{f' × {number:,}' if number > 1 else ''} "
        for text, number in item.samples
    )
    return f'<div class="samples">{shown}</div>' if shown else ""


def link_reference(reference: str) -> Html:
    """A reference, as a link when it is an address."""
    if reference.startswith(("https://", "http://")) and " " not in reference.strip():
        return Html(f'<a href="{escape(reference)}" rel="noreferrer">{escape(reference)}</a>')
    return escape(reference)


def findings(result: ScanResult, say: Labels) -> Html:
    """Filters and an empty list, which the script fills."""
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
    return Html(f'{form}{tools}<div id="files"></div>{no_script}')


def kept_section(result: ScanResult, say: Labels) -> Section | None:
    """Mentions of the origin that stay, when the user asked for them."""
    if not result.show_kept or not result.scan.kept:
        return None
    rows = [
        [f"{one.path}:{one.line}:{one.column}", one.kind, Html(f"<code>{escape(one.text)}</code>")]
        for one in result.scan.kept
    ]
    body = table([say("path"), say("kind"), say("text")], rows)
    return Section("kept", say("kept"), details(f"{len(rows):,}", body), len(rows))


def loose_ends(result: ScanResult, say: Labels) -> Section | None:
    """Files that were not read, dead ignore comments and dead baseline entries."""
    scan, parts = result.scan, []
    if scan.skipped:
        rows = [[one.path, one.reason] for one in scan.skipped]
        shown = table([say("path"), say("reason")], rows)
        parts.append(Html(f"<h3>{escape(say('skipped'))}</h3>{shown}"))
    if scan.unused_ignores:
        lines = [f"{path}:{line} {text}" for path, line, text in scan.unused_ignores]
        parts.append(Html(f"<h3>{escape(say('unused'))}</h3>{notes(lines)}"))
    if result.stale:
        lines = [f"{one.path}: {one.rule} {one.before}" for one in result.stale]
        parts.append(Html(f"<h3>{escape(say('stale'))}</h3>{notes(lines)}"))
    if not parts:
        return None
    number = len(scan.skipped) + len(scan.unused_ignores) + len(result.stale)
    return Section("loose", say("loose_ends"), Html("".join(parts)), number)


def model(found: Readiness, say: Labels) -> Html:
    """How the effort was counted."""
    return Html(f'<p class="note">{escape(say("model_note"))}</p>{notes(say.model(found.model))}')


def data_of(result: ScanResult, say: Labels) -> dict[str, Any]:
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


SCRIPT_WORDS = ("safe", "unsafe", "report", "cell", "more", "shown", "no_match")


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


LONGEST_LINE = 400  # minified sources have lines of megabytes
MOST_LINES = 12


def clip(lines: Any) -> list[str]:
    """A few lines of bearable length."""
    return [line[:LONGEST_LINE] for line in lines[:MOST_LINES]]
