"""Fallbacks that a recording on the CPU predicts, against those of the rehearsed chip.

    python -m benchmarks.predicted_fallbacks -o ROWS.jsonl [MODEL …]

`opinfo_K_N` is the K-th of N parts of `benchmarks.opinfo_steps`: every operator that torch has
samples of. Each model of `benchmarks.public_models` is recorded once on the CPU (`profile record`,
`profile coverage`) and rehearsed once. Rows are appended, and a model with a row is not run again:
the whole can be made in pieces. Without models it prints the table of all rows. Exits 1 below a
recall of 99 % or a precision of 95 %. An operator counts by its name without overload and `_out`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GAPS = ("cpu_fallback", "missing")
RECALL, PRECISION = 0.99, 0.95


def run(command: list[str], device: str) -> str:
    """A command of ours on a device; its last line of errors where it fails."""
    environment = {**os.environ, "DEVICE": device, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", *command], capture_output=True, text=True,
        env=environment, timeout=540,
    )  # fmt: skip
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or ["no word"])[-1][:200]


def row(model: str, folder: Path) -> dict[str, Any]:
    """What is predicted and what is rehearsed of one model."""
    program = [sys.executable, "-m", "benchmarks.public_models", model]
    if model.startswith("opinfo_"):
        program = [sys.executable, "-m", "benchmarks.opinfo_steps", *model.split("_")[1:]]
    trace, coverage, rehearsal = (folder / f"{model}.{kind}" for kind in ("jsonl", "cov", "reh"))
    found: dict[str, Any] = {"model": model}
    error = run(["profile", "record", "-q", "-o", str(trace), "--", *program], "cpu")
    error = error or run(
        ["profile", "coverage", str(trace), "--format", "json", "-o", str(coverage)], "cpu"
    )
    if error:
        return {**found, "error": f"record: {error}"}
    error = run(["rehearse", "--format", "json", "-o", str(rehearsal), "--", *program], "npu")
    if error or not rehearsal.is_file():
        return {**found, "error": f"rehearse: {error}"}
    covered = json.loads(coverage.read_text())
    rehearsed = json.loads(rehearsal.read_text())
    return {
        **found,
        "predicted": sorted({plain(o["op"]) for o in covered["ops"] if o["status"] in GAPS}),
        "rehearsed": sorted({plain(o["op"]) for o in rehearsed["fallbacks"]}),
        "refusals": sorted({str(o.get("op")) for o in rehearsed["refusals"]}),
        "operators": len(covered["ops"]),
    }


def plain(name: str) -> str:
    """`aten::lgamma` of `aten::lgamma.out`."""
    return name.partition(".")[0].removesuffix("_out")


def main() -> int:
    """Run what is asked for, and print the table of all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    lines = arguments.output.read_text().splitlines() if arguments.output.is_file() else []
    rows = [json.loads(line) for line in lines]
    for model in arguments.models:
        if all(one["model"] != model for one in rows):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row(model, Path(folder)))
            with arguments.output.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return table(rows)


def table(rows: list[dict[str, Any]]) -> int:
    """The table with its sums."""
    print(
        "| model | operators | fall back | predicted | missed | false |\n|---|---|---|---|---|---|"
    )
    right = wanted = said = 0
    for one in sorted(rows, key=lambda one: str(one["model"])):
        if "error" in one:
            print(f"| {one['model']} | not run: {one['error']} | | | | |")
            continue
        truth, predicted = set(one["rehearsed"]), set(one["predicted"])
        right, wanted, said = (
            right + len(truth & predicted),
            wanted + len(truth),
            said + len(predicted),
        )
        missed, false = (
            ", ".join(sorted(s)) or "-" for s in (truth - predicted, predicted - truth)
        )
        print(f"| {one['model']} | {one['operators']} | {len(truth)} | {len(predicted)} | {missed} "
              f"| {false} |")  # fmt: skip
    recall = right / wanted if wanted else 1.0
    precision = right / said if said else 1.0
    print(f"\nrecall {100 * recall:.1f} % of {wanted}, precision {100 * precision:.1f} % of {said}")
    return int(recall < RECALL or precision < PRECISION)


if __name__ == "__main__":
    sys.exit(main())
