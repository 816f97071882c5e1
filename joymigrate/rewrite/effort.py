"""Minutes of work per site, by a stated model whose every figure can be changed.

The defaults are estimates, not measurements: set your own in `[tool.joymigrate.effort]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.model import Finding, Tier

MINUTES_PER_DAY = 8 * 60
ONE_BY_ONE = ("kernels",)  # areas whose sites look alike and are not
FIGURES = ("safe", "unsafe", "report", "repeat", "learned")


@dataclass(frozen=True, slots=True)
class EffortModel:
    """What one site costs, in minutes; the most specific figure wins: rule, then area, then tier.

    safe: reading one automatic edit in the diff. unsafe: reviewing and testing one `--unsafe`
    edit. report: one site by hand; None takes the weight that its rule carries. repeat: the share
    of that price for a further site (see `minutes`). learned: the share for
    a rule that an earlier repository of a portfolio already solved.
    """

    safe: float = 0.2
    unsafe: float = 3.0
    report: float | None = None
    repeat: float = 0.25
    learned: float = 0.5
    areas: Mapping[str, float] = field(default_factory=dict)
    rules: Mapping[str, float] = field(default_factory=dict)

    def price(self, finding: Finding) -> float:
        """Minutes for the first such site in a file."""
        if finding.rule in self.rules:
            return self.rules[finding.rule]
        if finding.tier is Tier.SAFE:
            return self.safe
        if finding.area in self.areas:
            return self.areas[finding.area]
        if finding.tier is Tier.UNSAFE:
            return self.unsafe
        return finding.weight if self.report is None else self.report

    def minutes(self, findings: Iterable[Finding]) -> list[float]:
        """Minutes of every finding, in their order.

        A further site is one of the same rule in the same file, or with the same text in another:
        what became of a package or a variable once, becomes of it everywhere. Kernels are ported
        one by one, so equal text says nothing there. Safe edits are read one by one.
        """
        seen: set[tuple[str, str, str]] = set()
        costs = []
        for finding in findings:
            keys = {(finding.rule, "file", finding.path)}
            if finding.area not in ONE_BY_ONE:
                keys.add((finding.rule, "text", " ".join(finding.before.split())))
            again = finding.tier is not Tier.SAFE and not seen.isdisjoint(keys)
            costs.append(self.price(finding) * (self.repeat if again else 1.0))
            seen |= keys
        return costs

    def document(self) -> dict[str, Any]:
        """The model as plain data, for JSON."""
        figures = {name: getattr(self, name) for name in FIGURES}
        return {**figures, "areas": dict(self.areas), "rules": dict(self.rules)}


def from_settings(
    table: Mapping[str, Any], rules: Iterable[str], areas: Iterable[str]
) -> EffortModel:
    """The model of `[tool.joymigrate.effort]`: keys are the figures, areas and rule ids.

    An unknown key, or a value that is no number from 0, raises `JoyError`.
    """
    known_rules, known_areas = set(rules), set(areas)
    figures: dict[str, float] = {}
    by_area: dict[str, float] = {}
    by_rule: dict[str, float] = {}
    for key, value in table.items():
        where = f"[tool.joymigrate.effort] {key}"
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise JoyError(
                f"'{key}' must be minutes or a share from 0, got {value!r}",
                where=where,
                help="for example: JM200 = 45",
            )
        if key in FIGURES:
            figures[key] = float(value)
        elif key in known_areas:
            by_area[key] = float(value)
        elif key in known_rules:
            by_rule[key] = float(value)
        else:
            known = [*FIGURES, *sorted(known_areas), *sorted(known_rules)]
            raise JoyError(
                f"unknown key '{key}'.{did_you_mean(key, known)}",
                where=where,
                help=f"keys: {', '.join(FIGURES)}, an area ({', '.join(sorted(known_areas))}) "
                "or a rule id",
            )
    return EffortModel(**figures, areas=by_area, rules=by_rule)
