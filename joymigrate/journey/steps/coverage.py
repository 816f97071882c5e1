"""Which operators the program uses, and whether the chip has them."""

from __future__ import annotations

from joymigrate.journey.model import Outcome, Status
from joymigrate.journey.travelling import StepFailed, Travelling


def run(at: Travelling) -> Outcome:
    """Record the operators on this machine, then ask the chip's list."""
    trace = str(at.path("coverage/trace.jsonl.gz"))
    done = at.joymigrate(
        "coverage/record-log.txt", "profile", "record", "-o", trace, "--", *at.request.entry,
        ok=range(256),
    )  # fmt: skip
    if not at.path("coverage/trace.jsonl.gz").is_file():
        raise StepFailed(f"nothing was recorded (exit code {done.code})", done.tail())
    chip = at.request.chip
    for form, name in (("json", "coverage.json"), ("html", "coverage.html")):
        at.joymigrate(
            f"coverage/log-{form}.txt",
            "profile", "coverage", trace, "--to", chip, "--format", form,
            "-o", str(at.path(f"coverage/{name}")),
        )  # fmt: skip
    found = at.load("coverage/coverage.json")
    share = found["share"]
    calls = float(share["calls"])
    calls = 100 * calls if calls <= 1 else calls
    lacking = [op for op in found["ops"] if op["status"] in ("cpu_fallback", "missing", "unknown")]
    figures = {
        "operators": len(found["ops"]),
        "lacking": [
            {key: op.get(key) for key in ("op", "overload", "status", "calls", "where")}
            for op in lacking
        ],
        "share": dict(share),
        "version": found["version"],
    }
    held = at.gates.coverage is not None and calls < at.gates.coverage
    text = (
        f"{calls:.1f} % of the calls run on the chip; "
        f"{len(lacking)} of {len(found['ops'])} operators do not"
    )
    return Outcome(
        "coverage",
        Status.STOPPED if held else Status.DONE,
        f"{text}; the gate asks for {at.gates.coverage:g} %" if held else text,
        figures,
        ("coverage/coverage.json", "coverage/coverage.html", "coverage/trace.jsonl.gz"),
        verdict="fail" if held else "pass",
        help="\n".join(f"{op['op']} ({op['status']}) {op.get('where') or ''}" for op in lacking)
        if held
        else "",
    )
