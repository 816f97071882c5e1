"""`scan --portfolio`: many repositories, ranked on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.cli._output import emit, talk
from joymigrate.cli._scanning import ScanView, configure, now, run
from joymigrate.language import Language, speaking

if TYPE_CHECKING:
    from joymigrate.rewrite.portfolio import Portfolio


def rank(file: Path, origin: str | None, overrides: dict[str, Any], view: ScanView) -> int:
    """Scan every repository of repos.yaml, show them in order; the number of sites."""
    from joymigrate.report import result
    from joymigrate.rewrite import portfolio

    effort = configure(file, overrides)["effort"]
    assessed = []
    for entry in portfolio.read(file):
        settings = configure(entry.path, {**overrides, "to": entry.to or overrides["to"]})
        found = result.build(run([entry.path], origin, settings, view.quiet), effort)
        assessed.append((entry, found.scan.to, found.readiness))
    show_portfolio(portfolio.rank(assessed, assessed[0][2].model), view)
    return sum(readiness.sites for _, _, readiness in assessed)


def show_portfolio(found: Portfolio, view: ScanView) -> None:
    """Render a portfolio where it belongs."""
    from joymigrate.report import json_, portfolio, renderers

    if view.format == "json":
        emit(json_.dumps(portfolio.document(found)), view.output)
    else:
        with speaking(Language(view.lang)):
            emit(renderers.render(portfolio.describe(found, now()), view.format), view.output)
    if view.output is not None and not view.quiet:
        talk([f"wrote {view.output}"])
