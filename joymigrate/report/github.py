"""Findings as GitHub workflow commands: annotations on the lines of a pull request.

GitHub shows ten annotations of each kind per step; the log has all of them.
"""

from __future__ import annotations

from joymigrate.language import Language, bracket
from joymigrate.model import Finding, Tier
from joymigrate.report.result import ScanResult
from joymigrate.rewrite.readiness import UNREADABLE

KINDS = {Tier.SAFE: "notice", Tier.UNSAFE: "warning", Tier.REPORT: "warning"}


def render(result: ScanResult) -> str:
    """One command per finding, then the closing line."""
    lines = [command(result, finding) for finding in result.scan.findings]
    title = result.say("unused ignore")
    lines += [
        annotate("warning", text, file=place(result, path), line=str(line), title=title)
        for path, line, text in result.scan.unused_ignores
    ]
    return "\n".join([*lines, result.grades(result.say), result.last_line()]) + "\n"


def command(result: ScanResult, finding: Finding) -> str:
    """`::warning file=…,line=…::message` for one finding. Columns only within one line."""
    kind = "error" if finding.rule == UNREADABLE else KINDS[finding.tier]
    first = finding.file_line or finding.line
    last = first + finding.end_line - finding.line
    fields = {
        "file": place(result, finding.path),
        "line": str(first),
        "endLine": str(last),
        "title": f"{finding.rule} {finding.name}",
    }
    if first == last and finding.cell is None:
        fields |= {"col": str(finding.column), "endColumn": str(finding.end_column)}
    return annotate(kind, words(finding, result.say), **fields)


def annotate(kind: str, text: str, **fields: str) -> str:
    """A workflow command: `kind` is error, warning or notice."""
    properties = ",".join(f"{key}={value(one)}" for key, one in fields.items())
    return f"::{kind} {properties}::{data(text)}"


def words(finding: Finding, say: Language) -> str:
    """The message, with what would be written or why nothing is."""
    if finding.tier is Tier.REPORT or finding.after is None:
        return finding.message + (bracket(finding.reason, say) if finding.reason else "")
    note = "" if finding.tier is Tier.SAFE else " --unsafe"
    change = f"{finding.before} → {finding.after}" if finding.before else finding.after
    return f"{finding.message}\njoymigrate rewrite{note}: {change}"


def place(result: ScanResult, path: str) -> str:
    """The path from the folder in which the tool runs, as GitHub wants it."""
    return f"{result.prefix() or ''}{path}"


def data(text: str) -> str:
    """Text of a command, escaped so that it can't start another one."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def value(text: str) -> str:
    """Text of a property, which `,` and `:` would end."""
    return data(text).replace(":", "%3A").replace(",", "%2C")
