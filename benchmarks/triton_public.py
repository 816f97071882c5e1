"""Fifty public Triton kernels: our verdicts against labels, and how many variants are proved.

    python -m benchmarks.triton_public SOURCES [--no-prove] [--only PROJECT] [-o rows.json]
    python -m benchmarks.triton_public SOURCES --fresh 10 --seed 7 --only fla -o rows.json

SOURCES holds a checkout per project of `triton_labels.yaml`, whose labels were given from the
vendor's pages before any of these kernels was judged. A variant counts where the interpreter gives
the original's bits, or its sums within rounding where the original is not deterministic itself.
With `--fresh N` kernels are drawn that have no label: only their variants are run. Rows are written
as they come; kernels that have one are left out of the next run.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
from pathlib import Path
from typing import Any

import yaml

from joymigrate import chips
from joymigrate.profile import port
from joymigrate.profile.port import prove as proving
from joymigrate.profile.port.find import kernels
from joymigrate.profile.port.prove import ProofJob, prove
from joymigrate.profile.port.rewrite import port_source

TOGETHER = 9  # kernels that one process of the interpreter runs
LABELS = Path(__file__).with_name("triton_labels.yaml")


def main() -> int:
    """Print a row per kernel and the sums; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sources", type=Path)
    parser.add_argument("--no-prove", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--cases", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600, help="of one case")
    parser.add_argument("--fresh", type=int, default=0)
    parser.add_argument("--seed", type=int, default=20261125)
    parser.add_argument("--compiler", type=Path, help="the chip's own Triton, unpacked")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    proving.SECONDS = arguments.seconds
    data = yaml.safe_load(LABELS.read_text(encoding="utf-8"))
    known = port.load(chips.target("ascend"))
    rows: list[dict[str, Any]] = []
    if arguments.output and arguments.output.is_file():
        rows = json.loads(arguments.output.read_text(encoding="utf-8"))
    done = {(one["file"], one["kernel"]) for one in rows}
    listed = [one for one in data["kernels"] if arguments.only in (None, one["project"])]
    if arguments.fresh:
        listed = drawn(data, arguments)
    left = [one for one in listed if (one["file"], one["kernel"]) not in done]
    for start in range(0, len(left), TOGETHER):
        made = judged(left[start : start + TOGETHER], data, known, arguments)
        for one in made:
            print(line(one), flush=True)
        rows += made
        if arguments.output:
            arguments.output.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return summary(rows, proved=not arguments.no_prove)


def drawn(data: dict[str, Any], arguments: Any) -> list[dict[str, Any]]:
    """Kernels at random out of those without a label; helpers that only kernels call count too."""
    labelled = {(one["file"], one["kernel"]) for one in data["kernels"]}
    found: list[dict[str, Any]] = []
    for project, about in data["projects"].items():
        if arguments.only not in (None, project):
            continue
        have = []
        for path in sorted((arguments.sources / about["folder"]).rglob("*.py")):
            source = path.read_bytes()
            name = path.relative_to(arguments.sources).as_posix()
            if b"triton" not in source:
                continue
            have += [
                {"project": project, "file": name, "kernel": one.name, "label": ""}
                for one in kernels(ast.parse(source))
                if stores(one.node) and (name, one.name) not in labelled
            ]
        chance = random.Random(arguments.seed)
        found += chance.sample(have, min(arguments.fresh, len(have)))
    return found


def stores(function: ast.FunctionDef) -> bool:
    """Whether a function writes results itself, as a kernel that is launched does."""
    return ".store(" in ast.unparse(function) or "atomic_" in ast.unparse(function)


def judged(
    listed: list[dict[str, Any]], data: dict[str, Any], known: dict[str, Any], arguments: Any
) -> list[dict[str, Any]]:
    """Some kernels: each with its verdict and the first reason, and with its variant's proof."""
    rows, jobs, roots = [], [], []
    for one in listed:
        root = arguments.sources / data["projects"][one["project"]]["folder"]
        path = arguments.sources / one["file"]
        checked = port.check([path], known, roots=[root, root.parent])
        verdict = next(c for c in checked if c.kernel == one["kernel"])
        notes = [note.message for note in verdict.notes if note.level != "note"]
        source = path.read_bytes()
        text, ports = port_source(source, known)
        made = next(p for p in ports if p.kernel == one["kernel"])
        rows.append({**one, "verdict": verdict.verdict, "reason": notes[0] if notes else "",
                     "port": made.refused or "written", "proof": ""})  # fmt: skip
        if not made.refused and not arguments.no_prove:
            jobs.append((rows[-1], ProofJob(path, source, text, made.kernel)))
            roots += [root, root.parent]
    unique = list(dict.fromkeys(roots))
    proofs = prove(
        [job for _, job in jobs], unique, known, cases=arguments.cases, compiler=arguments.compiler
    )
    for (row, _), proof in zip(jobs, proofs, strict=True):
        row["proof"] = proof.result + (f": {proof.reason}" if proof.reason else "")
        row |= {"ran": proof.ran, "statements": proof.statements, "front_end": proof.front_end,
                "front_end_original": proof.front_end_original}  # fmt: skip
    return rows


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    right = "" if row["label"] in ("", row["verdict"]) else f" (label: {row['label']})"
    ran = f" ({row['ran']} of {row['statements']} statements ran)" if row.get("ran") else ""
    parts = [row["project"], row["kernel"], row["verdict"] + right, row["reason"][:90],
             row["port"][:60], row["proof"][:120] + ran]  # fmt: skip
    if row.get("front_end"):
        parts.append(f"{row['front_end'][:120]} (original: {row['front_end_original'][:120]})")
    return f"| {' | '.join(parts)} |"


def summary(rows: list[dict[str, Any]], *, proved: bool) -> int:
    """The sums; 1 below 95 % right or 60 % proved."""
    labelled = [row for row in rows if row["label"]]
    right = sum(row["verdict"] == row["label"] for row in labelled)
    written = sum(row["port"] == "written" for row in rows)
    equal = sum(row["proof"].startswith("equal") for row in rows)
    differ = sum(row["proof"].startswith("different") for row in rows)
    print(f"\n{right} of {len(labelled)} verdicts right; of {len(rows)} kernels {written} variants "
          f"written, {equal} proved equal, {differ} different")  # fmt: skip
    asked = [row for row in rows if row.get("front_end")]
    if asked:
        taken = [sum(row[key] == "taken" for row in asked)
                 for key in ("front_end", "front_end_original")]  # fmt: skip
        print(f"the front end of the chip's compiler takes {taken[0]} of {len(asked)} variants, "
              f"{taken[1]} of their originals")  # fmt: skip
    return int(right < 0.95 * len(labelled) or (proved and equal < 0.6 * len(rows)))


if __name__ == "__main__":
    sys.exit(main())
