"""The figures of a loss comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from joymigrate.report.html import page
from joymigrate.report.html.page import Section
from joymigrate.report.verdict_words import TONES, figure


@dataclass(frozen=True, slots=True)
class Curve:
    """The object `curve` of a verdict."""

    curve: Mapping[str, Any]
    growth: Mapping[str, Any]

    def rows(self) -> Iterator[tuple[str, str]]:
        """(what, figures)."""
        curve = self.curve
        yield (
            "steps compared",
            f"{curve['n']:,} ({curve['first_step']:g} to {curve['last_step']:g})",
        )
        for name, one in curve["values"].items():
            yield (
                f"{name}: mean relative error",
                f"{100 * one['mean_relative']:.3f} % (pass up to {100 * curve['limit_pass']:g} %, "
                f"warn up to {100 * curve['limit_warn']:g} %)"
                if isinstance(one["mean_relative"], int | float)
                else str(one["mean_relative"]),
            )
            yield (
                f"{name}: largest",
                f"{figure(one['max_relative'])} at step {figure(one['max_step'])}",
            )
            yield (
                f"{name}: target above, below",
                f"{one['above']:,}, {one['below']:,} (sign test p = {figure(one['p_sign'])})",
            )
            if one.get("envelope") is not None:
                yield (
                    f"{name}: beside the baseline's own spread",
                    f"{figure(one['envelope_ratio'])} times {figure(one['envelope'])}",
                )
        if curve.get("first_outside") is not None:
            yield "first step outside", f"{curve['first_outside']:g}"

    def text(self) -> list[str]:
        """Two columns."""
        return [f"{name:<40} {value}" for name, value in self.rows()]

    def markdown(self) -> list[str]:
        """A table."""
        from joymigrate.report.verdict_md import table

        return ["## Curve", "", *table(["", ""], [list(row) for row in self.rows()]), ""]

    def sections(self) -> list[Section]:
        """A table; the plots stand with the growth of the error."""
        rows: list[tuple[object, object]] = list(self.rows())
        for name, one in self.curve["values"].items():
            rows.append((f"{name}: verdict", page.badge(one["verdict"], TONES[one["verdict"]])))
        return [Section("curve", "Curve", page.table(["", ""], rows))]
