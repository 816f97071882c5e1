"""The frame of a picture: the plot, how to read it, its figures, and where they are from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from joymigrate.report.html import page
from joymigrate.report.html.page import Html, escape
from joymigrate.report.journey.evidence import Figure, JourneyFiles, JourneyStep
from joymigrate.report.journey_words import say

MOST_ROWS = 24  # of a table beside a plot; the evidence has them all
MOST_LISTED = 8  # rows of a list in the open; the page that it is from has them all
Cell = Figure | Html | str | None


@dataclass(frozen=True, slots=True)
class FigureTable:
    """The figures that a plot draws. Columns in `right` hold numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: Sequence[int] = ()

    def html(self, evidence: JourneyFiles) -> Html:
        """The rows, spread evenly where there are too many to show."""
        kept = spread(len(self.rows), MOST_ROWS)
        rows = [[cell(value, evidence) for value in self.rows[index]] for index in kept]
        made = page.table(self.head, rows, right=self.right)
        if len(kept) == len(self.rows):
            return made
        return Html(made + note(say("thinned")))


def cell(value: Cell, evidence: JourneyFiles) -> object:
    """A table cell; figures link to their evidence and sort by their value."""
    if isinstance(value, Figure):
        key = value.value if isinstance(value.value, int | float) else value.text
        return evidence.html(value), key
    return "–" if value is None else value


def spread(number: int, most: int) -> list[int]:
    """Indices of at most `most` of `number` things, the first and the last among them."""
    if number <= most:
        return list(range(number))
    return sorted({round(index * (number - 1) / (most - 1)) for index in range(most)})


def plot(
    title: str,
    make: Callable[[], Html],
    caption: str,
    table: FigureTable,
    sources: Sequence[str],
    evidence: JourneyFiles,
) -> Html:
    """A picture with its title, a sentence on how to read it, its figures and its sources."""
    figures = page.details(say("figures"), table.html(evidence))
    links = ", ".join(evidence.file(name) for name in sources)
    source = f'<p class="source">{escape(say("from"))} {links}</p>'
    return Html(
        f'<figure class="plotted"><h3>{escape(title)}</h3>{make()}'
        f"<figcaption>{escape(caption)}</figcaption>{figures}{source}</figure>"
    )


def note(text: str | Html) -> Html:
    """A remark."""
    return Html(f'<p class="note">{escape(text)}</p>')


def side_by_side(*figures: Html) -> Html:
    """Pictures beside one another where the screen is wide enough."""
    return Html(f'<div class="plots">{"".join(figures)}</div>') if figures else Html("")


def titled_table(
    step: JourneyStep,
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    right: tuple[int, ...] = (),
) -> Iterator[Html]:
    """A table with its title; nothing where there are no rows."""
    if rows:
        made = [[cell(value, step.evidence) for value in row] for row in rows]
        table = page.table(head, made, right=right)
        yield Html(f'<div class="listed"><h3>{escape(title)}</h3>{table}</div>')
