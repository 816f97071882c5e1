"""Known findings: a file of fingerprints, so that only new sites are reported.

A fingerprint is made of rule, path, the site's text and its line's text, all with white space
evened out, plus a counter among equal ones. It survives lines moving up and down and a change of
indentation; it changes when the line's text does.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.model import Finding, Scan
from joymigrate.rewrite.excerpts import Excerpts

SCHEMA = "joymigrate.baseline/1"


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """One entry of a baseline. `path` is POSIX and relative to the baseline file's folder."""

    fingerprint: str
    rule: str
    path: str
    before: str


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """A scan without its known findings; how many those were; entries that no longer occur."""

    scan: Scan
    known: int
    stale: tuple[BaselineEntry, ...]


def fingerprints(
    findings: Sequence[Finding],
    line_of: Callable[[Finding], str],
    path_of: Callable[[Finding], str] = lambda finding: finding.path,
) -> list[str]:
    """One fingerprint per finding, in their order; no two are equal."""
    seen: Counter[str] = Counter()
    found = []
    for finding in findings:
        parts = (
            finding.rule,
            path_of(finding),
            even_blanks(finding.before),
            even_blanks(line_of(finding)),
        )
        key = "\0".join(parts)
        seen[key] += 1
        text = f"{key}\0{seen[key]}".encode("utf-8", errors="surrogatepass")
        found.append(hashlib.sha256(text).hexdigest()[:20])
    return found


def even_blanks(text: str) -> str:
    """Runs of white space as one blank each."""
    return " ".join(text.split())


def entries(scan: Scan, folder: Path) -> list[BaselineEntry]:
    """The findings of a scan as baseline entries, with paths relative to `folder`."""

    def path_of(finding: Finding) -> str:
        return relative(scan.root / finding.path, folder)

    marks = fingerprints(scan.findings, Excerpts(scan.root).line, path_of)
    return [
        BaselineEntry(mark, finding.rule, path_of(finding), even_blanks(finding.before)[:120])
        for mark, finding in zip(marks, scan.findings, strict=True)
    ]


def render(scan: Scan, folder: Path) -> str:
    """The text of a baseline file, ordered so that a new site is one new line."""
    known = sorted(entries(scan, folder), key=lambda e: (e.path, e.rule, e.before, e.fingerprint))
    rows = ",\n".join(
        "  "
        + json.dumps(
            {name: getattr(e, name) for name in BaselineEntry.__slots__}, ensure_ascii=False
        )
        for e in known
    )
    head = f'{{"schema": "{SCHEMA}", "to": {json.dumps(scan.to)}, "findings": ['
    return f"{head}\n{rows}\n]}}\n" if rows else f"{head}]}}\n"


def read(path: Path) -> list[BaselineEntry]:
    """The entries of a baseline file; anything else raises `JoyError`."""
    remedy = f"write it with: joymigrate scan PATH --write-baseline {path}"
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise JoyError(
                f"not a baseline of this version: schema {document['schema']!r}, expected "
                f"'{SCHEMA}'",
                where=str(path),
                help=remedy,
            )
        return [
            BaselineEntry(**{k: str(raw[k]) for k in BaselineEntry.__slots__})
            for raw in document["findings"]
        ]
    except OSError as error:
        raise JoyError(
            f"cannot read the baseline: {error.strerror}", where=str(path), help=remedy
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise JoyError(f"not a baseline: {error}", where=str(path), help=remedy) from None


def compare(
    scan: Scan, known: Iterable[BaselineEntry], folder: Path, within: Sequence[Path] = ()
) -> BaselineComparison:
    """Take the known findings out of a scan.

    An entry is stale when its site no longer occurs although its file lies in what was scanned:
    `within` names the scanned paths (default: the scan's root).
    """
    open_entries = {entry.fingerprint: entry for entry in known}
    new = []
    for finding, entry in zip(scan.findings, entries(scan, folder), strict=True):
        if open_entries.pop(entry.fingerprint, None) is None:
            new.append(finding)
    scopes = [path.resolve() for path in within or (scan.root,)]
    stale = tuple(
        entry
        for entry in open_entries.values()
        if any((folder / entry.path).resolve().is_relative_to(scope) for scope in scopes)
    )
    left = replace(scan, findings=tuple(new))
    return BaselineComparison(left, len(scan.findings) - len(new), stale)


def relative(path: Path, folder: Path) -> str:
    """`path` seen from `folder`, POSIX, with `..` where needed."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
