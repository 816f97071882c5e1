"""What was seen, as the parts of a page that the browser exchanges one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from joymigrate.language import current_language, tell, traits
from joymigrate.report import journey_text, journey_words
from joymigrate.report.html import page as html
from joymigrate.report.html.page import Html, Page, Section, escape
from joymigrate.report.html.plots import Curve, beside, lines
from joymigrate.report.journey.evidence import JourneyFiles, JourneyStep, steps
from joymigrate.report.journey.summary import step_name
from joymigrate.report.journey_text import in_short
from joymigrate.report.live.look import ProjectView, StepRow
from joymigrate.report.live.words import say

TONES = {
    "done": "safe",
    "failed": "report",
    "stopped": "report",
    "running": "unsafe",
    "pass": "safe",
    "fail": "report",
    "inconclusive": "unsafe",
}
GRADES = ("rehearsed", "measured", "documented")
JUDGED = ("pass", "fail", "inconclusive")
PLAIN = (int, float, str)
SHORT = 72  # characters of a command that are shown unfolded
MOST_ROWS = 200  # of the ledger, the newest


def page(seen: ProjectView) -> str:
    """The whole page, as the browser first gets it."""
    words = {key: say(key) for key in ("live", "polling", "gone", "other")}
    return Page(
        title=title(seen),
        subtitle=seen.root,
        sections=sections(seen),
        data={"words": words, "lang": current_language()},
        scripts=("live.js",),
        styles=("live.css",),
        live=True,
    ).render()


def parts(seen: ProjectView) -> dict[str, str]:
    """The markup of every part by its id, with the menu and the title."""
    made = sections(seen)
    found = {section.id: html.inside(section) for section in made}
    return {**found, "menu": html.links(made), "title": title(seen)}


def title(seen: ProjectView) -> str:
    """What stands above the page and in the browser's tab."""
    return say("title", project=seen.name)


def sections(seen: ProjectView) -> list[Section]:
    """The parts in their order; empty ones stay, so that their places do."""
    judged = [row for row in seen.rows if row.verdict in JUDGED]
    writing = [row for row in seen.rows if row.writes]
    trouble = f'<p class="trouble" role="alert">{escape(seen.trouble)}</p>' if seen.trouble else ""
    made = [
        ("way", Html(trouble + journey(seen)), None),
        ("training", training(seen), None),
        ("judgements", judgements(judged), len(judged)),
        ("changes", changes(writing), len(writing)),
        ("ledger", ledger(seen.rows), len(seen.rows)),
    ]
    empty = Html(f'<p class="empty">{escape(say("nothing"))}</p>')
    return [Section(id, say(id), body or empty, count) for id, body, count in made]


def journey(seen: ProjectView) -> Html:
    """The line of stations, what runs just now, and what every step found."""
    stops = stations(seen)
    found = steps(JourneyFiles(seen.journey)) if seen.journey is not None else []
    taken = {one.name: one for one in found}
    names = {
        name: step_name(taken[name]) if name in taken else name_of(name) for name, _, _ in stops
    }
    if not stops:
        return Html(f'<p class="empty">{escape(say("no_journey"))}</p>')
    cells = "".join(
        f'<li class="{tone(status, one)}" data-step="{escape(name)}" '
        f'data-status="{escape(status)}"><b>{escape(names[name])}</b>'
        f"<span>{escape(say(status))}</span></li>"
        for name, status, one in stops
    )
    body = [f'<ol class="stations">{cells}</ol>', now(seen, names) or outcome(seen)]
    body += [step(taken[name], status) for name, status, one in stops if one]
    if seen.journey is not None:
        body.append(last_lines(seen.journey))
    return Html("".join(body))


def tone(status: str, one: Mapping[str, Any] | None) -> str:
    """The colour of a step; one that is done and not decided is not green."""
    if one is not None and one["verdict"] == "inconclusive" and status == "done":
        return "unsafe"
    return TONES.get(status, "plain")


