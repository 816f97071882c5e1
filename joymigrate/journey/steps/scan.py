"""Find what depends on the current accelerator."""

from __future__ import annotations

import json

from joymigrate.journey import original
from joymigrate.journey.context import StepContext
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.provenance import FILE, provenance
from joymigrate.language import Text
from joymigrate.ledger import Ledger

FOUND = (
    "{sites} site{sites_s} in {files} file{files_s}: {safe} automatic, {unsafe} with --unsafe, "
    "{by_hand} by hand"
)
AGAIN = (
    "{sites} site{sites_s} in {files} file{files_s}: {safe} automatic "
    "({rewritten} rewritten before), {unsafe} with --unsafe, {by_hand} by hand"
)
SAID = ("sites", "files", "safe", "unsafe", "by_hand", "rewritten")


FILES = ("scan/scan.json", "scan/scan.sarif", "scan/scan.html")


def words(request: JourneyRequest, document: str, *others: str) -> list[str]:
    """The command that scans; `others` are files whose names say their form."""
    common = ["scan", ".", "--to", request.chip, "--exit-zero", "--style", request.style]
    also = [word for path in others for word in ("--also", path)]
    return [*common, "--format", "json", "-o", document, *also]


def run(at: StepContext) -> StepOutcome:
    """Scan the project; findings as JSON, SARIF and a page. Sites that an earlier call rewrote
    count as what they were."""
    origin = provenance(at.request, chip_here=at.chip_here)  # before anything changes a file
    at.joymigrate("scan/log.txt", *words(at.request, *(str(at.path(file)) for file in FILES)))
    at.path(FILE).write_text(json.dumps(origin, indent=1, ensure_ascii=False), encoding="utf-8")
    found = at.load("scan/scan.json")
    summary, project = found["summary"], at.request.project
    steps = original.rewrites(Ledger.of(project), project)
    rewritten = sum(int(step.details.get("edits", 0)) for step in steps)
    sites = rewritten + summary["safe"] + summary["unsafe"] + summary["report"]
    automatic = rewritten + summary["safe"] + (summary["unsafe"] if at.request.unsafe else 0)
    files = found["files"]["scanned"]
    figures = {
        "files": files,
        "sites": sites,
        "safe": rewritten + summary["safe"],
        "unsafe": summary["unsafe"],
        "by_hand": summary["report"],
        "rewritten": rewritten,
        "not_automatic": sites - automatic,
        "automatic_pct": round(100 * automatic / sites, 1) if sites else 100.0,
        "by_rule": summary["by_rule"],
    }
    return StepOutcome(
        "scan",
        StepStatus.DONE,
        Text(AGAIN if rewritten else FOUND, **{name: figures[name] for name in SAID}),
        figures,
        (*FILES, FILE),
        verdict="pass",
        help="joymigrate scan . lists them with the reason; mend them, then migrate again",
    )
