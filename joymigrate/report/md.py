"""A scan as a pull-request comment in Markdown: summary, work by hand, details folded away."""

from __future__ import annotations

import html
from collections.abc import Iterator
from itertools import groupby

from joymigrate.language import HAN, bracket
from joymigrate.model import Finding, Tier
from joymigrate.report.blocks import Cell
from joymigrate.report.changes import hunks
from joymigrate.report.labels import Labels
from joymigrate.report.renderers.markdown import draw_table, escape, longest_run
from joymigrate.report.result import ScanResult, count_words
from joymigrate.rewrite.readiness import RuleEffort

LIMIT = 60_000  # characters; GitHub refuses a comment of more than 65,536
MANUAL_SHOWN = 10


def render(result: ScanResult, lang: str = "en") -> str:
    """The comment. Details that would make it too long for GitHub are left out, with a note."""
    say = Labels(lang)
    head = [*summary(result, say), *manual(result, say)]
    text = "\n".join(head)
    for index, block in enumerate(details(result, say)):
        if len(text) + len(block) > LIMIT:
            files = len({finding.path for finding in result.scan.findings})
            text += f"\n{say('left_out', number=files - index)}\n"
            break
        text += f"\n{block}"
    return text.rstrip("\n") + "\n\n" + result.last_line() + "\n"


def summary(result: ScanResult, say: Labels) -> Iterator[str]:
    """Title, the automatic share in one sentence, the table by area."""
    scan, found = result.scan, result.readiness
    yield f"## {say('title')}: {scan.origin} → {scan.to}"
    yield ""
    if not found.sites:
        return
    yield (
        f"**{found.automatic or 0:.0%}** {say('automatic')}, "
        f"**{found.automatic_unsafe or 0:.0%}** {say('automatic_unsafe')}; "
        f"{say('effort')}: {say.duration(found.minutes)}"
    )
    yield ""
    yield from draw_table(
        [say("area"), say("sites"), say("safe"), say("unsafe"), say("by_hand"), say("effort")],
        [
            [
                say.area(area.name),
                area.sites,
                *(area.tiers[tier] for tier in Tier),
                say.duration(area.minutes),
            ]
            for area in found.areas
        ],
    )
    yield ""
    yield result.grades(say.tell)
    yield ""


def manual(result: ScanResult, say: Labels) -> Iterator[str]:
    """The heaviest work by hand."""
    items = result.readiness.manual
    if not items:
        return
    yield f"### {say('manual')}"
    yield ""
    rows: list[list[Cell]] = [
        [item.rule, what(item), item.sites, item.files, say.duration(item.minutes)]
        for item in items[:MANUAL_SHOWN]
    ]
    yield from draw_table(
        [say("rule"), say("what"), say("sites"), say("files"), say("effort")], rows
    )
    if len(items) > MANUAL_SHOWN:
        yield f"\n{say('more_rules', number=len(items) - MANUAL_SHOWN)}"
    yield ""


def what(item: RuleEffort) -> str:
    """A rule's title with the commonest texts of its sites."""
    shown = ", ".join(f"`{text.replace('`', '')}`" for text, _ in item.samples)
    colon = "：" if HAN.search(item.title) else ": "
    return f"{item.title}{colon}{shown}" if shown else item.title


def details(result: ScanResult, say: Labels) -> Iterator[str]:
    """One folded block per file."""
    for path, group in groupby(result.scan.findings, key=lambda finding: finding.path):
        findings = list(group)
        lines = [
            f"<details><summary><code>{html.escape(path)}</code>: "
            f"{count_words(len(findings), 'site', say.tell)}</summary>",
            "",
        ]
        for finding in findings:
            lines += finding_lines(result, finding, say)
        yield "\n".join([*lines, "", "</details>", ""])


def finding_lines(result: ScanResult, finding: Finding, say: Labels) -> Iterator[str]:
    """One finding as a list item, with its difference below it."""
    cell = "" if finding.cell is None else f"{say('cell')} {finding.cell + 1}, "
    reason = bracket(escape(finding.reason), say.tell) if finding.reason else ""
    tier = say(finding.tier.value) if finding.tier is not Tier.REPORT else say("by_hand")
    yield (
        f"- {cell}{say('line')} {finding.line}: **{finding.rule}** ({tier}) "
        f"{escape(finding.message)}{reason}"
    )
    if finding.tier is Tier.REPORT:
        return
    changes = hunks(finding, result.excerpts)
    if not changes:
        return
    lines = [
        f"{sign}{line}"
        for hunk in changes
        for sign, part in (("-", hunk.before), ("+", hunk.after))
        for line in part
    ]
    fence = "`" * max(3, 1 + longest_run("\n".join(lines), "`"))
    yield f"  {fence}diff"
    yield from (f"  {line}" for line in lines)
    yield f"  {fence}"
