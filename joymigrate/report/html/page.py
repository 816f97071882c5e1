"""The frame of every HTML report: head, style, theme, navigation, sections, tables, bars, filters.

A page is one file: style and script are inlined, data travels as JSON in the page, and a content
security policy forbids any request. Text is escaped unless it is `Html`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from joymigrate.language import current_language, tell, traits
from joymigrate.report.labels import Labels

FOLDER = Path(__file__).parent
TONES = ("safe", "unsafe", "report", "plain")


class Html(str):
    """Text that is already markup."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page; `id` is its anchor, `menu` its name in the menu (default: `title`)."""

    id: str
    title: str
    body: Html
    count: int | None = None
    menu: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of a summary: a large value, what it is, and a line of detail."""

    value: str
    label: str
    note: str = ""
    tone: str = "plain"


@dataclass(frozen=True, slots=True)
class BarPart:
    """One part of a stacked bar."""

    value: float
    label: str
    tone: str


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report, in the language that is spoken. Scripts and styles are files beside this
    one; scripts find `data` as `JM.data`. A `live` page may ask the server it came from, and
    nobody else."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    footer: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    scripts: Sequence[str] = ()
    styles: Sequence[str] = ()
    live: bool = False

    def render(self) -> str:
        """The page as one HTML document."""
        style = "\n".join(asset(name) for name in ("page.css", *self.styles))
        script = "\n".join(asset(name) for name in ("page.js", *self.scripts))
        policy = (
            f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src 'sha256-{digest(script)}'" + ("; connect-src 'self'" if self.live else "")
        )
        return (
            f'<!doctype html>\n<html lang="{traits(current_language()).tag}">\n<head>\n'
            '<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{translate(self.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
            f'{self.header()}\n<main id="content">\n{self.body()}\n</main>\n'
            f"<footer>{escape(self.footer)}</footer>\n"
            f'<script type="application/json" id="jm-data">{json_in_html(self.data)}</script>\n'
            f"<script>{script}</script>\n</body>\n</html>\n"
        )

    def header(self) -> str:
        """Title and sticky menu."""
        say = Labels()
        return (
            f'<a class="skip" href="#content">{escape(say("skip_to"))}</a>\n'
            f"<header><h1>{translate(self.title)}</h1><p>{translate(self.subtitle)}</p></header>\n"
            f'<nav><div class="links">{links(self.sections)}</div>'
            f'<button type="button" id="theme" title="{escape(say("theme"))}" '
            f'aria-label="{escape(say("theme"))}">◐</button></nav>'
        )

    def body(self) -> str:
        """All sections."""
        return "\n".join(
            f'<section id="{escape(one.id)}">{inside(one)}\n</section>' for one in self.sections
        )


def links(sections: Iterable[Section]) -> Html:
    """The menu's links."""
    return Html(
        "".join(
            f'<a href="#{escape(one.id)}">{translate(one.menu or one.title)}{count_of(one)}</a>'
            for one in sections
        )
    )


def inside(section: Section) -> Html:
    """What a section holds: its title, then its body."""
    return Html(f"<h2>{translate(section.title)}{count_of(section)}</h2>\n{section.body}")


def count_of(section: Section) -> str:
    """The small number behind a section's title."""
    return "" if section.count is None else f' <span class="count">{section.count:,}</span>'


def escape(text: object) -> Html:
    """Text as markup that shows it; `Html` passes."""
    return text if isinstance(text, Html) else Html(html.escape(str(text)))


def translate(text: object) -> Html:
    """Text in the language that is spoken, as markup; `Html` passes."""
    return text if isinstance(text, Html) else escape(tell(text) if isinstance(text, str) else text)


def asset(name: str) -> str:
    """A style sheet or script that is inlined."""
    return (FOLDER / name).read_text(encoding="utf-8").strip()


def digest(script: str) -> str:
    """What the content security policy knows a script by."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def json_in_html(data: object) -> str:
    """JSON that no text inside can end: `</script>` and `<!--` lose their `<`."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # names that are not UTF-8


def tiles(items: Iterable[Tile]) -> Html:
    """A row of figures."""
    cells = "".join(
        f'<div class="tile {item.tone}"><b>{translate(item.value)}</b>'
        f"<span>{translate(item.label)}</span><small>{translate(item.note)}</small></div>"
        for item in items
    )
    return Html(f'<div class="tiles">{cells}</div>')


