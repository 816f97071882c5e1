"""The simulation's curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.serve.gateway.simulate import Delays

SUFFIXES = (".svg", ".png", ".pdf")


def draw(found: Mapping[str, Sequence[Delays]], path: Path, horizon: int) -> None:
    """Two panels: how long a rollback takes, and how often it happens, by the true rate."""
    if path.suffix not in SUFFIXES:
        raise JoyError(
            f"cannot draw a {path.suffix or 'file without suffix'}",
            where=str(path),
            help=f"name a file that ends in {', '.join(SUFFIXES)}",
        )
    try:
        import matplotlib
    except ImportError:
        raise JoyError(
            "drawing needs matplotlib", help="pip install 'joymigrate[report]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (delay, share) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, rows in found.items():
        kept = [row for row in rows if row.rate]
        rates = [(row.rate or 0.0) * 100 for row in kept]
        colour = None
        for label, style, quantile in (("median", "o-", 0.5), ("99 %", ":", 0.99)):
            reached = [(x, row.quantile(quantile)) for x, row in zip(rates, kept, strict=True)]
            points = [(x, requests) for x, requests in reached if requests]
            line = delay.plot(
                [x for x, _ in points],
                [y for _, y in points],
                style,
                markersize=3,
                color=colour,
                label=f"{name}, {label}",
            )[0]
            colour = line.get_color()
        within = [sum(d <= horizon for d in row.delays) / row.runs * 100 for row in kept]
        share.plot(rates, within, "o-", markersize=3, label=name)
    for axes, title, y in (
        (delay, "Standby requests until the rollback", "requests"),
        (share, f"Rolled back within {horizon:,} requests", "% of the runs"),
    ):
        axes.set(title=title, xlabel="true failure rate (%)", ylabel=y, xscale="log")
        axes.axvline(0.1, color="0.6", linewidth=0.8, linestyle="--")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    delay.set_yscale("log")
    share.set_ylim(-3, 103)
    figure.savefig(path)
    pyplot.close(figure)
