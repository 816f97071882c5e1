"""A verdict as one HTML page that a decision can be made by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from joymigrate.language import current_language, tell
from joymigrate.report.html import page
from joymigrate.report.html.page import BarPart, Html, Page, Section, Tile
from joymigrate.report.html.plots import Curve, Limit, Mark, Style, beside, lines
from joymigrate.report.labels import Labels
from joymigrate.report.verdict_kinds import parts_of
from joymigrate.report.verdict_md import side_rows
from joymigrate.report.verdict_words import (
    MEANING,
    STATUS_TONES,
    TONES,
    code_line,
    compared_records,
    counts,
    covers_program,
    figure,
    headline,
    part_of,
    place,
    remarks,
    worst,
)

SHOWN = 200
MOST_CURVES = 4  # steps drawn over depth


def render(document: Mapping[str, Any], *, when: str = "") -> str:
    """The page. `when` is the time to print, given by the caller."""
    parts = parts_of(document)
    sections = [summary(document)]
    if document.get("first_divergence"):
        sections.append(divergence(document["first_divergence"]))
    sections += growth(document)
    sections += [section for part in parts for section in part.sections()]
    sections += [*stages(document), *records(document), *environment(document)]
    chip = (document.get("target") or {}).get("chip")
    subtitle = " · ".join(
        text
        for text in (subject(document), tell("target {chip}", chip=chip) if chip else "", when)
        if text
    )
    return Page(
        title=tell("Verdict: {headline}", headline=headline(document)),
        subtitle=subtitle or MEANING[document["verdict"]],
        sections=sections,
        say=Labels(current_language()),
        footer="joymigrate verify",
    ).render()


def subject(document: Mapping[str, Any]) -> str:
    """What the verdict is about, where it says so."""
    found = document.get("subject") or {}
    return str(found.get("name") or "")


def summary(document: Mapping[str, Any]) -> Section:
    """The outcome in words and in figures."""
    outcome = document["verdict"]
    coverage = document["coverage"]
    pair = coverage["compared"], coverage["recorded"]
    compared, recorded = compared_records(document) if covers_program(document) else pair
    share = compared / recorded if recorded else 0.0
    found = counts(document)
    failed = sum(n for status, n in found.items() if STATUS_TONES[status] == "report")
    tiles = [
        Tile(outcome.upper(), "verdict", MEANING[outcome], TONES[outcome]),
        Tile(
            f"{100 * share:.1f} %",
            "compared",
            part_of(compared, recorded),
            "safe" if share >= coverage.get("limit", 0) else "unsafe",
        ),
        Tile(f"{failed:,}", "failed records", "", "report" if failed else "safe"),
        Tile(
            f"{found.get('WARN', 0):,}", "warnings", "", "unsafe" if found.get("WARN") else "safe"
        ),
    ]
    body = page.tiles(tiles)
    if document.get("rehearsal"):
        note = "Rehearsal: the chip was simulated. This verdict does not stand for a real one."
        body = Html(f"{body}<p>{page.badge('rehearsal', 'unsafe')} {page.translate(note)}</p>")
    if document.get("reason"):
        body = Html(f"{body}<p>{page.translate(document['reason'])}</p>")
    parts = [BarPart(n, status, STATUS_TONES[status]) for status, n in found.items()]
    if len(parts) > 1:
        body = Html(f"{body}{page.bar(parts, legend=True)}")
    return Section("summary", "Summary", body)


def divergence(first: Mapping[str, Any]) -> Section:
    """Where the two sides part first, and the suspected cause."""
    rows = [
        ("where", page.code(f"`{place(first).replace('`', '')}`")),
        ("measured", f"{tell(first['metric'])} {figure(first['value'])}"),
        ("limit", figure(first["limit"])),
    ]
    rows += [
        (key, page.translate(first[key]))
        for key in ("stage", "cause", "evidence")
        if first.get(key)
    ]
    if code_line(first):
        rows.append(("line", page.code(f"`{code_line(first)}`")))
    return Section("divergence", "First divergence", page.table(["", ""], rows))


def growth(document: Mapping[str, Any]) -> Iterator[Section]:
    """Error over depth and over steps, side by side."""
    found = document.get("growth") or {}
    pictures = [*depth_plots(document, found.get("depth") or ()), *step_plots(document, found)]
    if pictures:
        yield Section("growth", "Growth of the error", beside(*pictures))


def depth_plots(document: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    """Relative error over the order of modules, one curve per step."""
    if not points:
        return
    steps = list(dict.fromkeys(point.get("step") for point in points))
    shown = steps if len(steps) <= MOST_CURVES else [*steps[: MOST_CURVES - 1], steps[-1]]
    curves = [
        Curve(
            "all modules" if step is None else tell("step {number}", number=step),
            [(p["order"], real(p["error"])) for p in points if p.get("step") == step],
        )
        for step in shown
    ]
    first = document.get("first_divergence") or {}
    mark = next(
        (
            Mark(p["order"], real(p["error"]), str(p["module"]))
            for p in points
            if p["module"] == first.get("module") and first.get("module")
        ),
        None,
    )
    caption = "Error over depth: slow growth is rounding, a jump is a fault."
    axes = "modules in the order of execution", "relative error"
    picture = lines(curves, caption, *axes, style=Style(log=True), mark=mark)
    yield page.figure(picture, caption)


def step_plots(document: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Html]:
    """The two losses, and how far they are apart."""
    points = [p for p in found.get("steps") or () if isinstance(p.get("loss"), list | tuple)]
    if not points:
        return
    sides = [[(p["step"], real(p["loss"][side])) for p in points] for side in (0, 1)]
    curves = [Curve("baseline", sides[0]), Curve("target", sides[1])]
    caption = "Loss of both sides over steps."
    yield page.figure(lines(curves, caption, "step", "loss"), caption)
    apart = [
        (x, abs(b - a) / max(abs(a), 1e-12))
        for (x, a), (_, b) in zip(sides[0], sides[1], strict=True)
    ]
    curve = document.get("curve") or {}
    limit = curve.get("limit_pass")
    mark = None
    outside = curve.get("first_outside")
    if outside is not None:
        mark = next(
            (Mark(x, y, tell("step {number}", number=f"{x:g}")) for x, y in apart if x == outside),
            None,
        )
    picture = lines(
        [Curve("difference", apart)],
        "Error over steps.",
        "step",
        "relative difference of the loss",
        style=Style(log=True),
        limits=[Limit("limit of the mean", limit)] if limit else [],
        mark=mark,
    )
    yield page.figure(picture, "Error over steps.")


def real(value: Any) -> float:
    """A number of the document; texts such as "nan" and nothing as NaN."""
    return float(value) if isinstance(value, int | float) else math.nan


def stages(document: Mapping[str, Any]) -> Iterator[Section]:
    """One row per stage."""
    found = document.get("stages", ())
    if not found:
        return
    rows = [
        [
            stage["stage"],
            stage["title"],
            page.badge(stage["verdict"], TONES[stage["verdict"]]),
            part_of(stage["compared"], stage["recorded"]) if stage["recorded"] else "–",
            remarks(stage),
        ]
        for stage in found
    ]
    table = page.table(["", "what", "verdict", "compared", "why"], rows)
    yield Section("stages", "Stages", table, len(rows))


def records(document: Mapping[str, Any]) -> Iterator[Section]:
    """The worst records, and what was not compared."""
    shown = worst(document, SHOWN)
    rows = [
        [
            page.badge(r["status"], STATUS_TONES[r["status"]]),
            page.code(f"`{place(r).replace('`', '')}`"),
            r["metric"],
            (figure(r["value"]), sort_key(r["value"])),
            (figure(r["limit"]), sort_key(r["limit"])),
            r.get("reason")
            or (
                tell("follows from {module}", module=r["consequence_of"])
                if r.get("consequence_of")
                else ""
            ),
        ]
        for r in shown
    ]
    if rows:
        head = ["status", "where", "metric", "value", "limit", "why"]
        total = len(document["records"])
        table = page.table(head, rows, right=(3, 4))
        cut = tell("The worst {shown} of {total}.", shown=len(rows), total=f"{total:,}")
        note = f'<p class="note">{cut}</p>' if total > SHOWN else ""
        yield Section("records", "Records, the worst first", Html(note + table), total)
    missing = document["coverage"].get("uncompared") or ()
    if missing:
        body = page.notes(page.code(f"`{str(name).replace('`', '')}`") for name in missing[:SHOWN])
        yield Section("uncompared", "Not compared", body, len(missing))


def sort_key(value: Any) -> float:
    """What a column of numbers sorts by."""
    found = real(value)
    return -1.0 if math.isnan(found) else found


def environment(document: Mapping[str, Any]) -> Iterator[Section]:
    """What is known about both sides."""
    rows = side_rows(document.get("baseline") or {}, document.get("target") or {})
    if rows:
        table = page.table(["", "baseline", "target"], rows)
        yield Section("environment", "Environment", table)
