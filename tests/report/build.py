"""Results for the tests of reports: files on disk, and findings where their texts stand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.language import Language, speaking
from joymigrate.model import Edit, Finding, Rule, Scan, Style, Tier
from joymigrate.report import renderers, scan_document
from joymigrate.report.result import ScanResult, translate
from joymigrate.rewrite.excerpts import Excerpts
from joymigrate.rewrite.readiness import assess

RULE = Rule(
    "JM101", "device-module", "A name of `torch.cuda`", Tier.SAFE, "device", "the origin's device",
    why="Every device has a module.", reference="https://example.org/rule",
)  # fmt: skip


def site(root: Path, path: str, before: str, after: str | None = None, **fields: Any) -> Finding:
    """The first place of `before` in a file as a finding that writes `after`."""
    data = (root / path).read_bytes()
    text = data.decode("utf-8").removeprefix("\ufeff")
    start = text.index(before)
    line = text.count("\n", 0, start) + 1
    column = start - (text.rfind("\n", 0, start) + 1) + 1
    end = start + len(before)
    end_line = text.count("\n", 0, end) + 1
    end_column = end - (text.rfind("\n", 0, end) + 1) + 1
    at = data.index(before.encode())
    edits = () if after is None else (Edit(at, at + len(before.encode()), after.encode()),)
    known = {
        "rule": "JM101", "name": "device-module", "path": path, "message": "the origin's device",
        "tier": Tier.REPORT if after is None else Tier.SAFE, "edits": edits,
    }  # fmt: skip
    return Finding(
        **{**known, **fields}, line=line, column=column, end_line=end_line, end_column=end_column,
        before=before, after=after,
    )  # fmt: skip


def result_of(
    root: Path, *findings: Finding, folder: Path | None = None, **fields: Any
) -> ScanResult:
    """A result over `findings`, seen from `folder` (default: the root itself)."""
    scan_fields = {key: fields.pop(key) for key in list(fields) if key in Scan.__slots__}
    scan = Scan(
        **{
            "root": root, "to": "chip", "origin": "cuda", "style": Style.DIRECT,
            "findings": tuple(sorted(findings, key=lambda f: (f.path, f.line, f.column))),
            "scanned": 1, **scan_fields,
        }
    )  # fmt: skip
    rules: Mapping[str, Rule] = {RULE.id: RULE}
    return ScanResult(
        scan, assess(scan, None, rules), rules, Excerpts(root), folder or root, **fields
    )


def shown(result: ScanResult, form: str, lang: str = "en", when: str = "") -> str:
    """A scan's document in a format."""
    with speaking(Language(lang)):
        document = scan_document.describe(translate(result, Language(lang)), when)
        return renderers.render(document, form, most=scan_document.MOST)


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below `root` and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
    return root
