"""A part that only some verdicts have: figures in two columns, then tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from joymigrate.language import pad, tell
from joymigrate.report.blocks import Block, Cell, Chapter, Picture, TableBlock, facts


@dataclass(frozen=True, slots=True)
class VerdictTable:
    """One table below the figures. Without a title it stands in the chapter of the figures."""

    title: str
    table: TableBlock
    anchor: str = ""


class VerdictPart:
    """One object of the document. A part with other forms than these says so itself."""

    KEY: ClassVar[str] = ""  # of the document, and the chapter's anchor
    TITLE: ClassVar[str] = ""
    WIDTH: ClassVar[int] = 40  # of the first column on a terminal

    __slots__ = ()

    def rows(self) -> Iterable[tuple[str, str]]:
        """(what, figures)."""
        return ()

    def judged(self) -> Iterable[tuple[str, Cell]]:
        """(what, verdict) of the figures that have one of their own; not on the terminal."""
        return ()

    def tables(self) -> Sequence[VerdictTable]:
        """What follows the figures."""
        return ()

    def pictures(self) -> Sequence[Picture]:
        """Plots beside the figures."""
        return ()

    def text(self) -> list[str]:
        """Lines for the terminal: two columns."""
        return [f"{pad(tell(name), self.WIDTH)} {tell(value)}" for name, value in self.rows()]

    def chapters(self) -> list[Chapter]:
        """The figures, and each table with a title."""
        body: list[Block] = [facts([*self.rows(), *self.judged()]), *self.pictures()]
        body += [one.table for one in self.tables() if not one.title]
        found = [Chapter(self.KEY, self.TITLE, body)]
        for one in self.tables():
            if one.title:
                anchor = one.anchor or one.title.lower().replace(" ", "-")
                found.append(Chapter(anchor, one.title, [one.table], len(one.table.rows)))
        return found
