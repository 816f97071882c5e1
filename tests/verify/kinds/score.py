"""Every fault and clean run of the catalogue, judged: python -m tests.verify.kinds.score [NAME…]"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from joymigrate.verify import repeat_runs
from tests.verify.harness import record, replay
from tests.verify.kinds.catalogue import CLEAN, FAULTS

HERE = Path(__file__).parent
PLAIN = {"FAULT": "none"}


def baseline(program: str, folder: Path, environment: dict[str, str] | None = None) -> Path:
    """The baseline of a program, recorded once."""
    path = folder / f"{program}{'-loaded' if environment else ''}.jmb"
    if not path.exists():
        there = {**PLAIN, "KEPT": str(folder), **(environment or {})}
        record(HERE / f"{program}.py", path, there, runs=repeat_runs.RUNS)
    return path


def judge(program: str, fault: str, folder: Path) -> Any:
    """The verdict on one program with one fault."""
    more = {"LOADED": "1"} if fault == "loaded" else {}
    base = baseline(program, folder, more)
    there = {"FAULT": fault, "KEPT": str(folder), **more}
    return replay(base, HERE / f"{program}.py", folder / f"got-{program}-{fault}.jmb", there)


def grade(verdict: Any, place: str, cause: str | None) -> tuple[str, str]:
    """(silent, inconclusive, right or elsewhere; the cause: right, wrong or none)."""
    first = verdict.first_divergence
    if first is None:
        return ("inconclusive" if verdict.verdict.value == "inconclusive" else "silent"), "none"
    where = f"{first.module} {first.op} {first.phase}"
    found = "right" if re.search(place, where) else "elsewhere"
    if first.cause is None:
        return found, "none"
    said = f"{first.cause} {first.evidence}"
    return found, "right" if cause and re.search(cause, said) else "wrong"


def main(names: list[str]) -> None:
    """Print a table of all, or of those named."""
    tally: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for kind, program, fault, place, cause in FAULTS:
            if names and fault not in names and program not in names:
                continue
            verdict = judge(program, fault, folder)
            found, why = grade(verdict, place, cause)
            tally[found] = tally.get(found, 0) + 1
            tally[f"cause {why}"] = tally.get(f"cause {why}", 0) + 1
            print(f"{kind:9} {program:8} {fault:10} {found:12} {why:6} {told(verdict)}", flush=True)
        for program, fault in CLEAN:
            if names and fault not in names and program not in names:
                continue
            verdict = judge(program, fault, folder)
            tally[f"clean {verdict.verdict.value}"] = (
                tally.get(f"clean {verdict.verdict.value}", 0) + 1
            )
            print(
                f"clean     {program:8} {fault:10} {verdict.verdict.value} {told(verdict)}",
                flush=True,
            )
    print(tally)


def told(verdict: Any) -> str:
    """The first divergence in one line."""
    first = verdict.first_divergence
    if first is None:
        return str(verdict.reason or "")
    value = f"{first.value:.2g}" if isinstance(first.value, float) else first.value
    return (
        f"{first.stage} {first.module!r} {first.op} {first.phase} step {first.step} {value} | "
        f"{first.cause} | {first.evidence} | {first.cause_by} {first.line}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
