"""The page of advice: what it costs, per rule the places, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

from joymigrate.chips import Chip
from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import current_language, mark, tell
from joymigrate.profile.advice import Advice
from joymigrate.report.html.page import (
    BarPart,
    Html,
    Page,
    Section,
    Tile,
    bar,
    code,
    details,
    escape,
    table,
    tiles,
    translate,
)
from joymigrate.report.labels import Labels

TIME = "Thousandths of the step's time. Rules may speak of the same time."
TONES = {"error": "report", "warning": "unsafe", "note": "safe"}


def render(advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> str:
    """One HTML document."""

    sections = [Section("summary", "Summary", summary(advice))]
    for index, one in enumerate(advice):
        rule = one.rule
        rows = [
            (place.what, place.where or "", place.module or "", place.calls, round(place.self_us))
            for place in one.places
        ]
        said = sentence(rule.problem) + Html(
            f"<p><b>{translate('Do:')}</b> {code(tell(rule.action))}{stop()}</p>"
        )
        if rule.gain:
            said = Html(said + f"<p>{translate('Gain')}: {translate(rule.gain)}{stop()}</p>")
        if rule.select:
            said = Html(said + f"<p><code>{escape(rule.command or '')}</code></p>")
        body = said + table(("what", "where", "module", "calls", "µs"), rows, right=(3, 4))
        if rule.before:
            shown = f"<pre># before\n{escape(rule.before)}\n# after\n{escape(rule.after)}</pre>"
            body += details("Before and after", Html(shown), opened=True)
        body += f"<p><small>{translate('Source')}: {escape(rule.source)}</small></p>"
        anchor = f"{rule.id.lower()}-{index}"
        title = f"{rule.id}: {tell(rule.title)}"
        sections.append(Section(anchor, title, Html(body), len(one.places) + one.more, rule.id))
    return Page(
        title=tell("Advice for {chip}", chip=chip.title),
        subtitle=" · ".join([*traces, grade_line(count_grades(one.grade for one in advice))]),
        sections=sections,
        say=Labels(current_language()),
        footer="joymigrate profile advise",
    ).render()


def sentence(text: str) -> Html:
    """A paragraph of one text that has no full stop."""
    return Html(f"<p>{translate(text)}{stop()}</p>")


def stop() -> str:
    """The full stop of the language that is spoken."""
    return mark("stop").strip()


def summary(advice: Sequence[Advice]) -> Html:
    """Tiles by level, and a bar of the time that the advice is about."""
    counts = {level: sum(one.rule.level == level for one in advice) for level in TONES}
    made = tiles(
        Tile(str(count), f"{level}s", tone=TONES[level]) for level, count in counts.items()
    )
    parts = [
        BarPart(1000 * one.share, one.rule.id, TONES[one.rule.level]) for one in advice if one.share
    ]
    if parts:
        made = Html(made + bar(parts, legend=True))
        made = Html(made + f"<p>{translate(TIME)}</p>")
    return made
