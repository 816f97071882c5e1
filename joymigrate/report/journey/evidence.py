"""Figures that know where they were read: a file of the journey, and the place in it.

A place is a JSON pointer (RFC 6901). A file of JSON lines counts as an array of its lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.language import Language, current_language
from joymigrate.report.html.page import Html, code, escape

JOURNEY = "journey.json"
PROVENANCE = "provenance.json"
FULL_BASELINES = ("original", "given")


@dataclass(frozen=True, slots=True)
class FigureForm:
    """How a value is shown: shown = `template` of value × `scale`."""

    template: str
    scale: float = 1.0

    def __call__(self, value: Any) -> str:
        """A number in this form; a text as it is; a dash for nothing."""
        if value is None:
            return "–"
        if isinstance(value, str | bool):
            return str(value)
        scaled = value * self.scale
        return self.template.format(scaled) if math.isfinite(scaled) else f"{scaled}"


COUNT = FigureForm("{:,.0f}")
PERCENT = FigureForm("{:.1f} %", 100)
FINE_PERCENT = FigureForm("{:.3f} %", 100)
POINTS = FigureForm("{:g} %")  # already in per cent
KIB = FigureForm("{:,.1f} KiB", 2**-10)
MIB = FigureForm("{:,.1f} MiB", 2**-20)
GIB = FigureForm("{:,.1f} GiB", 2**-30)
SECONDS = FigureForm("{:,.1f} s")
FINE_SECONDS = FigureForm("{:,.2f} s")
MILLISECONDS = FigureForm("{:,.2f} ms", 1e-3)  # of microseconds
RATE = FigureForm("{:,.2f}")
SIGNIFICANT = FigureForm("{:.3g}")
LOSS = FigureForm("{:.6g}")


@dataclass(frozen=True, slots=True)
class Figure:
    """A value as it is shown, and where it was read. Without a file it has no evidence."""

    value: Any
    text: str
    file: str = ""
    pointer: str = ""

    @property
    def many(self) -> bool:
        """Whether a noun beside it stands in the plural."""
        return bool(self.value != 1)


@dataclass(slots=True)
class JourneyFiles:
    """The files of one journey. `link` leads to their folder from where the page lies."""

    document: Mapping[str, Any]
    folder: Path | None = None  # None: nothing but the document itself
    link: str = ""
    _read: dict[str, Any] = field(default_factory=dict)

    def load(self, file: str) -> Any:
        """A JSON or JSON lines file; None where it is missing or no JSON."""
        if file == JOURNEY:
            return self.document
        if file not in self._read:
            self._read[file] = self._parse(file)
        return self._read[file]

    def _parse(self, file: str) -> Any:
        if self.folder is None:
            return None
        try:
            text = (self.folder / file).read_text(encoding="utf-8")
            if file.endswith(".jsonl"):
                return [json.loads(line) for line in text.splitlines() if line.strip()]
            return json.loads(text)
        except (OSError, ValueError):
            return None

    def at(self, file: str, pointer: str) -> Any:
        """The value at a place; None where there is none."""
        return follow(self.load(file), pointer)

    def figure(
        self, form: FigureForm | Callable[[Any], str], *places: tuple[str, str]
    ) -> Figure | None:
        """The value at the first place that has one, in a form; None where no place has."""
        for file, pointer in places:
            value = self.at(file, pointer)
            if value is not None:
                return Figure(value, form(value), file, pointer)
        return None

    def html(self, figure: Figure | None) -> Html:
        """A figure as a link to its evidence."""
        if figure is None:
            return Html("–")
        kind = "quote" if figure.text == figure.value else "figure"
        return self.anchor(figure.text, figure.file, figure.pointer, kind)

    def anchor(self, shown: str | Html, file: str, pointer: str = "", kind: str = "figure") -> Html:
        """Anything as a link to a file of the journey, or to a place in it. A `quote` is text,
        which needs no mark to be read."""
        if not file:
            return escape(shown)
        place = f"{file}#{pointer}" if pointer else file
        return Html(
            f'<a class="ev {kind}" href="{escape(self.link + place)}" title="{escape(place)}">'
            f"{escape(shown)}</a>"
        )

    def quote(self, file: str, pointer: str) -> Html:
        """A text of the evidence in the page's language, `code` as code, linked to its place."""
        text = self.at(file, pointer)
        if not text:
            return Html("")
        return self.anchor(code(self.file_text(str(text), file)), file, pointer, "quote")

    def file_text(self, text: str, file: str) -> str:
        """A text of a file in the page's language; as it is where no catalogue has it."""
        return Language(current_language(), self.at(file, "/texts"))(text)

    def file(self, name: str) -> Html:
        """The name of a file, as a link to it."""
        return Html(f'<a href="{escape(self.link + name)}">{escape(name)}</a>')


def follow(document: Any, pointer: str) -> Any:
    """The value at a JSON pointer; None where there is none."""
    for raw in pointer.split("/")[1:]:
        key = raw.replace("~1", "/").replace("~0", "~")
        try:
            document = document[int(key)] if isinstance(document, list) else document[key]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return document


def escape_key(key: str) -> str:
    """A key as one part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


@dataclass(frozen=True, slots=True)
class JourneyStep:
    """One step of the journey, with the evidence at hand."""

    evidence: JourneyFiles
    index: int

    @property
    def raw(self) -> Mapping[str, Any]:
        """The step as `journey.json` has it."""
        found: Mapping[str, Any] = self.evidence.document["journey"][self.index]
        return found

    @property
    def name(self) -> str:
        """`scan`, `rewrite`, …"""
        return str(self.raw["name"])

    def step_text(self, key: str) -> str:
        """A text of the step (`summary`, `help`) in the page's language."""
        return self.translate(str(self.raw[key] or "")).strip()

    def translate(self, text: str) -> str:
        """Any text of the journey in the page's language."""
        return self.evidence.file_text(text, JOURNEY)

    @property
    def doubtful(self) -> bool:
        """Done, and yet not as good as it should be: not decided, or against a lesser baseline."""
        if self.raw["status"] != "done":
            return False
        lesser = self.name == "baseline" and self.raw["figures"].get("of") not in FULL_BASELINES
        return lesser or self.raw["verdict"] in ("fail", "inconclusive")

    def place(self, *keys: str) -> tuple[str, str]:
        """A place in this step's part of `journey.json`."""
        return JOURNEY, "/".join(["", "journey", str(self.index), *map(escape_key, keys)])

    def own(self, form: FigureForm | Callable[[Any], str], *keys: str) -> Figure | None:
        """A figure of this step's part of `journey.json`."""
        return self.evidence.figure(form, self.place(*keys))

    def figure(
        self, form: FigureForm | Callable[[Any], str], name: str, file: str = "", pointer: str = ""
    ) -> Figure | None:
        """A figure from the evidence itself, where that says what the step noted; else as noted.

        They differ where a journey counts more than its last command saw."""
        own = self.place("figures", *name.split("/"))
        noted = self.evidence.at(*own)
        if file and noted in (None, self.evidence.at(file, pointer)):
            return self.evidence.figure(form, (file, pointer), own)
        return self.evidence.figure(form, own)


def steps(evidence: JourneyFiles) -> list[JourneyStep]:
    """All steps in their order."""
    return [JourneyStep(evidence, index) for index in range(len(evidence.document["journey"]))]


def real(value: Any) -> float:
    """A number of a JSON file, where "inf" and "nan" stand as texts; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except ValueError:
        return math.nan
