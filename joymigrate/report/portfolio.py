"""A portfolio of repositories as text, JSON and Markdown (HTML: html/portfolio.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from joymigrate import __version__
from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import Text, pad, width
from joymigrate.model import Tier
from joymigrate.report import json_
from joymigrate.report.blocks import Cell
from joymigrate.report.fields import fields
from joymigrate.report.labels import Labels
from joymigrate.report.renderers.markdown import draw_table, escape
from joymigrate.report.result import count_words
from joymigrate.rewrite import readiness
from joymigrate.rewrite.portfolio import Portfolio, RepositoryRow

SCHEMA = "joymigrate.portfolio/1"


def text(portfolio: Portfolio, lang: str = "en") -> str:
    """One line per repository in the suggested order, then the work they share."""
    say = Labels(lang)
    name = say.tell("repository")
    columns = max(width(name), *(width(row.repository.name) for row in portfolio.rows))
    heads = zip(("auto", "sites", "by hand"), (6, 8, 9), strict=True)
    titles = "".join(pad("", n - width(say.tell(one))) + say.tell(one) for one, n in heads)
    lines = [f"    {pad(name, columns)} {titles}  {say.tell('effort')}"]
    for number, row in enumerate(portfolio.rows, 1):
        found = row.readiness
        lines.append(
            f"{number:>3} {pad(row.repository.name, columns)}  {share(found.automatic):>5} "
            f"{found.sites:>7} {found.tiers[Tier.REPORT]:>8}  {effort(row, say)}"
        )
    if portfolio.shared:
        lines += ["", say.tell("Shared work by hand:")]
    lines += [
        say.tell(
            "  {rule} {title} ({repositories}; {sites} sites, {effort}; blocker)"
            if one.blocker
            else "  {rule} {title} ({repositories}; {sites} sites, {effort})",
            rule=one.rule,
            title=one.title,
            repositories=", ".join(one.repositories),
            sites=one.sites,
            effort=say.duration(one.minutes),
        )
        for one in portfolio.shared
    ]
    lines += ["", f"{say('model')}:"]
    lines += [f"  {line}" for line in say.model(portfolio.model, portfolio=True)]
    return (
        "\n".join([*lines, "", grade_line(grades(portfolio), say.tell), last_line(portfolio, say)])
        + "\n"
    )


def grades(portfolio: Portfolio) -> dict[str, int]:
    """How well what is said of the chip is known: by documents alone, a statement a site."""
    return count_grades("documented" for row in portfolio.rows for _ in range(row.readiness.sites))


def effort(row: RepositoryRow, say: Labels) -> str:
    """Effort at its turn, and alone where that differs."""
    now = say.duration(row.minutes)
    alone = say.duration(row.alone)
    return now if now == alone else f"{now} (alone {alone})"


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


def json(portfolio: Portfolio) -> str:
    """The contract `joymigrate.portfolio/1`."""
    return json_.dumps(document(portfolio))


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


def markdown(portfolio: Portfolio, lang: str = "en") -> str:
    """The portfolio as a Markdown page."""
    return "\n".join(markdown_lines(portfolio, Labels(lang))) + "\n"


def markdown_lines(portfolio: Portfolio, say: Labels) -> Iterator[str]:
    """Title, ranking, shared work, each repository's manual list, the model."""
    yield f"## {say('portfolio_title')}"
    yield ""
    head = ["", say("repository"), say("chip"), say("automatic"), say("sites"), say("by_hand")]
    rows: list[list[Cell]] = [
        [
            number,
            row.repository.name,
            row.to,
            share(row.readiness.automatic),
            row.readiness.sites,
            row.readiness.tiers[Tier.REPORT],
            effort(row, say),
        ]
        for number, row in enumerate(portfolio.rows, 1)
    ]
    yield from draw_table([*head, say("effort")], rows)
    yield ""
    if portfolio.shared:
        yield f"### {say('shared')}"
        yield ""
        head = [say("rule"), say("what"), say("in_repositories"), say("sites"), say("effort")]
        rows = [
            [one.rule, say.tell(one.title), ", ".join(one.repositories), one.sites,
             say.duration(one.minutes)]
            for one in portfolio.shared
        ]  # fmt: skip
        yield from draw_table(head, rows)
        yield ""
    for row in portfolio.rows:
        if row.readiness.manual:
            yield f"<details><summary>{escape(row.repository.name)}: {say('manual')}</summary>"
            yield ""
            head = [say("rule"), say("what"), say("sites"), say("files"), say("effort")]
            items: list[list[Cell]] = [
                [one.rule, say.tell(one.title), one.sites, one.files, say.duration(one.minutes)]
                for one in row.readiness.manual
            ]
            yield from draw_table(head, items)
            yield ""
            yield "</details>"
            yield ""
    yield f"{say('model')}:"
    yield ""
    yield from (f"- {line}" for line in say.model(portfolio.model, portfolio=True))
    yield ""
    yield grade_line(grades(portfolio), say.tell)
    yield ""
    yield last_line(portfolio, say)
