"""The simulation's curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.gateway.simulate import Delays

SUFFIXES = (".svg", ".png", ".pdf")


def draw(found: Mapping[str, Sequence[Delays]], path: Path) -> None:
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
        rates = [row.rate * 100 for row in rows if row.rate]
        kept = [row for row in rows if row.rate]
        drawn = [
            (x, row.quantile(0.5), row.quantile(0.99)) for x, row in zip(rates, kept, strict=True)
        ]
        line = delay.plot([x for x, m, _ in drawn if m], [m for _, m, _ in drawn if m],
                          marker="o", markersize=3, label=f"{name}, median")[0]  # fmt: skip
        delay.plot([x for x, _, p in drawn if p], [p for _, _, p in drawn if p],
                   linestyle=":", color=line.get_color(), label=f"{name}, 99 %")  # fmt: skip
        share.plot(rates, [row.share * 100 for row in kept], marker="o", markersize=3, label=name)
    for axes, title, y in (
        (delay, "Standby requests until the rollback", "requests"),
        (share, "Rolled back within the horizon", "% of the runs"),
    ):
        axes.set(title=title, xlabel="true failure rate (%)", ylabel=y, xscale="log")
        axes.axvline(0.1, color="0.6", linewidth=0.8, linestyle="--")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    delay.set_yscale("log")
    figure.savefig(path)
    pyplot.close(figure)
