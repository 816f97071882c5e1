"""Findings as text: one line each in a pipe, with excerpt, caret and suggestion on a terminal.

Nothing is wrapped. Colour is written only when the caller asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len

from joymigrate.language import Language, bracket, pad, traits, width
from joymigrate.model import Finding, Tier
from joymigrate.report.changes import hunks
from joymigrate.report.labels import Labels
from joymigrate.report.result import ScanResult, count_words

MARKS = {Tier.SAFE: "[*] ", Tier.UNSAFE: "[~] ", Tier.REPORT: ""}
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
MANUAL_SHOWN = 8
TAB = 4
LONGEST_SITE = 60  # characters of source that a line of text quotes


class Paint:
    """Wraps text in terminal colours, or leaves it alone."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __call__(self, text: str, *styles: str) -> str:
        """`text` in the named styles."""
        if not self.on or not text:
            return text
        return f"\033[{';'.join(STYLES[style] for style in styles)}m{text}\033[0m"


def render(
    result: ScanResult, *, terminal: bool = False, color: bool = False, summary: bool = False
) -> str:
    """The whole report, ending with the closing line; `summary` puts the readiness before it."""
    paint = Paint(color)
    blocks: list[str] = []
    if result.statistics:
        blocks += statistics(result, paint)
    else:
        for finding in result.scan.findings:
            blocks.append(finding_line(result, finding, paint))
            if terminal:
                blocks += [*excerpt(result, finding, paint), ""]
    if result.show_kept:
        blocks += [kept_line(result, index) for index in range(len(result.scan.kept))]
    if summary and result.readiness.sites:
        blocks.append(readiness(result, color=color))
    blocks.append(paint(result.last_line(), "bold"))
    return "\n".join(blocks) + "\n"


def finding_line(result: ScanResult, finding: Finding, paint: Paint) -> str:
    """`path:line:col: JM101 [*] message (reason)`."""
    cell = "" if finding.cell is None else f"cell {finding.cell + 1}:"
    path = paint(result.display_path(finding.path), "bold")
    colon = paint(":", "cyan")
    where = f"{path}{colon}{cell}{finding.line}{colon}{finding.column}{colon}"
    rule = paint(finding.rule, "bold", "red")
    mark = paint(MARKS[finding.tier], "green" if finding.tier is Tier.SAFE else "yellow")
    return f"{where} {rule} {mark}{phrase(finding, result.say)}{reason(finding, result.say)}"


def phrase(finding: Finding, say: Language) -> str:
    """The message, with what was found and what takes its place unless it says so itself."""
    words = one_line(finding.message)
    quoted = "" if f"`{finding.before}`" in words else quote(finding.before)
    after = "" if finding.tier is Tier.REPORT else quote(finding.after or "")
    colon = traits(say.lang).marks["colon"]
    if not finding.before:
        return f"{words}{colon}{after}" if after else words
    return (f"{words}{colon}{quoted}" if quoted else words) + (f" → {after}" if after else "")


def quote(source: str) -> str:
    """Source in backticks; nothing for a piece too long for one line of text."""
    flat = one_line(source)
    return f"`{flat}`" if 0 < len(flat) <= LONGEST_SITE else ""


def reason(finding: Finding, say: Language) -> str:
    """Why nothing is written, unless the message says it already."""
    if not finding.reason or finding.reason in finding.message:
        return ""
    return bracket(one_line(finding.reason), say)


def one_line(text: str) -> str:
    """Text with its line ends and control characters as blanks."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def excerpt(result: ScanResult, finding: Finding, paint: Paint) -> Iterator[str]:
    """The source with a caret underline, and what would be written there."""
    lines = result.excerpts.around(finding)
    changes = () if finding.tier is Tier.REPORT else hunks(finding, result.excerpts)
    numbers = [number for number, _ in lines] + [hunk.line for hunk in changes]
    margin = len(str(max(numbers, default=1)))
    bar = paint("|", "cyan")
    if lines:
        yield f"{' ' * margin} {bar}"
    for number, line in lines:
        yield f"{paint(f'{number:>{margin}}', 'cyan')} {bar} {expand(line)}".rstrip()
        yield f"{' ' * margin} {bar} {paint(carets(finding, number, line), 'red')}".rstrip()
    yield from suggestion(result, finding, margin, paint)


def carets(finding: Finding, number: int, line: str) -> str:
    """`^^^` below the finding's part of one line, by the width that a terminal gives it."""
    first = finding.column - 1 if number == finding.line else len(line) - len(line.lstrip())
    last = finding.end_column - 1 if number == finding.end_line else len(line)
    lead = cell_len(expand(line[:first]))
    return " " * lead + "^" * max(1, cell_len(expand(line[:last])) - lead)


def expand(line: str) -> str:
    """The line with tabs as blanks and control characters as `?`."""
    return "".join(c if c.isprintable() else "?" for c in line.expandtabs(TAB))


