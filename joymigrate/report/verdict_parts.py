"""A part that only some verdicts have: figures in two columns, then tables, in three forms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from joymigrate.language import pad, tell
from joymigrate.report.html import page
from joymigrate.report.html.page import Html, Section

MARKUP = re.compile(r"([\\|*_`\[\]<>#~])")


@dataclass(frozen=True, slots=True)
class VerdictTable:
    """One table below the figures; `right` are its columns of numbers. Without a title it stands
    in the section of the figures."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    anchor: str = ""


class VerdictPart:
    """One object of the document. A part with other forms than these says so itself."""

    KEY: ClassVar[str] = ""  # of the document, and the section's anchor
    TITLE: ClassVar[str] = ""
    WIDTH: ClassVar[int] = 40  # of the first column on a terminal

    __slots__ = ()

    def rows(self) -> Iterable[tuple[str, str]]:
        """(what, figures)."""
        return ()

    def tables(self) -> Sequence[VerdictTable]:
        """What follows the figures."""
        return ()

    def pictures(self) -> Sequence[Html]:
        """Plots beside the figures, on the page alone."""
        return ()

    def text(self) -> list[str]:
        """Lines for the terminal: two columns."""
        return [f"{pad(tell(name), self.WIDTH)} {tell(value)}" for name, value in self.rows()]

    def markdown(self) -> list[str]:
        """Lines of Markdown."""
        lines = ["## " + tell(self.TITLE), "", *table(["", ""], list(self.rows())), ""]
        for one in self.tables():
            lines += ["### " + tell(one.title), ""] if one.title else []
            lines += [*table(one.head, one.rows), ""]
        return lines

    def sections(self) -> list[Section]:
        """Sections of the page."""
        body = [page.table(["", ""], self.rows()), *self.pictures()]
        body += [self.drawn(one) for one in self.tables() if not one.title]
        found = [Section(self.KEY, self.TITLE, Html("".join(body)))]
        for one in self.tables():
            if one.title:
                anchor = one.anchor or one.title.lower().replace(" ", "-")
                found.append(Section(anchor, one.title, self.drawn(one), len(one.rows)))
        return found

    def drawn(self, one: VerdictTable) -> Html:
        """A table of the page."""
        return page.table(one.head, one.rows, right=one.right)


def escape(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    said = tell(text) if isinstance(text, str) else str(text)
    return MARKUP.sub(r"\\\1", " ".join(said.split()))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A table; cells are escaped."""
    lines = ["| " + " | ".join(map(escape, head)) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(escape, row)) + " |" for row in rows]
