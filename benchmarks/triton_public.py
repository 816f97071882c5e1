"""Fifty public Triton kernels: our verdicts against labels, and how many variants are proved.

    python -m benchmarks.triton_public SOURCES [--no-prove] [--only PROJECT] [-o rows.json]

SOURCES holds a checkout per project of `triton_labels.yaml`, whose labels were given from the
vendor's pages before any of these kernels was judged. A variant counts where the interpreter gives
the original's bits, or its sums within rounding where the original is not deterministic itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from joymigrate import chips
from joymigrate.profile import port
from joymigrate.profile.port.prove import Job, prove
from joymigrate.profile.port.rewrite import port_source

LABELS = Path(__file__).with_name("triton_labels.yaml")


def main() -> int:
    """Print a row per kernel and the sums; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sources", type=Path)
    parser.add_argument("--no-prove", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--cases", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    data = yaml.safe_load(LABELS.read_text(encoding="utf-8"))
    known = port.load(chips.target("ascend"))
    rows: list[dict[str, Any]] = []
    for listed in data["kernels"]:
        if arguments.only in (None, listed["project"]):
            root = arguments.sources / data["projects"][listed["project"]]["folder"]
            rows.append(row(listed, arguments.sources / listed["file"], root, known, arguments))
            print(line(rows[-1]), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return summary(rows, proved=not arguments.no_prove)


def row(
    listed: dict[str, Any], path: Path, root: Path, known: dict[str, Any], arguments: Any
) -> dict[str, Any]:
    """One kernel: its verdict with the first reason, and its variant's proof."""
    checked = port.check([path], known, roots=[root, root.parent])
    one = next(c for c in checked if c.kernel == listed["kernel"])
    reason = one.notes[0].message if one.notes and one.notes[0].level != "note" else ""
    found = {**listed, "verdict": one.verdict, "reason": reason, "port": "", "proof": ""}
    source = path.read_bytes()
    text, ports = port_source(source, known)
    made = next(p for p in ports if p.kernel == listed["kernel"])
    found["port"] = made.refused or "written"
    if not made.refused and not arguments.no_prove:
        job = Job(path, source, text, made.kernel)
        proof = prove([job], [root, root.parent], known, cases=arguments.cases)[0]
        found["proof"] = proof.result + (f": {proof.reason}" if proof.reason else "")
    return found


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    right = "" if row["verdict"] == row["label"] else f" (label: {row['label']})"
    parts = [row["project"], row["kernel"], row["verdict"] + right, row["reason"][:90],
             row["port"][:60], row["proof"][:120]]  # fmt: skip
    return f"| {' | '.join(parts)} |"


def summary(rows: list[dict[str, Any]], *, proved: bool) -> int:
    """The sums; 1 below 95 % right or 60 % proved."""
    right = sum(row["verdict"] == row["label"] for row in rows)
    written = sum(row["port"] == "written" for row in rows)
    equal = sum(row["proof"].startswith("equal") for row in rows)
    differ = sum(row["proof"].startswith("different") for row in rows)
    print(f"\n{right} of {len(rows)} verdicts right; {written} variants written, {equal} proved "
          f"equal, {differ} different")  # fmt: skip
    return int(right < 0.95 * len(rows) or (proved and equal < 0.6 * len(rows)))


if __name__ == "__main__":
    sys.exit(main())
