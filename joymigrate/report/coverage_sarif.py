"""Coverage as SARIF: one result per gap and call site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joymigrate.profile.coverage import Coverage, CoveredOperator
from joymigrate.profile.support import SupportStatus
from joymigrate.report.json_ import dumps
from joymigrate.report.sarif_log import SarifResult, SarifRule, locate, log

RULES = {
    SupportStatus.CPU_FALLBACK: SarifRule(
        "operator-cpu-fallback", "An operator runs on the CPU", "warning"
    ),
    SupportStatus.MISSING: SarifRule(
        "operator-missing", "An operator raises on the chip", "error"
    ),
    SupportStatus.UNKNOWN: SarifRule(
        "operator-unknown", "Nobody knows whether the chip has it", "warning"
    ),
}  # fmt: skip


def render(coverage: Coverage, root: Path) -> str:
    """The log; paths are relative to `root`."""
    return dumps(document(coverage, root))


def document(coverage: Coverage, root: Path) -> dict[str, Any]:
    """The log as plain data."""
    about = {"chip": coverage.chip, "version": coverage.version, "grades": coverage.grades()}
    results = [one for op in coverage.gaps() for one in results_of(op, f"{root.resolve()}/")]
    return log(results, root=root, run={"properties": about})


def results_of(op: CoveredOperator, root: str) -> Iterator[SarifResult]:
    """One gap at each of its call sites, or without one."""
    rule = RULES[op.status]
    said = f"{op.name}: {rule.title[0].lower()}{rule.title[1:]}"
    text = ". ".join(filter(None, (said, op.note, f"instead: {op.alternative}")))
    properties = {
        "operator": op.name, "calls": op.calls, "dtypes": list(op.dtypes), "grade": op.known_grade,
    }  # fmt: skip
    for where in [site.where for site in op.sites] or [""]:
        mark = {"joymigrate/operator/v1": f"{op.name} {where}".strip()}
        more = {"partialFingerprints": mark, "properties": properties}
        yield SarifResult(rule, text, *locate(where.removeprefix(root)), more)