def name_of(step: str) -> str:
    """What a step that found nothing yet is called; one without words keeps its own name."""
    key = f"step_{step}"
    return say(key) if key in journey_words.WORDS else step


def outcome(seen: ProjectView) -> str:
    """What came of the journey, while none runs."""
    if seen.journey is None:
        return ""
    verdict = str(seen.journey["verdict"])
    tone = TONES.get(verdict, "plain")
    words = escape(journey_text.title(seen.journey))
    return f'<p class="outcome">{html.badge(say(verdict), tone)} <b>{words}</b></p>'


def last_lines(journey: Mapping[str, Any]) -> str:
    """What the grade means, the way back, and the way to the whole report."""
    lines = [journey_words.say(str(journey["grade"]))]
    if journey.get("rewrite_step"):
        lines.append(say("back", step=journey["rewrite_step"]))
    link = f'<a href="/report?lang={current_language()}">{escape(say("report"))}</a>'
    return "".join(f'<p class="note">{escape(line)}</p>' for line in lines) + f"<p>{link}</p>"


def stations(seen: ProjectView) -> list[tuple[str, str, Mapping[str, Any] | None]]:
    """(step, status, outcome) in the order of the way. While one runs, those after it are to come:
    what an earlier journey found there holds no longer."""
    known = {str(one["name"]): one for one in (seen.journey or {}).get("journey", ())}
    running = str(seen.running["step"]) if seen.running else ""
    names = [str(name) for name in (seen.running or {}).get("steps", ())] or list(known)
    found: list[tuple[str, str, Mapping[str, Any] | None]] = []
    behind = False
    for name in names:
        one = known.get(name)
        if name == running:
            found.append((name, "running", None))
            behind = True
        elif behind or one is None:
            found.append((name, "to_come" if running else "pending", None))
        else:
            found.append((name, str(one["status"]), one))
    return found


def now(seen: ProjectView, names: Mapping[str, str]) -> str:
    """The running step: since when, and what it printed last."""
    if seen.running is None:
        return ""
    since = str(seen.running.get("since") or "")
    name = str(seen.running["step"])
    shown = f"<pre>{escape(seen.tail)}</pre>" if seen.tail else ""
    return (
        f'<div class="now" role="status"><b>{escape(names.get(name, name))}</b> '
        f"{escape(say('running'))}, {escape(say('for'))} "
        f'<time data-since="{escape(since)}">{escape(clock(since))}</time>{shown}</div>'
    )


def step(taken: JourneyStep, status: str) -> str:
    """What a step of the journey found, folded."""
    one, name = taken.raw, taken.name
    took = f" <small>{one['seconds']:.1f} s</small>" if one["seconds"] else ""
    head = Html(
        f"{html.badge(say(status), tone(status, one))} "
        f"<b>{escape(step_name(taken))}</b> {escape(in_short(taken))}{took}"
    )
    body = []
    if one["help"]:
        body.append(f"<h3>{escape(say('next'))}</h3><pre>{escape(taken.step_text('help'))}</pre>")
    rows = [
        (key, f"{value:,}" if isinstance(value, int) else taken.translate(str(value)))
        for key, value in one["figures"].items()
        if isinstance(value, PLAIN) and not isinstance(value, bool)
    ]
    if rows:
        body.append(html.table((say("figures"), ""), rows))
    if one["evidence"]:
        files = [f".joymigrate/journey/{file}" for file in one["evidence"]]
        body.append(f"<p>{escape(say('evidence'))}: {links(files)}</p>")
    if one["commands"]:
        body.append(f"<pre>{escape(chr(10).join(one['commands']))}</pre>")
    opened = " open" if status in ("failed", "stopped") else ""
    return (
        f'<details class="step" data-key="step-{escape(name)}"{opened}><summary>{head}</summary>'
        f"{''.join(body)}</details>"
    )