def suggestion(result: ScanResult, finding: Finding, margin: int, paint: Paint) -> Iterator[str]:
    """What would be written: in one line where the site itself changes, else as a difference."""
    say = result.say
    pad, help = " " * margin, paint(say("help:"), "bold", "cyan")
    note = bracket(result.say("with --unsafe"), result.say) if finding.tier is Tier.UNSAFE else ""
    changes = () if finding.tier is Tier.REPORT else hunks(finding, result.excerpts)
    if finding.tier is Tier.REPORT or finding.after is None:
        rule = result.rules.get(finding.rule)
        if rule is not None and rule.why:
            yield f"{pad} {help} {one_line(rule.why)}"
        yield f"{pad} {help} joymigrate explain {finding.rule}"
        return
    if len(changes) == 1 and changes[0].line == finding.line and len(changes[0].after) == 1:
        yield f"{pad} {help} {say('write')} `{one_line(finding.after)}`{note}"
        return
    yield f"{pad} {help} {say('joymigrate rewrite changes')}{note}"
    for hunk in changes:
        for sign, lines, colour in (("-", hunk.before, "red"), ("+", hunk.after, "green")):
            for offset, line in enumerate(lines):
                number = f"{hunk.line + offset:>{margin}}"
                yield f"{paint(number, 'cyan')} {paint(f'{sign} {expand(line)}', colour)}"


def statistics(result: ScanResult, paint: Paint) -> list[str]:
    """One line per rule and tier: how many sites, what happens to them."""
    items = sorted(result.readiness.items, key=lambda item: (-item.sites, item.rule))
    digits = len(f"{items[0].sites:,}") if items else 1
    names = max((len(item.name) for item in items), default=0)
    say = Labels(result.say.lang)
    return [
        f"{item.sites:>{digits},} {paint(item.rule, 'bold', 'red')} "
        f"{paint(MARKS[item.tier].strip() or '[ ]', 'green')} {item.name:<{names}} "
        f"{count_words(item.files, 'file', result.say)}, {say.duration(item.minutes)}"
        for item in items
    ]


def kept_line(result: ScanResult, index: int) -> str:
    """One mention that stays as it is."""
    kept = result.scan.kept[index]
    where = f"{result.display_path(kept.path)}:{kept.line}:{kept.column}"
    kind = result.say("kept ({kind})", kind=result.say(kept.kind))
    return f"{where}: {kind} {one_line(kept.text)}"


def warnings(result: ScanResult, *, color: bool = False) -> list[str]:
    """What the user should know beside the findings: dead ignores, dead entries, unread files."""
    say = result.say
    note = Paint(color)(say("warning:"), "yellow")
    unused = [
        f"{result.display_path(path)}:{line}:1: {note} {say('unused ignore')}: {one_line(text)}"
        for path, line, text in result.scan.unused_ignores
    ]
    stale = [
        f"{entry.path}: {note} {say('stale baseline entry')}: {entry.rule} {one_line(entry.before)}"
        for entry in result.stale
    ]
    return [*unused, *stale]


def skipped_lines(result: ScanResult) -> list[str]:
    """Files that were not read, one line each."""
    say = result.say
    return [
        f"{result.display_path(o.path)}: {say('not read')}: {o.reason}" for o in result.scan.skipped
    ]


def readiness(result: ScanResult, *, color: bool = False) -> str:
    """The summary block: shares, areas, the heaviest work by hand, the effort model."""
    paint = Paint(color)
    summary, say = result.readiness, Labels(result.say.lang)
    if not summary.sites:
        return ""
    head = say.tell(
        "Readiness for {to} ({style} style): {share} automatic, {more} with --unsafe, "
        "about {effort} of work",
        to=result.scan.to,
        style=result.scan.style.value,
        share=f"{summary.automatic or 0:.0%}",
        more=f"{summary.automatic_unsafe or 0:.0%}",
        effort=say.duration(summary.minutes),
    )
    if summary.unread:
        head += say.tell("; {number} files not read", number=summary.unread)
    first, _, rest = head.partition(" ")
    heads = zip(("sites", "safe", "unsafe", "by hand"), (7, 7, 8, 9), strict=True)
    titles = "".join(pad("", n - width(say.tell(one))) + say.tell(one) for one, n in heads)
    lines = [
        f"{paint(first, 'bold')} {rest}",
        "",
        f"  {pad(say.tell('area'), 14)}{titles}   {say.tell('effort')}",
    ]
    for area in summary.areas:
        safe, unsafe, by_hand = (area.tiers[tier] for tier in Tier)
        lines.append(
            f"  {pad(say.area(area.name), 14)}{area.sites:>7,}{safe:>7,}{unsafe:>8,}"
            f"{by_hand:>9,}   {say.duration(area.minutes)}"
        )
    colon = traits(say.lang).marks["colon"]
    if summary.manual:
        lines += ["", f"  {say.tell('by hand, the heaviest first:')}"]
    for item in summary.manual[:MANUAL_SHOWN]:
        sites = f"{count_words(item.sites, 'site', say.tell)}, {say.duration(item.minutes)}"
        shown = ", ".join(text for text, _ in item.samples)
        what = one_line(item.title) + (colon + one_line(shown) if shown else "")
        lines.append(f"  {item.rule} {what}{bracket(sites, say.tell)}")
    if len(summary.manual) > MANUAL_SHOWN:
        number = len(summary.manual) - MANUAL_SHOWN
        lines.append("  " + say.tell("… and {number} more rules", number=number))
    lines += ["", f"  {result.grades(say.tell)}"]
    model = [*say.model(summary.model), say("model_note")]
    lines += ["", f"  {say('model')}{colon.rstrip()}", *(f"    {one}" for one in model)]
    return "\n".join(lines) + "\n"
