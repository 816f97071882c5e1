"""A rewrite as text and as json (`joymigrate.rewrite/1`)."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from joymigrate.ledger import sha256
from joymigrate.model import Finding, Patch, Tier
from joymigrate.rewrite.outcome import Outcome, why_left

SCHEMA = "joymigrate.rewrite/1"
SHOWN = 15  # sites that stay as they are, unless -v


def counted(number: int, noun: str) -> str:
    """`1 site`, `2 sites`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def text(outcome: Outcome, *, wrote: bool, verbose: bool = False, quiet: bool = False) -> str:
    """What was changed per file and rule, what was left and why, and the way back."""
    lines = []
    if not quiet:
        lines += [*file_lines(outcome), *left_lines(outcome, verbose), *remarks(outcome)]
    lines.append(last_line(outcome, wrote=wrote))
    return "\n".join(lines) + "\n"


def file_lines(outcome: Outcome) -> list[str]:
    """One line per file: how many sites, which rules."""
    rows = [(outcome.name_of(patch), what_happened(patch)) for patch in outcome.patches]
    width = min(max((len(name) for name, _ in rows), default=0), 60)
    return [f"{name:<{width}}  {happened}" for name, happened in rows]


def what_happened(patch: Patch) -> str:
    """`3 sites: JM101 x2, JM120`, `new`."""
    if patch.before is None:
        return "new"
    if patch.after is None:
        return "removed"
    if not patch.findings:
        return "changed"
    rules = Counter(finding.rule for finding in patch.findings)
    names = ", ".join(f"{rule} x{n}" if n > 1 else rule for rule, n in sorted(rules.items()))
    return f"{counted(len(patch.findings), 'site')}: {names}"


def left_lines(outcome: Outcome, verbose: bool) -> list[str]:
    """The sites that stay, each with the reason; without `verbose` the first few."""
    left = outcome.left()
    if not left:
        return []
    shown = left if verbose else left[:SHOWN]
    lines = ["", f"Left as they are: {counted(len(left), 'site')}."]
    lines += [f"  {site(finding)}: {finding.rule} {why_left(finding)}" for finding in shown]
    if len(shown) < len(left):
        lines.append(f"  and {len(left) - len(shown)} more (-v shows all)")
    return lines


def site(finding: Finding) -> str:
    """`path:line:col`, with the cell for a notebook (cells count from 1 for people)."""
    cell = "" if finding.cell is None else f"cell {finding.cell + 1}:"
    return f"{finding.path}:{cell}{finding.line}:{finding.column}"


def remarks(outcome: Outcome) -> list[str]:
    """What the user should know besides."""
    lines = [f"not written: {path}: {reason}" for path, reason in outcome.left_files]
    lines += [f"note: {note}" for note in outcome.notes]
    lines += [f"not read: {skip.path}: {skip.reason}" for skip in outcome.scan.skipped]
    return ["", *lines] if lines else []


def last_line(outcome: Outcome, *, wrote: bool) -> str:
    """How much, where it is recorded, and how to go back."""
    sites, files = len(outcome.edits()), len(outcome.patches)
    left = outcome.left()
    unsafe = sum(1 for f in left if f.tier is Tier.UNSAFE and f.after is not None)
    more = f" ({unsafe} more with --unsafe)" if unsafe else ""
    if not outcome.patches:
        done = f"Copied to {outcome.output}; nothing" if outcome.output else "Nothing"
        return f"{done} to rewrite in {counted(outcome.scan.scanned, 'file')}{more}."
    amount = f"{counted(sites, 'site')} in {counted(files, 'file')}{more}"
    if not wrote:
        return f"Would rewrite {amount}."
    into = f" into {outcome.output}" if outcome.output else ""
    if outcome.step is None:
        return f"Rewrote {amount}{into}."
    back = f"joymigrate rollback {outcome.step.id}{project_option(outcome)}"
    return f"Rewrote {amount}{into}, step {outcome.step.id}. The way back: {back}"


def project_option(outcome: Outcome) -> str:
    """` --project DIR` where the working directory is not in the project."""
    root = outcome.ledger.root
    if Path.cwd().is_relative_to(root):
        return ""
    return f" --project {shlex.quote(str(root))}"


def as_json(outcome: Outcome, *, wrote: bool, diff: bytes | None = None) -> str:
    """The whole outcome for machines, with the diff where one was asked for.

    Bytes of the diff that are not UTF-8 become lone surrogates, as Python's surrogateescape.
    """
    left = outcome.left()
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
        "edits": [finding_json(finding) for finding in outcome.edits()],
        "left": [{**finding_json(f), "reason": why_left(f)} for f in left],
        "not_written": [{"path": path, "reason": why} for path, why in outcome.left_files],
        "skipped": [{"path": s.path, "reason": s.reason} for s in outcome.scan.skipped],
        "notes": list(outcome.notes),
        "summary": {
            "scanned": outcome.scan.scanned,
            "files": len(outcome.patches),
            "edits": len(outcome.edits()),
            "by_rule": outcome.by_rule(),
            "left": {tier.value: sum(1 for f in left if f.tier is tier) for tier in Tier},
        },
    }
    if diff is not None:
        document["diff"] = diff.decode("utf-8", "surrogateescape")
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def file_json(outcome: Outcome, patch: Patch) -> dict[str, Any]:
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


def finding_json(finding: Finding) -> dict[str, Any]:
    """One site; the same names as in `joymigrate.scan/1`."""
    fields: dict[str, Any] = {
        "rule": finding.rule,
        "name": finding.name,
        "tier": finding.tier.value,
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "end_column": finding.end_column,
        "message": finding.message,
        "before": finding.before,
        "after": finding.after,
    }
    if finding.cell is not None:
        fields["cell"] = finding.cell
    return fields
