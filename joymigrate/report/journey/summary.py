"""The top of the page: the journey as a line, the figures that count, and what is left to do."""

from __future__ import annotations

from collections.abc import Iterator

from joymigrate.report.html import page
from joymigrate.report.html.page import Html, Section, Tile, escape
from joymigrate.report.journey.evidence import (
    COUNT,
    FINE_PERCENT,
    GIB,
    PERCENT,
    POINTS,
    SECONDS,
    Figure,
    JourneyFiles,
    JourneyStep,
    steps,
)
from joymigrate.report.journey.phrase import Phrase, tell, translate_figure
from joymigrate.report.journey.reach import share
from joymigrate.report.journey.sentences import (
    ADVICE,
    COVERAGE,
    LOSS,
    REHEARSE,
    SCAN,
    effort,
    peak,
    short,
)
from joymigrate.report.journey_words import WORDS as NAMES
from joymigrate.report.journey_words import say
from joymigrate.report.labels import Labels

TONES = {
    "done": "safe",
    "failed": "report",
    "stopped": "report",
    "skipped": "plain",
    "pending": "plain",
}
VERDICT_TONES = {"pass": "safe", "fail": "report"}
MARKS = {"done": "✓", "failed": "✕", "stopped": "!", "skipped": "–", "pending": "·"}
MOST_LEFT = 5
LACKS = "OP-FALLBACK"  # the advice on operators that are listed by name


def summary(evidence: JourneyFiles) -> Section:
    """How it went, in one sentence, one line and a few figures."""
    document = evidence.document
    grade = say(f"grade_{document['grade']}")
    parts = [
        f'<p class="lead">{escape(outcome(evidence))}</p>',
        f'<p class="grade {document["grade"]}">{escape(grade)}</p>',
        way(evidence),
        page.tiles(tiles(evidence)),
        f'<p class="note">{escape(say("evidence_note"))}</p>',
    ]
    return Section("summary", say("summary"), Html("".join(parts)))


def outcome(evidence: JourneyFiles) -> str:
    """How the journey ended."""
    for step in steps(evidence):
        if step.raw["status"] in ("failed", "stopped"):
            name = step_name(step)
            return tell("held_at").format(step=name)
    if evidence.document["verdict"] != "pass":
        return tell("not_decided")
    part = share(evidence.document)
    return f"{tell('all_well')} {part}." if part else tell("all_well")


def step_name(step: JourneyStep) -> str:
    """A step's name for people; a step that has no words keeps its own."""
    rehearsed = step.name == "rehearse" and step.evidence.document["grade"] == "rehearsed"
    key = "step_rehearsal" if rehearsed else f"step_{step.name}"
    return say(key) if key in NAMES else step.name


def tone(step: JourneyStep) -> str:
    """A step that is done but not decided is not green."""
    return "unsafe" if step.doubtful else TONES[step.raw["status"]]


def way(evidence: JourneyFiles) -> str:
    """The journey as a line of stations."""
    stations = []
    for step in steps(evidence):
        status = step.raw["status"]
        found = "" if status == "pending" else in_short(step)
        mark = "?" if tone(step) == "unsafe" else MARKS[status]
        stations.append(
            f'<li class="{tone(step)} {status}"><i aria-hidden="true">{mark}</i>'
            f'<a href="#{escape(step.name)}">{escape(step_name(step))}</a>'
            f"<b>{escape(say(status))}</b><small>{found}</small></li>"
        )
    return f'<ol class="way" aria-label="{escape(say("way"))}">{"".join(stations)}</ol>'


def in_short(step: JourneyStep) -> Html:
    """What a step found, in one line."""
    phrase = short(step)
    if phrase is not None:
        return phrase.html(step.evidence)
    return closing_words(step)


def closing_words(step: JourneyStep) -> Html:
    """What the step itself says of how it ended; the whole text is linked to where it stands."""
    text = step.step_text("summary")
    if not any(c.isdigit() for c in text):
        return escape(text)
    return step.evidence.anchor(text, *step.place("summary"))


def tiles(evidence: JourneyFiles) -> Iterator[Tile]:
    """The numbers that a decision asks for."""
    for step in steps(evidence):
        made = TILES.get(step.name)
        if made is not None and step.raw["figures"]:
            yield from made(step)


def tile(
    step: JourneyStep, figure: Figure | None, label: Html, note: str = "", tone: str = "plain"
) -> Iterator[Tile]:
    """One figure; nothing where it was not found."""
    if figure is not None:
        yield Tile(step.evidence.html(figure), label, note, tone)


def fields(key: str, step: JourneyStep, **figures: Figure | None) -> Html:
    """Words with figures in them; nothing where a figure was not found."""
    if any(one is None for one in figures.values()):
        return Html("")
    found = {name: one for name, one in figures.items() if one is not None}
    shown: dict[str, str] = {name: step.evidence.html(one) for name, one in found.items()}
    shown |= {f"{name}_s": "s" if one.many else "" for name, one in found.items()}
    return Html(escape(say(key)).format(**shown))


