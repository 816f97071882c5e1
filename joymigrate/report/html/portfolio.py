"""A portfolio as one HTML page: figures, the suggested order, shared work, each manual list."""

from __future__ import annotations

from joymigrate import __version__
from joymigrate.evidence import grade_line
from joymigrate.model import Tier
from joymigrate.report.html.page import (
    BarPart,
    Html,
    Page,
    Section,
    Tile,
    badge,
    bar,
    code,
    details,
    escape,
    notes,
    table,
    tiles,
)
from joymigrate.report.labels import Labels
from joymigrate.report.portfolio import grades, share
from joymigrate.rewrite.portfolio import Portfolio, RepositoryRow

TIERS = tuple(Tier)


def render(portfolio: Portfolio, lang: str = "en", when: str = "") -> str:
    """The page. `when` is the time it is made, as text for its footer."""
    say = Labels(lang)
    sections = [
        Section("summary", say("summary"), summary(portfolio, say)),
        Section("order", say("ranking"), ranking(portfolio, say), len(portfolio.rows)),
    ]
    if portfolio.shared:
        body = shared_work(portfolio, say)
        sections.append(Section("shared", say("shared"), body, len(portfolio.shared)))
    by_hand = Html("".join(manual(row, say) for row in portfolio.rows if row.readiness.manual))
    if by_hand:
        sections.append(Section("manual", say("manual"), by_hand, menu=say("menu_by_hand")))
    lines = notes(say.model(portfolio.model, portfolio=True))
    model = Html(f'<p class="note">{escape(say("model_note"))}</p>{lines}')
    sections.append(Section("model", say("model"), model))
    return Page(
        title=say("portfolio_title"),
        subtitle=f"{len(portfolio.rows)} {say('repositories')} · "
        f"{grade_line(grades(portfolio), say.tell)}",
        sections=sections,
        say=say,
        footer=say("written", when=when, version=__version__),
    ).render()


def summary(portfolio: Portfolio, say: Labels) -> Html:
    """The figures of all repositories together."""
    totals = {t: sum(row.readiness.tiers[t] for row in portfolio.rows) for t in TIERS}
    blockers = sum(one.blocker for one in portfolio.shared)
    shown = tiles(
        [
            Tile(share(portfolio.automatic), say("automatic"), "", "safe"),
            Tile(f"{sum(totals.values()):,}", say("sites")),
            Tile(f"{totals[Tier.REPORT]:,}", say("by_hand"), "", "report"),
            Tile(f"{len(portfolio.shared):,}", say("shared"), f"{blockers} {say('blockers')}"),
            Tile(say.duration(portfolio.minutes), say("effort"), say("estimate")),
        ]
    )
    parts = [BarPart(totals[tier], say(tier.value), tier.value) for tier in TIERS]
    return Html(shown + bar(parts, legend=True))


def ranking(portfolio: Portfolio, say: Labels) -> Html:
    """The repositories in the suggested order."""
    rows = []
    for number, row in enumerate(portfolio.rows, 1):
        found = row.readiness
        parts = [BarPart(found.tiers[tier], say(tier.value), tier.value) for tier in TIERS]
        rows.append(
            [
                number,
                row.repository.name,
                row.to,
                (share(found.automatic), round(found.automatic or 0, 4)),
                found.sites,
                found.tiers[Tier.REPORT],
                bar(parts),
                (say.duration(row.minutes), round(row.minutes, 2)),
                (say.duration(row.alone), round(row.alone, 2)),
            ]
        )
    head = [
        say("order"), say("repository"), say("chip"), say("automatic"), say("sites"),
        say("by_hand"), "", say("effort"), say("alone"),
    ]  # fmt: skip
    note = f'<p class="note">{escape(say("ranking_note"))}</p>'
    return Html(note + table(head, rows, right=(0, 3, 4, 5, 7, 8)))


def shared_work(portfolio: Portfolio, say: Labels) -> Html:
    """Work by hand that several repositories have; solving it once helps them all."""
    rows = []
    for one in portfolio.shared:
        what: Html = code(say.tell(one.title))
        if one.blocker:
            what = Html(f"{what} {badge(say('blocker'), 'report')}")
        effort = (say.duration(one.minutes), round(one.minutes, 2))
        spread = (", ".join(one.repositories), len(one.repositories))
        rows.append([one.rule, what, spread, one.sites, effort])
    head = [say("rule"), say("what"), say("in_repositories"), say("sites"), say("effort")]
    return table(head, rows, right=(3, 4))


def manual(row: RepositoryRow, say: Labels) -> Html:
    """One repository's work by hand, folded."""
    rows = [
        [one.rule, code(say.tell(one.title)), say.area(one.area), one.sites, one.files,
         (say.duration(one.minutes), round(one.minutes, 2))]
        for one in row.readiness.manual
    ]  # fmt: skip
    head = [say("rule"), say("what"), say("area"), say("sites"), say("files"), say("effort")]
    minutes = say.duration(row.readiness.tier_minutes[Tier.REPORT])
    title = Html(f"<b>{escape(row.repository.name)}</b> <small>{escape(minutes)}</small>")
    return details(title, table(head, rows, right=(3, 4, 5)))
