"""Which parts a verdict has: a task, a curve, text, weights, operators, what it covers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.report.verdict_curve import LossCurve
from joymigrate.report.verdict_generation import GenerationFigures
from joymigrate.report.verdict_operators import ReplayedOperatorTable
from joymigrate.report.verdict_parts import VerdictPart
from joymigrate.report.verdict_quantise import QuantisedFigures
from joymigrate.report.verdict_scope import VerdictScope
from joymigrate.report.verdict_task import TaskFigures

KINDS = (TaskFigures, LossCurve, GenerationFigures, QuantisedFigures, ReplayedOperatorTable)


def parts_of(document: Mapping[str, Any]) -> list[VerdictPart]:
    """The parts that this document has."""
    found: list[VerdictPart] = [
        kind(document[kind.KEY]) for kind in KINDS if document.get(kind.KEY)
    ]
    if document.get("covered"):
        found.append(VerdictScope(document["covered"], document.get("uncovered", ())))
    return found