def scan_tiles(step: JourneyStep) -> Iterator[Tile]:
    sites = step.figure(COUNT, "sites", SCAN, "/readiness/sites")
    automatic = step.figure(POINTS, "automatic_pct")
    label = fields("tile_automatic", step, sites=sites)
    yield from tile(step, automatic, label, tone="safe")
    by_hand = step.figure(COUNT, "by_hand", SCAN, "/summary/report")
    minutes = effort(step).figures["minutes"]
    estimate = fields("tile_estimate", step, minutes=minutes) if minutes else Html("")
    colour = "report" if by_hand and by_hand.value else "safe"
    label = fields("tile_by_hand", step, by_hand=by_hand)
    yield from tile(step, by_hand, label, estimate, colour)


def rehearse_tiles(step: JourneyStep) -> Iterator[Tile]:
    if "peak_bytes" not in step.raw["figures"]:
        return
    whole = step.evidence.figure(GIB, (REHEARSE, "/memory_bytes"))
    of = fields("tile_memory", step, memory=whole) if whole else Html("")
    yield from tile(step, peak(step), escape(say("memory")), of)


def coverage_tiles(step: JourneyStep) -> Iterator[Tile]:
    calls = step.figure(PERCENT, "share/calls", COVERAGE, "/share/calls")
    colour = "safe" if calls and calls.value > 0.99 else "unsafe"
    yield from tile(step, calls, escape(say("on_chip")), tone=colour)


def verify_tiles(step: JourneyStep) -> Iterator[Tile]:
    verdict = step.figure(str, "verdict")
    if verdict is not None:
        colour = VERDICT_TONES.get(verdict.value, "unsafe")
        yield from tile(step, translate_figure(verdict), escape(say("verdict")), tone=colour)


def train_tiles(step: JourneyStep) -> Iterator[Tile]:
    at = step.evidence
    mean = at.figure(FINE_PERCENT, (LOSS, "/curve/values/loss/mean_relative"))
    count = at.figure(COUNT, (LOSS, "/curve/n"))
    over = fields("tile_losses", step, losses=count) if count else Html("")
    colour = VERDICT_TONES.get(str(step.raw["verdict"]), "unsafe")
    yield from tile(step, mean, escape(say("tile_loss")), over, colour)


def serve_tiles(step: JourneyStep) -> Iterator[Tile]:
    ready = step.figure(SECONDS, "ready_s")
    yield from tile(step, ready, escape(say("tile_serve")), tone="safe")


TILES = {
    "scan": scan_tiles,
    "rehearse": rehearse_tiles,
    "coverage": coverage_tiles,
    "verify": verify_tiles,
    "train": train_tiles,
    "serve": serve_tiles,
}


def todo_section(evidence: JourneyFiles) -> Section:
    """What people still have to do, the most urgent first."""
    items = list(tasks(evidence))
    body = "".join(f"<li>{item}</li>" for item in items)
    shown = f'<ol class="left">{body}</ol>' if items else f"<p>{say('nothing_left')}</p>"
    return Section("left", say("left"), Html(shown), len(items), say("menu_left"))


def tasks(evidence: JourneyFiles) -> Iterator[Html]:
    """One by one."""
    for step in steps(evidence):
        if step.raw["status"] in ("failed", "stopped"):
            help = step.step_text("help")
            shown = Html(f"{in_short(step)}<pre>{escape(help)}</pre>" if help else
                         in_short(step))  # fmt: skip
            yield Html(escape(say("left_gate")).format(what=shown))
    for step in steps(evidence):
        if step.raw["verdict"] == "inconclusive" and step.raw["status"] == "done":
            help = step.step_text("help")
            head = f"{escape(step_name(step))}: {in_short(step)}"
            yield Html(f"{head}<pre>{escape(help)}</pre>" if help else head)
    for index, one in enumerate((evidence.at(SCAN, "/readiness/manual") or [])[:MOST_LEFT]):
        place = f"/readiness/manual/{index}"
        title = "title" if one.get("title") else "message"
        figures = {
            "what": evidence.figure(
                lambda text: evidence.file_text(str(text), SCAN), (SCAN, f"{place}/{title}")
            ),
            "sample": evidence.figure(str, (SCAN, f"{place}/samples/0/text")),
            "sites": evidence.figure(COUNT, (SCAN, f"{place}/sites")),
            "minutes": evidence.figure(Labels().duration, (SCAN, f"{place}/minutes")),
        }
        if figures["sample"] is None:
            del figures["sample"]
        key = "left_by_hand" if "sample" in figures else "left_by_hand_plain"
        yield Phrase(key, figures).html(evidence)
    ops = enumerate(evidence.at(COVERAGE, "/ops") or [])
    lacking = [(i, one) for i, one in ops if one["status"] in ("cpu_fallback", "missing")]
    for _, one in lacking[:MOST_LEFT]:
        types = ", ".join(one.get("dtypes") or ())
        name = page.code(f"`{one['op']}({types})`" if types else f"`{one['op']}`")
        yield Html(escape(say("left_operator")).format(what=name))
    hints = evidence.at(ADVICE, "/advice") or []
    told = [(i, one) for i, one in enumerate(hints) if one["level"] in ("error", "warning")]
    for index, _ in [pair for pair in told if pair[1]["id"] != LACKS][:MOST_LEFT]:
        title, action = (
            evidence.quote(ADVICE, f"/advice/{index}/{key}") for key in ("title", "action")
        )
        yield Html(escape(say("left_advice")).format(title=title, action=action))
    if not evidence.document["entry"]:
        yield escape(say("left_entry"))
    if evidence.document["grade"] == "rehearsed":
        yield escape(say("left_chip"))
