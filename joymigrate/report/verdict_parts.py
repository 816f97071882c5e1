"""The parts that only some verdicts have: the figures of a task, a curve, operators, generation,
quantisation.

A part shows one object of the document (`task`, `curve`, `operators`, `generation`, `quantise`) as
text lines, Markdown lines and HTML sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from joymigrate.report.html.page import Section


class VerdictPart(Protocol):
    """One object of the document, in three forms."""

    def text(self) -> list[str]:
        """Lines for the terminal."""

    def markdown(self) -> list[str]:
        """Lines of Markdown."""

    def sections(self) -> list[Section]:
        """Sections of the page."""


def of(document: Mapping[str, Any]) -> list[VerdictPart]:
    """The parts that this document has."""
    from joymigrate.report.verdict_curve import LossCurve
    from joymigrate.report.verdict_generation import Generation
    from joymigrate.report.verdict_operators import Operators
    from joymigrate.report.verdict_quantise import Quantised
    from joymigrate.report.verdict_scope import Scope
    from joymigrate.report.verdict_task import TaskFigures

    found: list[VerdictPart] = []
    if document.get("task"):
        found.append(TaskFigures(document["task"]))
    if document.get("curve"):
        found.append(LossCurve(document["curve"], document.get("growth", {})))
    if document.get("generation"):
        found.append(Generation(document["generation"]))
    if document.get("quantise"):
        found.append(Quantised(document["quantise"]))
    if document.get("operators"):
        found.append(Operators(document["operators"]))
    if document.get("covered"):
        found.append(Scope(document["covered"], document.get("uncovered", ())))
    return found
