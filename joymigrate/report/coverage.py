"""The contract `joymigrate.coverage/1`, and coverage as JUnit."""

from __future__ import annotations

from typing import Any

from joymigrate.language import with_texts
from joymigrate.profile.attribute import REASONS
from joymigrate.profile.coverage import LOOSE, Coverage, CoveredOperator
from joymigrate.profile.support import SupportStatus
from joymigrate.report import junit
from joymigrate.report.fields import fields
from joymigrate.report.junit import JunitCase

SCHEMA = "joymigrate.coverage/1"


def document(coverage: Coverage) -> dict[str, Any]:
    """Coverage as plain data. Shares go from 0 to 1; times are in microseconds."""
    made = {
        "schema": SCHEMA,
        **fields(coverage, "chip version torch source traces"),
        "ops": [row(op) for op in coverage.ops],
        "share": fields(coverage.share, "ops calls time")
        | {
            "by_evidence": {
                how: fields(one, "us:3 kept_us:3") for how, one in coverage.evidence.items()
            }
        },
        **fields(coverage, "basis unattributed_us:3"),
        **fields(coverage, "device_us:3 owned_us:3 by_name_us:3 loose_us:3"),
        "unattributed": [
            fields(one, "kernel=name reason calls device_us:3") | {"reason": REASONS[one.reason]}
            for one in coverage.loose[:LOOSE]
        ],
        "packages": {
            name: {"ops": count, "us": round(us, 3)}
            for name, (count, us) in coverage.packages().items()
        },
        "found_by": {how: round(us, 3) for how, us in coverage.found_by.items()},
        "phases": {
            name: fields(phase, "seen exact by_name gaps")
            for name, phase in coverage.phases.items()
        },
        "summary": {status.value: coverage.count(status) for status in SupportStatus},
        "grades": coverage.grades(),
        "notes": list(coverage.notes),
    }
    return with_texts(made)


def row(op: CoveredOperator) -> dict[str, Any]:
    """One operator."""
    return {
        **fields(op, "op overload status calls self_us:3 device_us:3 dtypes where note"),
        **fields(op, "alternative package source evidence"),
        "grade": op.known_grade,
        "sites": [fields(site, "where calls self_us:3") for site in op.sites],
        "phases": dict(op.phases),
    }


def junit_text(coverage: Coverage) -> str:
    """A test case per operator; a gap is a failure with all that is known."""
    cases = []
    for op in coverage.ops:
        name, seconds = f"{op.name} {' '.join(op.dtypes)}".strip(), op.self_us / 1e6
        if op.status.supported:
            cases.append(JunitCase(name, seconds, where=op.where or ""))
            continue
        details = [
            f"calls: {op.calls}",
            f"dtypes: {' '.join(op.dtypes)}",
            *(f"at: {site.where} ({site.calls} calls)" for site in op.sites),
            f"instead: {op.alternative}",
            f"source: {op.source}",
            f"grade: {op.known_grade or '-'}",
        ]
        said, kind = op.note or op.status.value, op.status.value
        cases.append(JunitCase(name, seconds, said, "\n".join(details), kind, where=op.where or ""))
    about = f"operators on {coverage.chip} {coverage.version}"
    return junit.render(about, f"joymigrate.coverage.{coverage.chip}", cases)
