"""SARIF 2.1.0: rules with help, results with fixes and fingerprints that survive line shifts."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from joymigrate import __version__
from joymigrate.evidence import count_grades
from joymigrate.language import Language, bracket, traits
from joymigrate.model import Finding, Rule, Tier
from joymigrate.report.changes import Region, regions
from joymigrate.report.json_ import dumps
from joymigrate.report.result import ScanResult
from joymigrate.rewrite import readiness
from joymigrate.rewrite.baseline import fingerprints
from joymigrate.rewrite.readiness import UNREADABLE

SCHEMA_URI = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
FINGERPRINT = "joymigrate/v1"
ROOT = "SRCROOT"
LINK_SIGN = re.compile(r"[\[\]\\]")
LEVELS = {Tier.SAFE: "note", Tier.UNSAFE: "warning", Tier.REPORT: "warning"}


def render(result: ScanResult) -> str:
    """The scan as a SARIF log with one run."""
    return dumps(document(result))


def document(result: ScanResult) -> dict[str, Any]:
    """The SARIF log as plain data."""
    scan = result.scan
    ids = list(result.by_rule())
    number = {rule: index for index, rule in enumerate(ids)}
    names = {finding.rule: finding for finding in scan.findings}
    marks = fingerprints(scan.findings, result.excerpts.line)
    driver = {
        "name": "joymigrate",
        "version": __version__,
        **({} if result.say.lang == "en" else {"language": traits(result.say.lang).tag}),
        "rules": [
            descriptor(rule, result.rules.get(rule), names.get(rule), result.say) for rule in ids
        ],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"uri": base_uri(result)}},
        "invocations": [{"executionSuccessful": True, **notifications(result)}],
        "results": [
            result_of(result, finding, number[finding.rule], mark)
            for finding, mark in zip(scan.findings, marks, strict=True)
        ],
        "properties": {
            "readiness": readiness.document(result.readiness),
            "to": scan.to,
            "grades": count_grades("documented" for _ in scan.findings),
        },
    }
    return {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}


def base_uri(result: ScanResult) -> str:
    """The folder that all locations are relative to."""
    root = result.folder if result.prefix() is not None else result.scan.root
    return root.resolve().as_uri() + "/"


def uri(result: ScanResult, path: str) -> str:
    """A file's location below the base, percent-encoded."""
    return quote(f"{result.prefix() or ''}{path}".encode("utf-8", "surrogateescape"))


def location(result: ScanResult, path: str) -> dict[str, Any]:
    """A file's artifactLocation."""
    return {"uri": uri(result, path), "uriBaseId": ROOT}


def descriptor(
    rule_id: str, rule: Rule | None, finding: Finding | None, say: Language
) -> dict[str, Any]:
    """One rule as SARIF metadata; one that only a finding knows carries what that says."""
    if rule is None:
        name = finding.name if finding else rule_id
        return {"id": rule_id, "name": name, "shortDescription": {"text": name}}
    help_text = "\n\n".join(part for part in (rule.why, rule.reference) if part) or rule.message
    markdown = f"**{rule.title}**\n\n{rule.why or rule.message}"
    if rule.reference:
        markdown += f"\n\n{say('Reference')}: {rule.reference}"
    found: dict[str, Any] = {
        "id": rule_id,
        "name": rule.name,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.message},
        "help": {"text": help_text, "markdown": markdown},
        "defaultConfiguration": {"level": level(rule_id, rule.tier)},
        "properties": {"tier": rule.tier.value, "tags": ["migration", rule.area]},
    }
    return found


def level(rule_id: str, tier: Tier) -> str:
    """How loud a viewer shows it: what a tool does by itself is a note."""
    return "error" if rule_id == UNREADABLE else LEVELS[tier]


def result_of(result: ScanResult, finding: Finding, number: int, mark: str) -> dict[str, Any]:
    """One finding as a SARIF result."""
    text = finding.message + (bracket(finding.reason, result.say) if finding.reason else "")
    found: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": number,
        "level": level(finding.rule, finding.tier),
        "message": {"text": plain(text)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": location(result, finding.path),
                    "region": region_of(finding),
                }
            }
        ],
        "partialFingerprints": {FINGERPRINT: mark},
        "properties": {"tier": finding.tier.value, "area": finding.area},
    }
    if finding.cell is not None:
        found["properties"] |= {"cell": finding.cell, "line": finding.line}
    fix = fix_of(result, finding)
    return found | ({"fixes": [fix]} if fix else {})


def plain(text: str) -> str:
    """Text in which `a[0](x)` is not taken for a link (SARIF 2.1.0, 3.11.6)."""
    return LINK_SIGN.sub(r"\\\g<0>", text) if "](" in text else text


def region_of(finding: Finding) -> dict[str, Any]:
    """Where a finding is in its file. In a notebook's JSON only the line is known."""
    if finding.cell is not None:
        first = finding.file_line or 1
        return {"startLine": first, "endLine": first + finding.end_line - finding.line}
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }
    snippet = {"snippet": {"text": finding.before}} if finding.before else {}
    return {**region, **snippet}


def fix_of(result: ScanResult, finding: Finding) -> dict[str, Any] | None:
    """The finding's edits as one fix of its file."""
    replacements = [replacement(region) for region in regions(finding, result.excerpts)]
    if not replacements:
        return None
    safe = finding.tier is Tier.SAFE
    verb = "Rewrite for {to}" if safe else "Rewrite, after review, for {to}"
    return {
        "description": {"text": result.say(verb, to=result.scan.to)},
        "artifactChanges": [
            {
                "artifactLocation": location(result, finding.path),
                "replacements": replacements,
            }
        ],
    }


def replacement(region: Region) -> dict[str, Any]:
    """One edit: what goes, and what comes in its place."""
    deleted = {
        "startLine": region.line,
        "startColumn": region.column,
        "endLine": region.end_line,
        "endColumn": region.end_column,
    }
    return {"deletedRegion": deleted, "insertedContent": {"text": region.text}}


def notifications(result: ScanResult) -> dict[str, Any]:
    """Files that were not read, as notes of the run."""
    if not result.scan.skipped:
        return {}
    return {
        "toolExecutionNotifications": [
            {
                "level": "note",
                "message": {"text": f"{result.say('not read')}: {one.reason}"},
                "locations": [
                    {"physicalLocation": {"artifactLocation": location(result, one.path)}}
                ],
            }
            for one in result.scan.skipped
        ]
    }
