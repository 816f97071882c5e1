"""Lines that are new since a git revision, and the findings that stand on them.

New means: changed or added in the working tree against the revision (staged, unstaged and
untracked alike; a renamed file counts only its changed lines). The revision is taken where the
branch left it (its merge base with HEAD), as a pull request shows it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.model import Finding, Scan

HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
ESCAPE = re.compile(rb'\\([abtnvfr"\\]|[0-7]{3})')
ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}


@dataclass(frozen=True, slots=True)
class Span:
    """Lines `first` to `last` of a file, both included."""

    first: int
    last: int


WHOLE = (Span(1, 1 << 60),)
HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


def only_new(scan: Scan, lines: Mapping[Path, tuple[Span, ...]]) -> Scan:
    """The scan with only the findings that touch one of `lines` (keyed by resolved path)."""
    resolved: dict[str, tuple[Span, ...]] = {}
    kept = []
    for finding in scan.findings:
        if finding.path not in resolved:
            resolved[finding.path] = lines.get((scan.root / finding.path).resolve(), ())
        if touches(finding, resolved[finding.path]):
            kept.append(finding)
    return replace(scan, findings=tuple(kept))


def touches(finding: Finding, spans: tuple[Span, ...]) -> bool:
    """Whether one line of the finding lies in one of the spans."""
    first = finding.file_line or finding.line
    last = first + finding.end_line - finding.line
    return any(span.first <= last and first <= span.last for span in spans)


def new_lines(revision: str, folder: Path) -> dict[Path, tuple[Span, ...]]:
    """New lines of every file below the git tree of `folder`, keyed by resolved path.

    Raises `JoyError` outside a git tree, without git, and for a revision it doesn't know.
    """
    top = Path(git_text(folder, "rev-parse", "--show-toplevel").strip())
    base = merge_base(revision, folder)
    options = ("--unified=0", "--no-color", "--no-ext-diff", "--no-textconv", "-M")
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules", "--diff-filter=d")
    patch = git(top, "diff", *options, *prefixes, base, "--")
    found = {(top / name).resolve(): spans for name, spans in read_patch(patch).items()}
    untracked = git(top, "ls-files", "--others", "--exclude-standard", "-z")
    for name in untracked.split(b"\0"):
        if name:
            found[(top / name.decode("utf-8", "surrogateescape")).resolve()] = WHOLE
    return found


def read_patch(patch: bytes) -> dict[str, tuple[Span, ...]]:
    """Added or changed lines by file name, from `git diff --unified=0`.

    Lines of the files themselves start with `+`, `-` or a blank and can't pass for headers,
    because headers are read only before a file's first hunk and hunk bodies are counted off.
    """
    found: dict[str, list[Span]] = {}
    name: str | None = None
    body = 0
    for line in patch.split(b"\n"):
        if body > 0 and line[:1] in (b"+", b"-", b"\\"):
            body -= line[:1] != b"\\"
            continue
        if line.startswith(b"diff --git "):
            name = None
        elif line.startswith(b"+++ ") and name is None:
            name = file_name(line[4:])
        elif name is not None and (match := HUNK.match(line)):
            old, start, count = (1 if text is None else int(text) for text in match.groups())
            body = old + count
            if count:
                found.setdefault(name, []).append(Span(start, start + count - 1))
    return {key: tuple(spans) for key, spans in found.items()}


def file_name(raw: bytes) -> str:
    """The path in a `+++` line: without its prefix, its tab, and git's C-style quotes."""
    raw = raw.rstrip(b"\r")
    if raw.startswith(b'"'):
        raw = ESCAPE.sub(unescape, raw.rstrip(b"\t")[1:-1])
    else:
        raw = raw.rstrip(b"\t")
    return raw.removeprefix(b"b/").decode("utf-8", "surrogateescape")


def unescape(match: re.Match[bytes]) -> bytes:
    """One C-style escape as the byte it stands for."""
    code = match[1]
    return bytes([ESCAPES[code] if code in ESCAPES else int(code, 8)])


def merge_base(revision: str, folder: Path) -> str:
    """Where HEAD left `revision`; the revision itself when the two share no history."""
    commit = run_git(folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if revision.startswith("-") or commit.returncode != 0:
        raise JoyError(
            f"git knows no revision '{revision}'",
            where=str(folder),
            help="name a branch, tag or commit; a shallow clone has few (git fetch --unshallow)",
        )
    base = commit.stdout.decode().strip()
    common = run_git(folder, "merge-base", base, "HEAD")
    return common.stdout.decode().strip() if common.returncode == 0 else base


def git_text(folder: Path, *arguments: str) -> str:
    """Output of a git command as text."""
    return git(folder, *arguments).decode("utf-8", "surrogateescape")


def git(folder: Path, *arguments: str) -> bytes:
    """Output of a git command; a failure raises `JoyError` with git's own words."""
    result = run_git(folder, *arguments)
    if result.returncode != 0:
        words = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise JoyError(
            f"--diff needs a git tree: {words[-1] if words else 'git failed'}",
            where=str(folder),
            help="run it inside a git checkout",
        )
    return result.stdout


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in `folder`; a missing git raises `JoyError`."""
    # Inside a git hook these point at the hook's own repository and index.
    outside = {key: value for key, value in os.environ.items() if key not in HOOK_VARIABLES}
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=False, env=outside)
    except OSError as error:
        raise JoyError(
            f"--diff needs git: {error.strerror}", where=str(folder), help="install git"
        ) from None
