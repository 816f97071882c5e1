"""A rewrite as text and as json (`joymigrate.rewrite/1`)."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import Language, bracket, pad, with_texts
from joymigrate.ledger import sha256
from joymigrate.model import Finding, Patch, Tier
from joymigrate.report.fields import fields
from joymigrate.report.json_ import SPAN
from joymigrate.report.result import count_words
from joymigrate.rewrite.outcome import RewriteOutcome, why_left

SCHEMA = "joymigrate.rewrite/1"
SHOWN = 15  # sites that stay as they are, unless -v


def text(
    outcome: RewriteOutcome,
    *,
    wrote: bool,
    verbose: bool = False,
    quiet: bool = False,
    lang: str = "en",
) -> str:
    """What was changed per file and rule, what was left and why, and the way back."""
    say = Language(lang)
    lines = []
    if not quiet:
        lines += [*file_lines(outcome, say), *left_lines(outcome, say, verbose)]
        lines += remarks(outcome, say)
        grades = grades_of(outcome)
        lines += [grade_line(grades, say)] if any(grades.values()) else []
    lines.append(last_line(outcome, say, wrote=wrote))
    return "\n".join(lines) + "\n"


def grades_of(outcome: RewriteOutcome) -> dict[str, int]:
    """How well what a rewrite says of the chip is known: all of it from documents."""
    return count_grades("documented" for _ in [*outcome.edits(), *outcome.left()])


def file_lines(outcome: RewriteOutcome, say: Language) -> list[str]:
    """One line per file: how many sites, which rules."""
    rows = [(outcome.name_of(patch), what_happened(patch, say)) for patch in outcome.patches]
    columns = min(max((len(name) for name, _ in rows), default=0), 60)
    return [f"{pad(name, columns)}  {happened}" for name, happened in rows]


def what_happened(patch: Patch, say: Language) -> str:
    """`3 sites: JM101 x2, JM120`, `new`."""
    if patch.before is None:
        return say("new")
    if patch.after is None:
        return say("removed")
    if not patch.findings:
        return say("changed")
    rules = Counter(finding.rule for finding in patch.findings)
    names = ", ".join(f"{rule} x{n}" if n > 1 else rule for rule, n in sorted(rules.items()))
    return f"{count_words(len(patch.findings), 'site', say)}: {names}"


def left_lines(outcome: RewriteOutcome, say: Language, verbose: bool) -> list[str]:
    """The sites that stay, each with the reason; without `verbose` the first few."""
    left = outcome.left()
    if not left:
        return []
    shown = left if verbose else left[:SHOWN]
    sites = count_words(len(left), "site", say)
    lines = ["", say("Left as they are: {sites}.", sites=sites)]
    lines += [f"  {site(finding)}: {finding.rule} {say(why_left(finding))}" for finding in shown]
    if len(shown) < len(left):
        number = len(left) - len(shown)
        lines.append("  " + say("and {number} more (-v shows all)", number=number))
    return lines


def site(finding: Finding) -> str:
    """`path:line:col`, with the cell for a notebook (cells count from 1 for people)."""
    cell = "" if finding.cell is None else f"cell {finding.cell + 1}:"
    return f"{finding.path}:{cell}{finding.line}:{finding.column}"


def remarks(outcome: RewriteOutcome, say: Language) -> list[str]:
    """What the user should know besides."""
    lines = [f"{say('not written')}: {path}: {say(reason)}" for path, reason in outcome.left_files]
    lines += [f"{say('note')}: {say(note)}" for note in outcome.notes]
    lines += [
        f"{say('not read')}: {skip.path}: {say(skip.reason)}" for skip in outcome.scan.skipped
    ]
    return ["", *lines] if lines else []


def last_line(outcome: RewriteOutcome, say: Language, *, wrote: bool) -> str:
    """How much, where it is recorded, and how to go back."""
    sites, files = len(outcome.edits()), len(outcome.patches)
    left = outcome.left()
    unsafe = sum(1 for f in left if f.tier is Tier.UNSAFE and f.after is not None)
    more = bracket(say("{number} more with --unsafe", number=unsafe), say) if unsafe else ""
    if not outcome.patches:
        done = "Nothing to rewrite in {files}{more}."
        if outcome.output:
            done = "Copied to {output}; nothing to rewrite in {files}{more}."
        read = count_words(outcome.scan.scanned, "file", say)
        return say(done, output=outcome.output, files=read, more=more)
    parts = {"sites": count_words(sites, "site", say), "files": count_words(files, "file", say)}
    amount = say("{sites} in {files}", **parts) + more
    if not wrote:
        return say("Would rewrite {amount}.", amount=amount)
    into = say(" into {output}", output=outcome.output) if outcome.output else ""
    if outcome.step is None:
        return say("Rewrote {amount}{into}.", amount=amount, into=into)
    back = f"joymigrate rollback {outcome.step.id}{project_option(outcome)}"
    return say(
        "Rewrote {amount}{into}, step {step}. Undo: {back}",
        amount=amount, into=into, step=outcome.step.id, back=back,
    )  # fmt: skip


def project_option(outcome: RewriteOutcome) -> str:
    """` --project DIR` where the working directory is not in the project."""
    root = outcome.ledger.root
    if Path.cwd().is_relative_to(root):
        return ""
    return f" --project {shlex.quote(str(root))}"


def as_json(
    outcome: RewriteOutcome, *, wrote: bool, diff: bytes | None = None, lang: str = "en"
) -> str:
    """The whole outcome for machines, with the diff where one was asked for.

    Bytes of the diff that are not UTF-8 become lone surrogates, as Python's surrogateescape.
    """
    say, left = Language(lang), outcome.left()
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "to": outcome.scan.to,
        "from": outcome.scan.origin,
        "style": outcome.scan.style.value,
        "root": str(outcome.scan.root),
        "project": str(outcome.ledger.root),
        "output": str(outcome.output) if outcome.output else None,
        "applied": wrote and bool(outcome.patches),
        "step": outcome.step.id if outcome.step else None,
        "files": [file_json(outcome, patch) for patch in outcome.patches],
        "edits": [finding_json(finding, say) for finding in outcome.edits()],
        "left": [{**finding_json(f, say), "reason": say(why_left(f))} for f in left],
        "not_written": [{"path": path, "reason": say(why)} for path, why in outcome.left_files],
        "skipped": [{"path": s.path, "reason": say(s.reason)} for s in outcome.scan.skipped],
        "notes": list(map(say, outcome.notes)),
        "summary": {
            "scanned": outcome.scan.scanned,
            "files": len(outcome.patches),
            "edits": len(outcome.edits()),
            "by_rule": outcome.by_rule(),
            "grades": grades_of(outcome),
            "left": {tier.value: sum(1 for f in left if f.tier is tier) for tier in Tier},
        },
    }
    if diff is not None:
        document["diff"] = diff.decode("utf-8", "surrogateescape")
    return json.dumps(with_texts(document), ensure_ascii=False, indent=1) + "\n"


def file_json(outcome: RewriteOutcome, patch: Patch) -> dict[str, Any]:
    """One file of the outcome."""
    status = "modified"
    if patch.before is None:
        status = "created"
    elif patch.after is None:
        status = "removed"
    return {
        "path": outcome.name_of(patch),
        "status": status,
        "before": None if patch.before is None else sha256(patch.before),
        "after": None if patch.after is None else sha256(patch.after),
        "edits": len(patch.findings),
    }


def finding_json(finding: Finding, say: Language) -> dict[str, Any]:
    """One site; the same names as in `joymigrate.scan/1`."""
    found = fields(finding, f"rule name tier path {SPAN} message before after")
    found["message"] = say(finding.message)
    return found if finding.cell is None else found | {"cell": finding.cell}
