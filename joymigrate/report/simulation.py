"""The page of `serve simulate --plot`: how long a rollback takes, and how often it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from joymigrate.report.html.page import Html, Page, Section, figure
from joymigrate.report.html.plots import Curve, PlotStyle, beside, lines
from joymigrate.report.labels import Labels

if TYPE_CHECKING:
    from joymigrate.run.serve.gateway.simulate import Delays

QUANTILES = (("median", 0.5), ("99 %", 0.99))


def page(found: Mapping[str, Sequence[Delays]], horizon: int, lang: str = "en") -> str:
    """Two plots over the standby's true failure rate, per rule. `horizon` is in requests."""
    plots = beside(
        plot(waiting(found), "Standby requests until the rollback", "requests", log=True),
        plot(shares(found, horizon), f"Rolled back within {horizon:,} requests", "% of the runs"),
    )
    section = Section("curves", "Rollback by true failure rate", plots)
    rules = ", ".join(found)
    return Page("Rollout simulation", f"rules: {rules}", [section], Labels(lang)).render()


def plot(curves: Sequence[Curve], caption: str, y_title: str, *, log: bool = False) -> Html:
    """One plot over the failure rate, in decades."""
    style = PlotStyle(log=log, log_x=True, ground=True)
    return figure(lines(curves, caption, "true failure rate (%)", y_title, style=style), caption)


def waiting(found: Mapping[str, Sequence[Delays]]) -> list[Curve]:
    """Requests until the rollback; where a quantile is never reached the line ends."""
    return [
        Curve(
            f"{name}, {label}",
            [(row.rate * 100, row.quantile(share) or float("nan")) for row in rows if row.rate],
        )
        for name, rows in found.items()
        for label, share in QUANTILES
    ]


def shares(found: Mapping[str, Sequence[Delays]], horizon: int) -> list[Curve]:
    """The share of the runs that were rolled back in time, in percent."""
    return [
        Curve(
            name,
            [
                (row.rate * 100, sum(d <= horizon for d in row.delays) / row.runs * 100)
                for row in rows
                if row.rate
            ],
        )
        for name, rows in found.items()
    ]
