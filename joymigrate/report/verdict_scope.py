"""What a verdict covers of the program, and what it leaves out, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joymigrate.language import Text, tell
from joymigrate.report.blocks import Chapter, TableBlock
from joymigrate.report.verdict_parts import VerdictPart

NAMES = {
    "steps": "steps",
    "run": "steps of the whole run",
    "printed": "printed numbers",
    "files": "files",
    "modes": "modes of model calls",
    "calls": "tensors in recorded steps",
    "processes": "processes",
    "inputs": "computed inputs of models",
    "loss": "losses",
    "gradients": "gradients before the update",
    "state": "state after the update",
    "outputs": "results",
    "samples": "pairs of samples",
    "update": "updates (settings)",
}


@dataclass(frozen=True, slots=True)
class VerdictScope(VerdictPart):
    """The objects `covered` and `uncovered` of a verdict."""

    covered: Mapping[str, Mapping[str, int]]
    uncovered: Sequence[Mapping[str, Any]]

    def shares(self) -> Iterator[tuple[str, Text]]:
        """(what, `3 of 412`) of every part that the program has."""
        for name, part in self.covered.items():
            if part["of"]:
                share = Text("{number} of {total}", number=part["compared"], total=part["of"])
                yield NAMES.get(name, name), share

    def left(self) -> Iterator[tuple[str, int, Any]]:
        """(what, how many, why) of what was not looked at."""
        for item in self.uncovered:
            yield NAMES.get(item["what"], item["what"]), int(item["count"]), item["reason"]

    def text(self) -> list[str]:
        """Lines for the terminal."""
        parts = ", ".join(f"{tell(what)} {tell(share)}" for what, share in self.shares())
        lines = [tell("covered: {parts}", parts=parts)] if parts else []
        for what, count, why in self.left():
            line = tell("not covered: {what} ({count}): {why}", what=tell(what), count=count,
                        why=tell(why))  # fmt: skip
            lines.append(line)
        return lines

    def chapters(self) -> list[Chapter]:
        """What was compared, and what was not."""
        table = TableBlock(["what", "compared"], list(self.shares()))
        made = [Chapter("covered", "What this verdict covers", [table])]
        left = list(self.left())
        if left:
            table = TableBlock(["what", "number", "why"], left)
            made.append(Chapter("uncovered", "Not covered", [table], len(left)))
        return made
