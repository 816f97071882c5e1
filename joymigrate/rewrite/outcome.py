"""What a rewrite did or would do: the edits, what was left and why."""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joymigrate.language import Text
from joymigrate.ledger import Ledger, Recovered, Step
from joymigrate.model import Finding, Patch, Scan, Tier
from joymigrate.rewrite.apply import apply
from joymigrate.rewrite.copy import rewritten_copy
from joymigrate.rewrite.diff import write_unified

UNSAFE = "it needs review first; --unsafe writes it"


@dataclass(frozen=True, slots=True)
class RewriteOutcome:
    """One rewrite. `step` is None when nothing was written, `output` the folder of a copy.

    `recovered` is an interrupted command that was ended first; `notes` are remarks on files.
    """

    scan: Scan
    patches: tuple[Patch, ...]
    ledger: Ledger
    step: Step | None = None
    output: Path | None = None
    recovered: Recovered | None = None
    left_files: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def edits(self) -> list[Finding]:
        """The sites that are (or would be) rewritten."""
        return [finding for patch in self.patches for finding in patch.findings]

    def left(self) -> list[Finding]:
        """The sites that stay as they are, by place."""
        written = {place(finding) for finding in self.edits()}
        why = {place(f): reason for patch in self.patches for f, reason in patch.left}
        return [
            replace(finding, reason=why.get(place(finding), finding.reason))
            for finding in self.scan.findings
            if place(finding) not in written
        ]

    def by_rule(self) -> dict[str, int]:
        """Number of rewritten sites per rule."""
        return dict(sorted(Counter(finding.rule for finding in self.edits()).items()))

    def name_of(self, patch: Patch) -> str:
        """A patch's file, POSIX and relative to the scan's root."""
        return relative(patch.path, self.scan.root)


def place(finding: Finding) -> tuple[object, ...]:
    """What tells one site from another."""
    return (finding.path, finding.cell, finding.line, finding.column, finding.rule, finding.before)


def why_left(finding: Finding) -> str:
    """Why a site stays as it is."""
    if finding.reason:
        return finding.reason
    if finding.tier is Tier.UNSAFE and finding.after is not None:
        return UNSAFE
    return finding.message


def relative(path: Path, root: Path) -> str:
    """`path` POSIX and relative to `root`; absolute where it lies elsewhere."""
    if path.is_absolute() and path.is_relative_to(root):
        path = path.relative_to(root)
    return path.as_posix()


def diff(patches: Iterable[Patch], scan_root: Path) -> bytes:
    """All patches as one diff for `git apply`; file names start at git's top folder, if any."""
    top = git_top(scan_root) or scan_root
    parts = []
    for patch in patches:
        path = scan_root / patch.path
        mode = path.stat().st_mode if path.exists() else 0o644
        # A link is written through: git, too, has to change the file behind it.
        name = relative(path.resolve(), top.resolve())
        parts.append(write_unified(name, patch.before, patch.after, mode))
    return b"".join(parts)


def git_top(path: Path) -> Path | None:
    """The top folder of the git work tree that holds `path`."""
    path = path.resolve()
    return next((here for here in (path, *path.parents) if (here / ".git").exists()), None)


def in_place(
    scan: Scan,
    patches: Sequence[Patch],
    ledger: Ledger,
    *,
    command: str,
    unsafe: bool,
    allow_dirty: bool,
) -> RewriteOutcome:
    """Write the patches into the tree as one step."""
    applied = apply(
        patches,
        ledger,
        base=scan.root,
        command=command,
        chip=scan.to,
        details=details(scan, patches, unsafe),
        artefacts={"edits.json": edits_json(patches)},
        allow_dirty=allow_dirty,
    )
    left = {reached for reached, _ in applied.left}
    written = tuple(patch for patch in patches if str(scan.root / patch.path) not in left)
    return RewriteOutcome(
        scan, written, ledger, applied.step, left_files=applied.left, notes=applied.notes
    )


def to_copy(
    scan: Scan,
    patches: Sequence[Patch],
    paths: Sequence[Path],
    output: Path,
    *,
    command: str,
    unsafe: bool,
) -> RewriteOutcome:
    """Write a rewritten copy of `paths` to `output`."""
    moved = [
        Patch(Path(relative(patch.path, scan.root)), patch.before, patch.after, patch.findings)
        for patch in patches
    ]
    outcomes = []

    def write(part: Path) -> None:
        for patch in moved:
            lift_protection(part / patch.path)
        outcomes.append(
            in_place(
                replace(scan, root=part),
                moved,
                Ledger(part),
                command=command,
                unsafe=unsafe,
                allow_dirty=True,
            )
        )

    left = rewritten_copy(paths, scan.root, output, write)
    done = outcomes[0]
    notes = tuple(Text("{name} is an environment and was not copied", name=name) for name in left)
    return RewriteOutcome(
        scan,
        done.patches,
        Ledger(output),
        done.step,
        output,
        left_files=done.left_files,
        notes=(*done.notes, *notes),
    )


def lift_protection(path: Path) -> None:
    """Let the owner write a file of the copy whose original is read-only."""
    if path.is_file() and not path.is_symlink() and not path.stat().st_mode & stat.S_IWUSR:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)


def details(scan: Scan, patches: Sequence[Patch], unsafe: bool) -> dict[str, object]:
    """What the ledger keeps about a rewrite."""
    rules = Counter(finding.rule for patch in patches for finding in patch.findings)
    return {
        "style": scan.style.value,
        "origin": scan.origin,
        "unsafe": unsafe,
        "edits": sum(rules.values()),
        "rules": dict(sorted(rules.items())),
    }


def edits_json(patches: Iterable[Patch]) -> bytes:
    """Every rewritten site, for tools that follow names through the ledger."""
    edits = [
        {
            "path": finding.path,
            "cell": finding.cell,
            "line": finding.line,
            "column": finding.column,
            "rule": finding.rule,
            "tier": finding.tier.value,
            "before": finding.before,
            "after": finding.after,
        }
        for patch in patches
        for finding in patch.findings
    ]
    document = {"schema": "joymigrate.edits/1", "edits": edits}
    return json.dumps(document, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace")
