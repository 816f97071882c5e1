"""A journey as one HTML page: the way, what every step found, and links to its evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate.report.html import page
from joymigrate.report.html.page import Html, Page, Part, Section, Tile, escape
from joymigrate.report.journey_text import title
from joymigrate.report.journey_words import say
from joymigrate.report.labels import Labels
from joymigrate.report.verdict_plots import Curve, beside, line_plot

TONES = {
    "done": "safe",
    "failed": "report",
    "stopped": "report",
    "skipped": "plain",
    "pending": "plain",
}
MOST_CURVES = 4  # steps drawn over depth
PLAIN = (int, float, str, bool)


def render(document: Mapping[str, Any], folder: Path, lang: str = "en", *, link: str = "") -> str:
    """The page; `folder` holds the evidence, `link` is the way to it from where the page lies."""
    sections = [summary(document, lang)]
    for one in document["journey"]:
        sections.append(step(one, folder, lang, link))
    entry = " ".join(document["entry"])
    return Page(
        title=title(document, lang),
        subtitle=" · ".join(part for part in (entry, document["style"]) if part),
        sections=sections,
        say=Labels(lang),
        footer=say(document["grade"], lang),
    ).render()


def summary(document: Mapping[str, Any], lang: str) -> Section:
    """The line of steps, and the figures that count."""
    body = Html(way(document, lang) + page.tiles(figures(document, lang)))
    note = Html(f"<p><strong>{escape(say(document['grade'], lang))}</strong></p>")
    if document.get("rewrite_step"):
        note = Html(note + f"<p>{escape(say('back', lang, step=document['rewrite_step']))}</p>")
    return Section("way", say("way", lang), Html(body + note))


def way(document: Mapping[str, Any], lang: str) -> Html:
    """The journey as a line of stations."""
    cells = []
    for number, one in enumerate(document["journey"], 1):
        tone, status = TONES[one["status"]], say(one["status"], lang)
        cells.append(
            f'<a href="#{escape(one["name"])}" style="text-decoration:none;text-align:center;'
            f'flex:1 1 6rem">{page.badge(str(number), tone)}<br>'
            f"<b>{escape(say(one['name'], lang))}</b><br><small>{escape(status)}</small></a>"
        )
    style = "display:flex;flex-wrap:wrap;gap:.75rem;margin:1rem 0"
    return Html(f'<div style="{style}" class="way">{"".join(cells)}</div>')


def figures(document: Mapping[str, Any], lang: str) -> Iterator[Tile]:
    """The numbers a decision asks for."""
    found = {one["name"]: one["figures"] for one in document["journey"]}
    if "sites" in found.get("scan", {}):
        scan = found["scan"]
        yield Tile(str(scan["sites"]), say("sites", lang))
        yield Tile(f"{scan['automatic_pct']:g} %", say("automatic", lang), tone="safe")
    if "share" in found.get("coverage", {}):
        calls = float(found["coverage"]["share"]["calls"])
        calls = 100 * calls if calls <= 1 else calls
        yield Tile(f"{calls:.1f} %", say("on_chip", lang), tone="safe" if calls > 99 else "unsafe")
    if found.get("rehearse", {}).get("peak_bytes"):
        yield Tile(f"{found['rehearse']['peak_bytes'] / 2**20:,.1f} MiB", say("memory", lang))
    if "verdict" in found.get("verify", {}):
        verdict = found["verify"]["verdict"]
        tone = {"pass": "safe", "fail": "report"}.get(verdict, "unsafe")
        yield Tile(say(verdict, lang), say("verdict", lang), tone=tone)


def step(one: Mapping[str, Any], folder: Path, lang: str, link: str) -> Section:
    """One step: its result, its picture, its figures, its evidence, its commands."""
    parts = [f"<p>{page.badge(say(one['status'], lang), TONES[one['status']])} "
             f"{escape(one['summary'])}</p>"]  # fmt: skip
    if one["help"]:
        parts.append(f"<h3>{escape(say('next', lang))}</h3><pre>{escape(one['help'])}</pre>")
    parts += pictures(one, folder, lang)
    rows = [
        (name, f"{value:,}" if isinstance(value, int) else str(value))
        for name, value in one["figures"].items()
        if isinstance(value, PLAIN) and not isinstance(value, bool)
    ]
    if rows:
        parts.append(page.details(say("figures", lang), page.table(["", ""], rows)))
    if one["evidence"]:
        links = [
            Html(f'<a href="{escape(f"{link}{name}")}">{escape(name)}</a>')
            for name in one["evidence"]
        ]
        parts.append(f"<p>{escape(say('evidence', lang))}: {', '.join(links)}</p>")
    if one["commands"]:
        shown = Html(f"<pre>{escape(chr(10).join(one['commands']))}</pre>")
        parts.append(page.details(say("repeat", lang), shown))
    return Section(one["name"], say(one["name"], lang), Html("".join(parts)))


def pictures(one: Mapping[str, Any], folder: Path, lang: str) -> Iterator[Html]:
    """What a step shows better than it says."""
    found = one["figures"]
    if one["name"] == "scan" and found.get("sites"):
        kinds = (("safe", "safe"), ("unsafe", "unsafe"), ("by_hand", "report"))
        words = Labels(lang)
        yield page.bar([Part(found[name], words(name), tone) for name, tone in kinds], legend=True)
    if one["name"] == "coverage" and found.get("lacking"):
        rows = [
            (op["op"], op["status"], op["calls"], op.get("where") or "") for op in found["lacking"]
        ]
        head = [say(key, lang) for key in ("operator", "status", "calls", "where")]
        yield Html(f"<h3>{escape(say('lacking', lang))}</h3>")
        yield page.table(head, rows, right=(2,))
    if one["name"] == "verify":
        yield from growth(load(folder / "verify/verdict.json"), lang)
    if one["name"] == "train":
        sides = [curve(folder / f"train/{name}.jsonl") for name in ("baseline", "chip")]
        if any(sides):
            lines = [
                Curve(say(n, lang), s) for n, s in zip(("baseline", "chip"), sides, strict=True)
            ]
            picture = line_plot(lines, say("step_axis", lang), say("loss_axis", lang))
            yield beside(page.figure(picture, say("loss", lang)))


def growth(verdict: Mapping[str, Any], lang: str) -> Iterator[Html]:
    """How the error grows over the depth of the model, a curve per step."""
    by_step: dict[Any, list[tuple[float, float]]] = {}
    for point in (verdict.get("growth") or {}).get("depth") or ():
        by_step.setdefault(point.get("step"), []).append((point["order"], number(point["error"])))
    shown = list(by_step.items())[:MOST_CURVES]
    if shown:
        curves = [Curve(f"{say('step_axis', lang)} {step}", points) for step, points in shown]
        titles = (say("depth_axis", lang), say("error_axis", lang))
        picture = line_plot(curves, *titles, log=True)
        yield beside(page.figure(picture, say("growth", lang)))


def number(value: Any) -> float:
    """A number of a JSON file, NaN where it is none."""
    return float(value) if isinstance(value, int | float) else math.nan


def curve(path: Path) -> Sequence[tuple[float, float]]:
    """(step, loss) of a file of losses."""
    if not path.is_file():
        return ()
    rows = [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]
    return [(float(row["step"]), number(row["loss"])) for row in rows]


def load(path: Path) -> Mapping[str, Any]:
    """A JSON file; nothing where it is not there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
