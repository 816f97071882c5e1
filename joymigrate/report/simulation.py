"""The page of `serve simulate --plot`: how long a rollback takes, and how often it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from joymigrate.report.blocks import BlockDocument, Chapter, Picture, PictureRow
from joymigrate.report.html.plots import Curve, PlotStyle, lines

if TYPE_CHECKING:
    from joymigrate.run.serve.gateway.simulate import Delays

QUANTILES = (("median", 0.5), ("99 %", 0.99))


def describe(found: Mapping[str, Sequence[Delays]], horizon: int) -> BlockDocument:
    """Two plots over the standby's true failure rate, per rule. `horizon` is in requests."""
    within = f"Rolled back within {horizon:,} requests"
    plots = PictureRow(
        [
            plot(waiting(found), "Standby requests until the rollback", "requests", log=True),
            plot(shares(found, horizon), within, "% of the runs"),
        ]
    )
    chapter = Chapter("curves", "Rollback by true failure rate", [plots])
    return BlockDocument("Rollout simulation", f"rules: {', '.join(found)}", [chapter])


def plot(curves: Sequence[Curve], caption: str, y_title: str, *, log: bool = False) -> Picture:
    """One plot over the failure rate, in decades."""
    style = PlotStyle(log=log, log_x=True, ground=True)
    return Picture(lines(curves, caption, "true failure rate (%)", y_title, style=style), caption)


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
