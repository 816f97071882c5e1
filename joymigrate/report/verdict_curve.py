"""The figures of a loss comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from joymigrate.language import Text
from joymigrate.report.blocks import Badge, Cell
from joymigrate.report.verdict_parts import VerdictPart
from joymigrate.report.verdict_words import TONES, figure


@dataclass(frozen=True, slots=True)
class LossCurve(VerdictPart):
    """The object `curve` of a verdict."""

    KEY: ClassVar[str] = "curve"
    TITLE: ClassVar[str] = "Curve"

    curve: Mapping[str, Any]

    def rows(self) -> Iterator[tuple[str, str]]:
        """(what, figures)."""
        curve = self.curve
        yield (
            "steps compared",
            Text(
                "{number} ({first} to {last})",
                number=f"{curve['n']:,}",
                first=f"{curve['first_step']:g}",
                last=f"{curve['last_step']:g}",
            ),
        )
        for name, one in curve["values"].items():
            yield (
                Text("{name}: mean relative error", name=name),
                Text(
                    "{mean} % (pass up to {passing} %, warn up to {warning} %)",
                    mean=f"{100 * one['mean_relative']:.3f}",
                    passing=f"{100 * curve['limit_pass']:g}",
                    warning=f"{100 * curve['limit_warn']:g}",
                )
                if isinstance(one["mean_relative"], int | float)
                else str(one["mean_relative"]),
            )
            yield (
                Text("{name}: largest", name=name),
                Text(
                    "{value} at step {step}",
                    value=figure(one["max_relative"]),
                    step=figure(one["max_step"]),
                ),
            )
            yield (
                Text("{name}: target above, below", name=name),
                Text(
                    "{above}, {below} (sign test p = {p})",
                    above=f"{one['above']:,}",
                    below=f"{one['below']:,}",
                    p=figure(one["p_sign"]),
                ),
            )
            if one.get("envelope") is not None:
                yield (
                    Text("{name}: beside the baseline's own spread", name=name),
                    Text(
                        "{ratio} times {spread}",
                        ratio=figure(one["envelope_ratio"]),
                        spread=figure(one["envelope"]),
                    ),
                )
        if curve.get("first_outside") is not None:
            yield "first step outside", f"{curve['first_outside']:g}"

    def judged(self) -> Iterator[tuple[str, Cell]]:
        """The verdict of each value."""
        for name, one in self.curve["values"].items():
            yield Text("{name}: verdict", name=name), Badge(one["verdict"], TONES[one["verdict"]])
