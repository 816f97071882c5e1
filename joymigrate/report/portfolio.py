"""A portfolio of repositories: its document, and its report of blocks."""

from __future__ import annotations

from typing import Any

from joymigrate import __version__
from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import Text
from joymigrate.model import Tier
from joymigrate.report.blocks import (
    Amount,
    Badge,
    Block,
    BlockDocument,
    Cell,
    CellBar,
    CellStack,
    Chapter,
    Fold,
    Listing,
    Paragraph,
    StackedBar,
    TableBlock,
    TileRow,
)
from joymigrate.report.fields import fields
from joymigrate.report.html.page import BarPart, Tile
from joymigrate.report.labels import Labels
from joymigrate.report.result import count_words
from joymigrate.rewrite import readiness
from joymigrate.rewrite.portfolio import Portfolio, RepositoryRow

SCHEMA = "joymigrate.portfolio/1"
TIERS = tuple(Tier)


def describe(portfolio: Portfolio, when: str = "") -> BlockDocument:
    """Figures, the suggested order, shared work, each manual list. `when` is the time it is made,
    as text for a page's footer."""
    say = Labels()
    known = grade_line(grades(portfolio), say.tell)
    chapters = [
        Chapter("summary", say("summary"), summary(portfolio, say)),
        Chapter("order", say("ranking"), ranking(portfolio, say), len(portfolio.rows)),
    ]
    if portfolio.shared:
        table = shared_work(portfolio, say)
        chapters.append(Chapter("shared", say("shared"), [table], len(portfolio.shared)))
    by_hand = [manual(row, say) for row in portfolio.rows if row.readiness.manual]
    if by_hand:
        chapters.append(Chapter("manual", say("manual"), by_hand, menu=say("menu_by_hand")))
    model = Listing(say.model(portfolio.model, portfolio=True))
    note = Paragraph(say("model_note"), note=True)
    chapters.append(Chapter("model", say("model"), [note, model]))
    return BlockDocument(
        title=say("portfolio_title"),
        subtitle=f"{len(portfolio.rows)} {say('repositories')} · {known}",
        chapters=chapters,
        footer=say("written", when=when, version=__version__),
        closing=[last_line(portfolio, say)],
    )


def summary(portfolio: Portfolio, say: Labels) -> list[Block]:
    """The figures of all repositories together."""
    totals = {t: sum(row.readiness.tiers[t] for row in portfolio.rows) for t in TIERS}
    blockers = sum(one.blocker for one in portfolio.shared)
    figures = [
        Tile(share(portfolio.automatic), say("automatic"), "", "safe"),
        Tile(f"{sum(totals.values()):,}", say("sites")),
        Tile(f"{totals[Tier.REPORT]:,}", say("by_hand"), "", "report"),
        Tile(f"{len(portfolio.shared):,}", say("shared"), f"{blockers} {say('blockers')}"),
        Tile(say.duration(portfolio.minutes), say("effort"), say("estimate")),
    ]
    parts = [BarPart(totals[tier], say(tier.value), tier.value) for tier in TIERS]
    return [TileRow(figures), StackedBar(parts)]


def ranking(portfolio: Portfolio, say: Labels) -> list[Block]:
    """The repositories in the suggested order."""
    rows: list[list[Cell]] = [
        [
            number,
            row.repository.name,
            row.to,
            Amount(share(row.readiness.automatic), round(row.readiness.automatic or 0, 4)),
            row.readiness.sites,
            row.readiness.tiers[Tier.REPORT],
            CellBar([BarPart(row.readiness.tiers[t], say(t.value), t.value) for t in TIERS]),
            duration(row.minutes, say),
            duration(row.alone, say),
        ]
        for number, row in enumerate(portfolio.rows, 1)
    ]
    head = [
        say("order"), say("repository"), say("chip"), say("automatic"), say("sites"),
        say("by_hand"), "", say("effort"), say("alone"),
    ]  # fmt: skip
    return [Paragraph(say("ranking_note"), note=True), TableBlock(head, rows)]


def shared_work(portfolio: Portfolio, say: Labels) -> TableBlock:
    """Work by hand that several repositories have; solving it once helps them all."""
    rows: list[list[Cell]] = []
    for one in portfolio.shared:
        what: Cell = say.tell(one.title)
        if one.blocker:
            what = CellStack([what, Badge(say("blocker"), "report")])
        where = ", ".join(one.repositories)
        rows.append([one.rule, what, where, one.sites, duration(one.minutes, say)])
    head = [say("rule"), say("what"), say("in_repositories"), say("sites"), say("effort")]
    return TableBlock(head, rows)


def manual(row: RepositoryRow, say: Labels) -> Fold:
    """One repository's work by hand."""
    rows: list[list[Cell]] = [
        [one.rule, say.tell(one.title), say.area(one.area), one.sites, one.files,
         duration(one.minutes, say)]
        for one in row.readiness.manual
    ]  # fmt: skip
    head = [say("rule"), say("what"), say("area"), say("sites"), say("files"), say("effort")]
    minutes = say.duration(row.readiness.tier_minutes[Tier.REPORT])
    return Fold(f"{row.repository.name}: {minutes}", [TableBlock(head, rows)])


def duration(minutes: float, say: Labels) -> Amount:
    """Minutes as people say them."""
    return Amount(say.duration(minutes), round(minutes, 2))


def grades(portfolio: Portfolio) -> dict[str, int]:
    """How well what is said of the chip is known: by documents alone, a statement a site."""
    return count_grades("documented" for row in portfolio.rows for _ in range(row.readiness.sites))


def share(value: float | None) -> str:
    """A share in percent; a dash where there is nothing to share."""
    return "-" if value is None else f"{value:.0%}"


def last_line(portfolio: Portfolio, say: Labels) -> str:
    """The closing line."""
    sites = sum(row.readiness.sites for row in portfolio.rows)
    number = len(portfolio.rows)
    repositories = "{number} repository" if number == 1 else "{number} repositories"
    return say.tell(
        "Found {sites} in {repositories} ({share} automatic, {effort} of work).",
        sites=count_words(sites, "site", say.tell),
        repositories=Text(repositories, number=number),
        share=share(portfolio.automatic),
        effort=say.duration(portfolio.minutes),
    )


def document(portfolio: Portfolio) -> dict[str, Any]:
    """The portfolio as plain data; `repositories` are in the suggested order."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "repositories": [row_document(number, row) for number, row in enumerate(portfolio.rows, 1)],
        "shared": [
            fields(one, "rule name title repositories sites minutes:1 blocker")
            for one in portfolio.shared
        ],
        "summary": {
            "sites": sum(row.readiness.sites for row in portfolio.rows),
            "automatic": readiness.rounded_share(portfolio.automatic),
            "minutes": round(portfolio.minutes, 1),
        },
        "grades": grades(portfolio),
        "model": portfolio.model.document(),
    }


def row_document(number: int, row: RepositoryRow) -> dict[str, Any]:
    """One repository with its summary."""
    return {
        "order": number,
        **fields(row, "name=repository.name path=repository.path to minutes:1"),
        **fields(row, "minutes_alone=alone:1"),
        "readiness": readiness.document(row.readiness),
    }
