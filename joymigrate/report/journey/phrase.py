"""Sentences with figures in them, for a page, where figures are links, and for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joymigrate.language import Words
from joymigrate.report.html.page import Html, escape
from joymigrate.report.journey.evidence import Figure, JourneyFiles
from joymigrate.report.journey_words import say

WORDS = Words("sentences")  # `{name}` stands for a figure, `{name_s}` for its plural's s
VERDICTS = ("pass", "fail", "inconclusive")


@dataclass(frozen=True, slots=True)
class Phrase:
    """A sentence with its figures. `words` are fields that are no figures."""

    key: str
    figures: Mapping[str, Figure | None] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether every figure was found."""
        return all(one is not None for one in self.figures.values())

    def text(self) -> str:
        """Plain, for a terminal."""
        shown = {name: translate_figure(one).text for name, one in self.known_figures()}
        return tell(self.key).format(**shown, **self.plurals(), **self.words_in())

    def html(self, evidence: JourneyFiles) -> Html:
        """With every figure as a link to its evidence."""
        shown = {name: evidence.html(translate_figure(one)) for name, one in self.known_figures()}
        words = {name: escape(word) for name, word in self.words_in().items()}
        return Html(escape(tell(self.key)).format(**shown, **self.plurals(), **words))

    def words_in(self) -> dict[str, str]:
        """The words; one that is a key of ours in the reader's language."""
        return {
            name: tell(word).format(**self.words) if word in WORDS else word
            for name, word in self.words.items()
        }

    def known_figures(self) -> list[tuple[str, Figure]]:
        """The figures that were found."""
        return [(name, one) for name, one in self.figures.items() if one is not None]

    def plurals(self) -> dict[str, str]:
        """`{name_s}` and `{name_es}` beside every figure."""
        ends: dict[str, str] = {}
        for name, one in self.known_figures():
            ends[f"{name}_s"], ends[f"{name}_es"] = ("s", "es") if one.many else ("", "")
        return ends


def tell(key: str) -> str:
    """The template for `key`. An unknown key is our bug and raises KeyError."""
    return WORDS.template(key)


def translate_figure(figure: Figure) -> Figure:
    """A verdict in the reader's language; any other figure as it is."""
    if figure.value not in VERDICTS:
        return figure
    if figure.pointer.endswith("/held/limit"):  # the worst verdict that goes on
        text = tell(f"worst_{figure.value}")
        return Figure(figure.value, text, figure.file, figure.pointer)
    return Figure(figure.value, say(figure.value), figure.file, figure.pointer)
