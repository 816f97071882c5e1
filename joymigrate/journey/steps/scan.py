"""Find what is tied to the origin."""

from __future__ import annotations

from joymigrate.journey.model import Outcome, Status
from joymigrate.journey.travelling import Travelling


def run(at: Travelling) -> Outcome:
    """Scan the project; findings as JSON, SARIF and a page."""
    chip = at.request.chip
    common = ("scan", ".", "--to", chip, "--exit-zero", "--style", at.request.style)
    at.joymigrate("scan/log.txt", *common, "--format", "json", "-o", str(at.path("scan/scan.json")))
    at.joymigrate(
        "scan/log-sarif.txt", *common, "--format", "sarif", "-o", str(at.path("scan/scan.sarif"))
    )
    at.joymigrate(
        "scan/log-html.txt", *common, "--format", "html", "-o", str(at.path("scan/scan.html"))
    )
    found = at.load("scan/scan.json")
    summary = found["summary"]
    sites = summary["safe"] + summary["unsafe"] + summary["report"]
    automatic = summary["safe"] + (summary["unsafe"] if at.request.unsafe else 0)
    share = round(100 * automatic / sites, 1) if sites else 100.0
    by_hand = sites - automatic
    figures = {
        "files": found["files"]["scanned"],
        "sites": sites,
        "safe": summary["safe"],
        "unsafe": summary["unsafe"],
        "by_hand": summary["report"],
        "automatic_pct": share,
        "by_rule": summary["by_rule"],
    }
    evidence = ("scan/scan.json", "scan/scan.sarif", "scan/scan.html")
    held = None
    if at.gates.automatic is not None and share < at.gates.automatic:
        held = f"{share:g} % of the sites are automatic; the gate asks for {at.gates.automatic:g} %"
    elif at.gates.by_hand is not None and by_hand > at.gates.by_hand:
        held = f"{by_hand} sites are left to people; the gate allows {at.gates.by_hand}"
    return Outcome(
        "scan",
        Status.STOPPED if held else Status.DONE,
        held
        or f"{sites} sites in {found['files']['scanned']} files: {summary['safe']} automatic, "
        f"{summary['unsafe']} with --unsafe, {summary['report']} by hand",
        figures,
        evidence,
        verdict="fail" if held else "pass",
        help="joymigrate scan . lists them with the reason; then migrate again" if held else "",
    )