def bar(parts: Sequence[BarPart], *, legend: bool = False) -> Html:
    """A stacked bar. Its figures are in its label, and in the legend when asked for."""
    total = sum(part.value for part in parts) or 1
    label = ", ".join(f"{translate(part.label)} {part.value:,.0f}" for part in parts)
    pieces = "".join(
        f'<i class="{part.tone}" style="width:{100 * part.value / total:.2f}%" '
        f'title="{translate(part.label)} {part.value:,.0f}"></i>'
        for part in parts
        if part.value
    )
    found = f'<div class="bar" role="img" aria-label="{escape(label)}">{pieces}</div>'
    if legend:
        keys = "".join(
            f'<li><i class="{part.tone}"></i>{translate(part.label)} <b>{part.value:,.0f}</b> '
            f"<small>{part.value / total:.0%}</small></li>"
            for part in parts
        )
        found += f'<ul class="legend">{keys}</ul>'
    return Html(found)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[int] = (),
    keys: Sequence[str] = (),
) -> Html:
    """A table that sorts on a click on its head. Columns in `right` hold numbers.

    A cell that is a pair is (what to show, what to sort by). `keys` name the rows of a page that
    changes.
    """
    titles = "".join(
        f'<th scope="col"{" class=right" if index in right else ""}>'
        f'<button type="button">{translate(title)}</button></th>'
        for index, title in enumerate(head)
    )
    body = "".join(
        f"<tr{'' if key is None else key_attribute(key)}>"
        f"{''.join(cell(value, index in right) for index, value in enumerate(row))}</tr>"
        for row, key in zip_longest(rows, keys)
    )
    return Html(
        f'<div class="scroll"><table><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def key_attribute(key: str) -> str:
    """The attribute by which a page that changes knows an element again."""
    return f' data-key="{escape(key)}"'


def cell(value: object, right: bool) -> str:
    """One table cell."""
    shown, key = value if isinstance(value, tuple) else (value, None)
    if isinstance(shown, int):
        shown, key = f"{shown:,}", shown if key is None else key
    sort = "" if key is None else f' data-key="{escape(key)}"'
    return f"<td{' class=right' if right else ''}{sort}>{translate(shown)}</td>"


def badge(text: str, tone: str = "plain") -> Html:
    """A small label. Its tone is colour and border style, so that it reads without colour too."""
    return Html(f'<span class="badge {tone}">{translate(text)}</span>')


def code(text: str) -> Html:
    """Text in `backticks` as code, the rest as text."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    shown = [
        f"<code>{escape(part)}</code>" if index % 2 else escape(part)
        for index, part in enumerate(parts)
    ]
    return Html("".join(shown))


def details(summary: object, body: object, *, opened: bool = False) -> Html:
    """A part that folds."""
    state = " open" if opened else ""
    return Html(f"<details{state}><summary>{translate(summary)}</summary>{escape(body)}</details>")


def notes(lines: Iterable[object]) -> Html:
    """A plain list."""
    return Html("<ul>" + "".join(f"<li>{translate(line)}</li>" for line in lines) + "</ul>")


def figure(picture: Html, caption: str) -> Html:
    """A chart (inline SVG) with its caption; wide ones scroll inside their frame."""
    return Html(
        f'<figure><div class="scroll">{picture}</div>'
        f"<figcaption>{translate(caption)}</figcaption></figure>"
    )


def choice(id: str, label: str, options: Iterable[tuple[str, str]]) -> Html:
    """A drop-down filter: (value, text) pairs, the first one being no filter."""
    items = "".join(f'<option value="{escape(v)}">{escape(text)}</option>' for v, text in options)
    return Html(f'<label>{escape(label)}<select id="{escape(id)}">{items}</select></label>')


def checks(name: str, label: str, options: Iterable[tuple[str, str, str]]) -> Html:
    """A group of switches, all on: (value, text, tone)."""
    items = "".join(
        f'<label class="check {tone}"><input type="checkbox" name="{escape(name)}" '
        f'value="{escape(value)}" checked>{escape(text)}</label>'
        for value, text, tone in options
    )
    return Html(f"<fieldset><legend>{escape(label)}</legend>{items}</fieldset>")


def search(id: str, label: str) -> Html:
    """A text filter."""
    return Html(
        f'<label class="grow">{escape(label)}<input type="search" id="{escape(id)}" '
        'autocomplete="off" spellcheck="false"></label>'
    )


def filters(*parts: Html) -> Html:
    """The bar that holds filters; it sticks below the menu."""
    return Html(f'<form class="filters" id="filters">{"".join(parts)}</form>')