def training(seen: ProjectView) -> Html:
    """Losses over steps: the journey's two sides, then the project's runs."""
    figures = []
    axes = (say("step_axis"), say("loss_axis"))
    if seen.losses:
        curves = [Curve(say(side), finite(points)) for side, points in seen.losses]
        words = say("both_sides")
        figures.append(html.figure(lines(curves, words, *axes), words))
    for run in seen.runs:
        steps = f"{run.losses[-1][0]:g}"
        said = tell(run.state)
        state = traits(current_language()).marks["clause"] + said if said else ""
        words = say("run_loss", name=run.name, steps=steps, state=state)
        picture = lines([Curve(run.name, finite(run.losses))], words, *axes)
        figures.append(html.figure(picture, words))
    return beside(*figures) if figures else Html("")


def finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points; what is not finite interrupts the line."""
    return [(x, y if math.isfinite(y) else math.nan) for x, y in points]


def judgements(rows: Sequence[StepRow]) -> Html:
    """Every verdict, the newest first."""
    keys = ("id", "time", "kind", "stage", "about", "on", "verdict", "grade", "evidence")
    return table(keys, rows)


def changes(rows: Sequence[StepRow]) -> Html:
    """Every step that changed files, and whether the tree still has it."""
    return table(("id", "time", "kind", "about", "files", "evidence"), rows)


def ledger(rows: Sequence[StepRow]) -> Html:
    """Every step."""
    return table(("id", "time", "kind", "on", "verdict", "files", "command"), rows)


def table(keys: Sequence[str], rows: Sequence[StepRow]) -> Html:
    """Steps as a table whose rows keep their identity when others come."""
    if not rows:
        return Html("")
    head = [say(key) for key in keys]
    newest = list(reversed(rows))[:MOST_ROWS]
    return html.table(
        head,
        ([cell(row, key) for key in keys] for row in newest),
        keys=[r.id for r in newest],
    )


def cell(row: StepRow, key: str) -> object:
    """One cell of a table of steps."""
    if key == "verdict":
        shown = say(row.verdict) if row.verdict in JUDGED else row.verdict
        return html.badge(shown, TONES.get(row.verdict, "plain")) if shown else ""
    if key == "evidence":
        return links(row.evidence)
    if key == "files":
        return tell(row.tree) if row.writes else ""
    if key == "grade":
        shown = say(f"by_{row.grade}") if row.grade in GRADES else row.grade
        return Html(f'<span class="nowrap">{escape(shown)}</span>')
    if key == "on":
        return row.chip
    if key == "time":
        shown = row.time.replace("T", " ").rstrip("Z")
        return Html(f'<span class="nowrap">{escape(shown)}</span>'), row.time
    if key == "kind":
        return tell(row.kind)
    if key == "command":
        return command(row)
    return getattr(row, key)


def command(row: StepRow) -> Html:
    """What was called; a long line folds."""
    whole = Html(f"<code>{escape(row.command)}</code>")
    if len(row.command) <= SHORT:
        return whole
    head = Html(f"<code>{escape(row.command[:SHORT].rstrip())}…</code>")
    return Html(
        f'<details data-key="command-{escape(row.id)}"><summary>{head}</summary>{whole}</details>'
    )


def links(files: Sequence[str]) -> Html:
    """Links to evidence, one after the other."""
    return Html(", ".join(link(file) for file in files))


def link(file: str) -> str:
    """A link to a file below the project's root; its last name is shown."""
    return f'<a href="/file/{escape(quote(file))}" title="{escape(file)}">{escape(short(file))}</a>'


def short(file: str) -> str:
    """What is worth reading of a path: without the ledger's own folders."""
    for folder in (".joymigrate/journey/", ".joymigrate/steps/"):
        if file.startswith(folder):
            return file[len(folder) :]
    return file


def clock(moment: str) -> str:
    """The time of day of an ISO 8601 moment."""
    try:
        return f"{datetime.fromisoformat(moment):%H:%M:%S}"
    except ValueError:
        return moment
