"""SARIF 2.1.0: rules with help, results with fixes and fingerprints that survive line shifts."""

from __future__ import annotations

from typing import Any

from joymigrate.evidence import count_grades
from joymigrate.language import Language, bracket, traits
from joymigrate.model import Finding, Rule, Tier
from joymigrate.report.changes import Region, regions
from joymigrate.report.json_ import dumps
from joymigrate.report.result import ScanResult
from joymigrate.report.sarif_log import SarifResult, SarifRule, artifact, log
from joymigrate.rewrite import readiness
from joymigrate.rewrite.baseline import fingerprints
from joymigrate.rewrite.readiness import UNREADABLE

FINGERPRINT = "joymigrate/v1"
LEVELS = {Tier.SAFE: "note", Tier.UNSAFE: "warning", Tier.REPORT: "warning"}


def render(result: ScanResult) -> str:
    """The scan as a SARIF log with one run."""
    return dumps(document(result))


def document(result: ScanResult) -> dict[str, Any]:
    """The SARIF log as plain data."""
    scan, say = result.scan, result.say
    marks = fingerprints(scan.findings, result.excerpts.line)
    run = {
        "invocations": [{"executionSuccessful": True, **notifications(result)}],
        "properties": {
            "readiness": readiness.document(result.readiness),
            "to": scan.to,
            "grades": count_grades("documented" for _ in scan.findings),
        },
    }
    results = [
        result_of(result, finding, mark) for finding, mark in zip(scan.findings, marks, strict=True)
    ]
    return log(
        results,
        root=result.folder if result.prefix() is not None else scan.root,
        driver={} if say.lang == "en" else {"language": traits(say.lang).tag},
        run=run,
    )


def location(result: ScanResult, path: str) -> dict[str, str]:
    """A file's artifactLocation."""
    return artifact(f"{result.prefix() or ''}{path}")


def rule_of(finding: Finding, rule: Rule | None, say: Language) -> SarifRule:
    """A finding's rule; one that only a finding knows carries what that says."""
    if rule is None:
        return SarifRule(finding.rule, finding.name, name=finding.name)
    help_text = "\n\n".join(part for part in (rule.why, rule.reference) if part) or rule.message
    markdown = f"**{rule.title}**\n\n{rule.why or rule.message}"
    if rule.reference:
        markdown += f"\n\n{say('Reference')}: {rule.reference}"
    more = {
        "fullDescription": {"text": rule.message},
        "help": {"text": help_text, "markdown": markdown},
        "properties": {"tier": rule.tier.value, "tags": ["migration", rule.area]},
    }
    return SarifRule(rule.id, rule.title, level(rule.id, rule.tier), rule.name, more)


def level(rule_id: str, tier: Tier) -> str:
    """How loud a viewer shows it: what a tool does by itself is a note."""
    return "error" if rule_id == UNREADABLE else LEVELS[tier]


def result_of(result: ScanResult, finding: Finding, mark: str) -> SarifResult:
    """One finding as a SARIF result."""
    text = finding.message + (bracket(finding.reason, result.say) if finding.reason else "")
    properties: dict[str, Any] = {"tier": finding.tier.value, "area": finding.area}
    if finding.cell is not None:
        properties |= {"cell": finding.cell, "line": finding.line}
    fix = fix_of(result, finding)
    return SarifResult(
        rule_of(finding, result.rules.get(finding.rule), result.say),
        text,
        location(result, finding.path),
        region_of(finding),
        {
            "partialFingerprints": {FINGERPRINT: mark},
            "properties": properties,
            **({"fixes": [fix]} if fix else {}),
        },
        level(finding.rule, finding.tier),
    )


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
