"""The pictures of the source: what was found in it, and what was changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from joymigrate.report.html import page, plots
from joymigrate.report.html.page import Html
from joymigrate.report.journey.evidence import COUNT, JourneyStep
from joymigrate.report.journey.figures import (
    MOST_LISTED,
    Cell,
    FigureTable,
    note,
    plot,
    side_by_side,
    titled_table,
)
from joymigrate.report.journey.sentences import REWRITE, SCAN
from joymigrate.report.journey_words import say
from joymigrate.report.labels import Labels

TIERS = (("safe", "safe-fill"), ("unsafe", "unsafe-fill"), ("report", "report-fill"))


def scan(step: JourneyStep) -> Iterator[Html]:
    """Sites by area, and the work that is left to people."""
    work = Html("".join(by_hand(step)))
    yield side_by_side(*areas(step), *([Html(f"<div>{work}</div>")] if work else []))


def areas(step: JourneyStep) -> Iterator[Html]:
    """Sites by area, stacked by who changes them."""
    at, words = step.evidence, Labels()
    areas = at.at(SCAN, "/readiness/areas") or []
    ordered = sorted(enumerate(areas), key=lambda pair: -sum(pair[1][tier] for tier, _ in TIERS))
    rows = [
        [words.area(area["area"])]
        + [at.figure(COUNT, (SCAN, f"/readiness/areas/{index}/{tier}")) for tier, _ in TIERS]
        for index, area in ordered
    ]
    names = [words(tier) for tier, _ in TIERS]
    bars = [
        plots.Bar(
            words.area(area["area"]),
            [(tone, area[tier]) for tier, tone in TIERS],
            " + ".join(str(area[tier]) for tier, _ in TIERS if area[tier]),
        )
        for _, area in ordered
    ]
    if not bars:
        return
    title = say("by_area")
    parts = list(zip((tier for tier, _ in TIERS), names, strict=True))
    yield plot(
        title,
        lambda: plots.bars(bars, "scan", title, say("sites_axis"), parts),
        say("by_area_left" if step.raw["figures"].get("rewritten") else "by_area_note"),
        FigureTable([say("area"), *names], rows, (1, 2, 3)),
        [SCAN], at,
    )  # fmt: skip


def by_hand(step: JourneyStep) -> Iterator[Html]:
    """What is left to people, the longest work first."""
    at = step.evidence
    manual = at.at(SCAN, "/readiness/manual") or []
    rows: list[list[Cell]] = [
        [
            Html(
                at.quote(
                    SCAN, f"/readiness/manual/{index}/{'title' if one.get('title') else 'message'}"
                )
                + "".join(f"<br>{sample(s)}" for s in one.get("samples", ())[:1])
            ),
            at.figure(COUNT, (SCAN, f"/readiness/manual/{index}/sites")),
            at.figure(Labels().duration, (SCAN, f"/readiness/manual/{index}/minutes")),
        ]
        for index, one in enumerate(manual[:MOST_LISTED])
    ]
    more = len(manual) > MOST_LISTED
    tail = note(say("more_in", file="scan/scan.html")) if more else ""
    head = [say(key) for key in ("what", "sites_head", "estimate")]
    yield from titled_table(step, say("for_people"), head, rows, (1, 2))
    yield Html(tail)


def sample(one: dict[str, Any]) -> Html:
    """A piece of source."""
    return page.code("`{}`".format(one["text"].replace("`", "'")))


def rewrite(step: JourneyStep) -> Iterator[Html]:
    """The files that changed."""
    at = step.evidence
    rows = [
        [
            page.code(f"`{one['path']}`"),
            say(f"file_{one['status']}") if one["status"] in ("modified", "created") else "",
            at.figure(COUNT, (REWRITE, f"/files/{index}/edits")),
        ]
        for index, one in enumerate((at.at(REWRITE, "/files") or [])[:MOST_LISTED])
    ]
    head = [say(key) for key in ("file", "change", "edits")]
    yield from titled_table(step, say("changed_files"), head, rows, (2,))
    change = step.raw["figures"].get("step")
    patch = f"../steps/{change}/change.patch"
    if change and at.folder is not None and (at.folder / patch).is_file():
        link = at.anchor(say("patch"), patch)
        yield Html(f"<p>{link}</p>")
