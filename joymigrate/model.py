"""The nouns that cross between packages: frozen dataclasses, no behaviour beyond themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path


class Tier(str, Enum):
    """How far an edit can be trusted: applied by default, applied on request, only reported."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    REPORT = "report"


class Style(str, Enum):
    """What rewritten code looks like: one chip, torch's portable names, any chip through a
    generated helper, or the vendor's runtime shim."""

    DIRECT = "direct"
    ACCELERATOR = "accelerator"
    AGNOSTIC = "agnostic"
    SHIM = "shim"

    @property
    def portable(self) -> bool:
        """Whether what is written must run on every machine."""
        return self in (Style.ACCELERATOR, Style.AGNOSTIC)


@dataclass(frozen=True, slots=True)
class Case:
    """One example that a rule carries: what it turns `before` into, or leaves alone.

    `file` names the kind of file. `after` is the text under `style` for `chip`; None with `keep`
    False means: reported, not rewritten. With `keep` the rule must stay silent.
    """

    before: str
    after: str | None = None
    keep: bool = False
    file: str = "sample.py"
    style: Style = Style.DIRECT
    chip: str | None = None
    unsafe: bool = False
    files: tuple[tuple[str, str], ...] = ()  # other files of the same project: (path, text)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it looks for, what it writes, and why.

    Templates in `title` and `message` know `{origin}`, `{device}`, `{backend}`, `{chip}` and
    `{before}`. `match` and `write` are read by the matcher that the rule belongs to.
    """

    id: str
    name: str
    title: str
    tier: Tier
    area: str
    message: str
    why: str = ""
    reference: str = ""
    weight: float = 1.0
    match: tuple[dict[str, object], ...] = ()
    cases: tuple[Case, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the bytes `start:end` of a file by `text`. An insertion has `start == end`."""

    start: int
    end: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """One site: where it is, which rule it belongs to, and what would be written there.

    Lines and columns count from 1; columns count code points. `path` is POSIX and relative to the
    scan's root. `after` is None when nothing would be written, and then `reason` says why.
    In a notebook `cell` is the cell's index from 0 and `line` the line inside the cell.
    `edits` are byte spans of the file itself, also in a notebook.
    """

    rule: str
    name: str
    tier: Tier
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    before: str
    after: str | None = None
    reason: str | None = None
    edits: tuple[Edit, ...] = ()
    cell: int | None = None
    file_line: int | None = None  # the line in the file, where `line` counts inside a cell
    area: str = "device"
    weight: float = 1.0  # effort by hand, in minutes
    needs: str | None = None  # what the edited file must import: "package" or "helper"
    group: str | None = None  # edits of one group are written together or not at all

    def leave(self, reason: str | None) -> Finding:
        """The same place as a report: nothing of it is written."""
        return replace(
            self, tier=Tier.REPORT, after=None, edits=(), needs=None, group=None, reason=reason
        )

    def doubt(self, reason: str | None) -> Finding:
        """The same place with edits that need review (`--unsafe`)."""
        return replace(self, tier=Tier.UNSAFE, reason=reason)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder that was not read, and why; `files` is how many that leaves out."""

    path: str
    reason: str
    files: int = 1


@dataclass(frozen=True, slots=True)
class KeptMention:
    """A mention of the source platform that is not a site: a comment, a docstring, a name."""

    path: str
    line: int
    column: int
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Scan:
    """What one scan found. `sources` maps a path to the file's text for excerpts."""

    root: Path
    to: str
    origin: str
    style: Style
    findings: tuple[Finding, ...]
    scanned: int
    skipped: tuple[Skipped, ...] = ()
    kept: tuple[KeptMention, ...] = ()
    unused_ignores: tuple[tuple[str, int, str], ...] = ()
    suppressed: int = 0
    lines: int = 0
    seconds: float = 0.0
    digests: Mapping[str, str] = field(default_factory=dict)  # path → sha256 of what was read
    rules: tuple[Rule, ...] = ()  # of codemods that the project or a package brought
    # Path, line and column of a finding → the lines (path, line, how) whose value decided about it.
    ways: Mapping[tuple[str, int, int], tuple[tuple[str, int, str], ...]] = field(
        default_factory=dict
    )

    def count(self, tier: Tier) -> int:
        """Number of findings of one tier."""
        return sum(1 for finding in self.findings if finding.tier is tier)


@dataclass(frozen=True, slots=True)
class Patch:
    """New content of one file; `before` is None for a new file, `after` for a removed one."""

    path: Path
    before: bytes | None
    after: bytes | None
    findings: tuple[Finding, ...] = field(default=())
    left: tuple[tuple[Finding, str], ...] = ()  # what the proof left out, each with the reason
