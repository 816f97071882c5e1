"""The contract `joymigrate.scan/1`: a scan as JSON, and back again for `joymigrate report`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate import __version__
from joymigrate.errors import JoyError
from joymigrate.evidence import count_grades
from joymigrate.language import with_texts
from joymigrate.model import Edit, Finding, KeptMention, Scan, Skipped, Style, Tier
from joymigrate.report.fields import fields
from joymigrate.report.result import ScanResult
from joymigrate.rewrite import readiness

SCHEMA = "joymigrate.scan/1"
SPAN = "line column end_line end_column"
TEXTS = ("message", "before", "after", "reason")
KEPT = "path line column text kind"


def render(result: ScanResult) -> str:
    """The scan as JSON text."""
    return dumps(with_texts(document(result)))


def dumps(document: Mapping[str, Any]) -> str:
    """Plain data as JSON text, with Chinese and other text left readable."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def document(result: ScanResult) -> dict[str, Any]:
    """The scan as plain data. Paths are POSIX and relative to `root`."""
    scan = result.scan
    return {
        "schema": SCHEMA,
        "version": __version__,
        "to": scan.to,
        "origin": scan.origin,
        "style": scan.style.value,
        "root": scan.root.as_posix(),
        "files": {
            "scanned": scan.scanned,
            "lines": scan.lines,
            "skipped": [fields(one, "path reason") for one in scan.skipped],
        },
        "findings": [finding_document(finding) for finding in scan.findings],
        "summary": {
            **{tier.value: scan.count(tier) for tier in Tier},
            "by_rule": result.by_rule(),
            "by_area": {area.name: area.sites for area in result.readiness.areas},
            "suppressed": scan.suppressed,
            "grades": count_grades("documented" for _ in scan.findings),
        },
        "readiness": readiness.document(result.readiness),
        "unused_ignores": [
            {"path": path, "line": line, "text": text} for path, line, text in scan.unused_ignores
        ],
        **baseline_part(result),
        **({"since": result.base} if result.base is not None else {}),
        **({"kept": [fields(one, KEPT) for one in scan.kept]} if result.show_kept else {}),
    }


def finding_document(finding: Finding) -> dict[str, Any]:
    """One finding. `edits` are byte spans of the file, also in a notebook."""
    return {
        **fields(finding, "rule name tier path"),
        **({} if finding.cell is None else fields(finding, "cell file_line")),
        **fields(finding, f"{SPAN} message before after reason area weight"),
        "edits": [
            {"start": one.start, "end": one.end, "text": one.text.decode("utf-8", "replace")}
            for one in finding.edits
        ],
    }


def baseline_part(result: ScanResult) -> dict[str, Any]:
    """What a baseline took out; nothing without one."""
    if result.known is None:
        return {}
    stale = [fields(one, "fingerprint rule path before") for one in result.stale]
    return {"baseline": {"known": result.known, "stale": stale}}


def read(document: Mapping[str, Any], where: str) -> Scan:
    """The scan that a JSON document holds; anything else raises `JoyError`."""
    try:
        files = document["files"]
        return Scan(
            root=Path(document["root"]),
            to=document["to"],
            origin=document.get("origin", "cuda"),
            style=Style(document.get("style", "direct")),
            findings=tuple(read_finding(raw) for raw in document["findings"]),
            scanned=int(files["scanned"]),
            skipped=tuple(Skipped(one["path"], one["reason"]) for one in files["skipped"]),
            kept=tuple(KeptMention(**one) for one in document.get("kept", ())),
            unused_ignores=tuple(
                (one["path"], int(one["line"]), one["text"])
                for one in document.get("unused_ignores", ())
            ),
            suppressed=int(document["summary"].get("suppressed", 0)),
            lines=int(files.get("lines", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JoyError(
            f"not a {SCHEMA} document: {type(error).__name__} {error}",
            where=where,
            help="write it with: joymigrate scan PATH --format json -o FILE",
        ) from None


def read_finding(raw: Mapping[str, Any]) -> Finding:
    """One finding of a JSON document."""
    return Finding(
        **{key: raw[key] for key in ("rule", "name", "path", *TEXTS)},
        line=int(raw["line"]),
        column=int(raw["column"]),
        end_line=int(raw["end_line"]),
        end_column=int(raw["end_column"]),
        tier=Tier(raw["tier"]),
        edits=tuple(
            Edit(int(one["start"]), int(one["end"]), one["text"].encode("utf-8"))
            for one in raw.get("edits", ())
        ),
        cell=raw.get("cell"),
        file_line=raw.get("file_line"),
        area=raw.get("area", "device"),
        weight=float(raw.get("weight", 1.0)),
    )
