"""Coverage as SARIF 2.1.0: one result per gap and call site."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from joymigrate import __version__
from joymigrate.profile.coverage import Coverage, CoveredOperator
from joymigrate.profile.support import SupportStatus
from joymigrate.report.json_ import dumps
from joymigrate.report.sarif import ROOT, SCHEMA_URI, plain

RULES = {
    SupportStatus.CPU_FALLBACK: ("operator-cpu-fallback", "An operator runs on the CPU", "warning"),
    SupportStatus.MISSING: ("operator-missing", "An operator raises on the chip", "error"),
    SupportStatus.UNKNOWN: ("operator-unknown", "Nobody knows whether the chip has it", "warning"),
}


def render(coverage: Coverage, root: Path) -> str:
    """The log; paths are relative to `root`."""
    return dumps(document(coverage, root))


def document(coverage: Coverage, root: Path) -> dict[str, Any]:
    """The log as plain data."""
    order = list(RULES)
    rules = [
        {
            "id": name,
            "shortDescription": {"text": title},
            "defaultConfiguration": {"level": level},
        }
        for name, title, level in RULES.values()
    ]
    results = [
        result(op, where, order.index(op.status), root)
        for op in coverage.gaps()
        for where in ([site.where for site in op.sites] or [""])
    ]
    run = {
        "tool": {"driver": {"name": "joymigrate", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"uri": root.resolve().as_uri() + "/"}},
        "results": results,
        "properties": {
            "chip": coverage.chip,
            "version": coverage.version,
            "grades": coverage.grades(),
        },
    }
    return {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}


def result(op: CoveredOperator, where: str, rule: int, root: Path) -> dict[str, Any]:
    """One gap at one call site, or without one."""
    name, title, level = RULES[op.status]
    parts = [f"{op.name}: {title[0].lower()}{title[1:]}", op.note, f"instead: {op.alternative}"]
    found: dict[str, Any] = {
        "ruleId": name,
        "ruleIndex": rule,
        "level": level,
        "message": {"text": plain(". ".join(part for part in parts if part))},
        "partialFingerprints": {"joymigrate/operator/v1": f"{op.name} {where}".strip()},
        "properties": {
            "operator": op.name,
            "calls": op.calls,
            "dtypes": list(op.dtypes),
            "grade": op.known_grade,
        },
    }
    path, _, line = where.rpartition(":")
    if path and line.isdigit():
        found["locations"] = [
            {
                "physicalLocation": {
                    "artifactLocation": location(path, root),
                    "region": {"startLine": max(1, int(line))},
                }
            }
        ]
    return found


def location(path: str, root: Path) -> dict[str, str]:
    """A file: below the root by its relative path, elsewhere by its whole one."""
    file = Path(path)
    if file.is_absolute():
        try:
            path = file.relative_to(root.resolve()).as_posix()
        except ValueError:
            return {"uri": file.as_uri()}
    return {"uri": quote(path), "uriBaseId": ROOT}
