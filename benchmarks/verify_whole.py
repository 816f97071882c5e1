"""Faults outside of modules: how many a verdict finds, at the right place, and by the right cause.

    python benchmarks/verify_whole.py [--modes float32,sixteen,each,…] [--only TEXT]
        [--every N] [--programs lm,cnn,…] [--clean N] [--log FILE [--room FOLDER] [--seconds N]]

Every fault is a change of a whole program's source (tests/verify/*_faults.py): loss, gradients,
updates, buffers, copies, modes, decoding, schedules, results. `sixteen` runs each fault once, in
bfloat16 and under autocast by turns, `each` in one of all three. The target differs from the
baseline by one unit in the last place of every product and reduction, as another chip would. Clean
runs are the programs themselves with that noise.

With `--log`, what stands in the log already is not run again: a long sweep goes in pieces of
`--seconds`, and figures are counted over the log. Baselines are kept in `--room`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parent.parent))

WRITES = ("loader",)  # programs that write files
SLOW = ("trainer", "accelerate")  # 15 s of imports in every child, unless their server has them
SHOWN = ("mode", "name", "where", "verdict", "failures", "first", "reason")
SIXTEEN = ("bfloat16", "autocast")
TURNS = {"sixteen": SIXTEEN, "each": ("float32", *SIXTEEN)}  # of these each fault takes one


def main() -> int:
    from tests.verify import harness
    from tests.verify.catalogue import FAULTS

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--modes", default="float32,bfloat16,autocast")
    options.add_argument("--only", default="")
    options.add_argument("--every", type=int, default=1, help="one fault of so many")
    options.add_argument("--clean", type=int, default=1, help="clean runs per program and mode")
    options.add_argument("--programs", default=",".join(dict.fromkeys(f.program for f in FAULTS)))
    options.add_argument("--log", help="a file for one JSON line per run")
    options.add_argument("--room", help="a folder that keeps baselines between runs")
    options.add_argument("--seconds", type=float, default=1e9, help="stop after so many")
    chosen = options.parse_args()
    names = chosen.programs.split(",")
    if set(SLOW) & set(names):
        harness.SERVER.set_forkserver_preload(
            [harness.__name__, "tests.verify.transformers_loaded"]
        )
    log = Path(chosen.log) if chosen.log else None
    lines = (
        [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    )
    ran = {(line["mode"], line["name"]) for line in lines}
    end = time.monotonic() + chosen.seconds
    with tempfile.TemporaryDirectory() as folder:
        room = Path(chosen.room or folder)
        for mode, name, fault in runs(chosen, FAULTS):
            if time.monotonic() > end:
                print("stopped: the rest is left for another run")
                break
            if (mode, name) in ran:
                continue
            try:
                line = one_run(room, Path(folder), mode, name, fault)
            except RuntimeError as error:
                line = {"mode": mode, "name": name, "verdict": "ended", "reason": str(error)[-300:]}
            lines.append(line)
            if not line.get("right"):
                print(*(line.get(key) for key in SHOWN), flush=True)
            if log is not None:
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, default=str) + "\n")
    return figures(lines)


def runs(chosen: Any, faults: Any) -> Iterator[tuple[str, str, Any]]:
    """(mode, name, fault or the name of a program to run as it is)."""
    names = chosen.programs.split(",")
    planted = [f for f in faults if f.program in names and chosen.only in f.name]
    for program in names:
        for asked in chosen.modes.split(","):
            for mode in TURNS.get(asked, (asked,)):
                for number in range(chosen.clean):
                    yield mode, f"clean {program} {number}", program
            for number, fault in enumerate(planted):
                if fault.program == program and number % chosen.every == 0:
                    mode = asked if asked not in TURNS else TURNS[asked][number % len(TURNS[asked])]
                    yield mode, fault.name, fault


def one_run(room: Path, own: Path, mode: str, name: str, fault: Any) -> dict[str, Any]:
    """A line of the log: the verdict on one fault, or on a program as it is."""
    from tests.verify.causes_of_faults import right_cause
    from tests.verify.harness import record, replay
    from tests.verify.whole_faults import PROGRAMS

    clean = isinstance(fault, str)
    program = fault if clean else fault.program
    out = own / "out"
    out.mkdir(exist_ok=True)
    there = out if program in WRITES else None
    environment = {"SEED": "0", "MODE": mode, "OUT": str(out)}
    source, base = PROGRAMS / f"whole_{program}.py", room / f"{mode}-{program}.jmb"
    if not base.exists():
        begun = own / base.name
        record(source, begun, environment, there, runs=2)
        if begun != base:
            begun.rename(base)
    target = own / "target.py"
    target.write_text(source.read_text() if clean else fault.source())
    bundle = own / "target.jmb"
    shutil.rmtree(bundle, ignore_errors=True)
    found = replay(base, target, bundle, environment, there, noise=1.0)
    first = found.first_divergence
    failures = sum(row.status.failed for row in found.records)
    line = {
        "time": time.strftime("%H:%M:%S"),
        "mode": mode,
        "name": name,
        "verdict": found.verdict.value,
        "reason": str(found.reason or ""),
        "failures": failures,
        "first": [first.stage, first.module, first.phase, first.op, first.value] if first else None,
        "cause": first.cause if first else None,
        "left out": [f"{one['what']}: {one['reason']}" for one in found.uncovered],
        "evidence": str(first.evidence) if first and first.evidence else None,
    }
    if clean:
        return {**line, "right": found.verdict.value != "fail"}
    placed = found.verdict.value == "fail" and place_of(first) in fault.where.split()
    cause = right_cause(fault, first.cause) if first and first.cause else None
    return {**line, "where": fault.where, "placed": placed, "right": placed and failures == 1,
            "right_cause": cause}  # fmt: skip


def place_of(first: Any) -> str | None:
    """The place of a first divergence, in the words of the catalogue."""
    if first is None:
        return None
    if first.stage == "S5" and first.op == "loss":  # what the loss sends back
        return "loss"
    if first.cause == "training mode":  # it shows in what the model returns
        return "mode"
    phase = {"S5F": "file", "S1": first.phase or "weights"}.get(first.stage, first.phase)
    if first.stage == "S1" and first.phase is None:
        given = {"batch": "input", "data": "input", "buffer": "state"}
        phase = given.get(str(first.op).replace(",", " ").split()[0], phase)
    return {"optimiser": "update"}.get(phase or "", phase)


def figures(lines: list[dict[str, Any]]) -> int:
    """Print the figures of every mode; 1 where a fault passed or a clean run failed."""
    bad = 0
    for mode in dict.fromkeys(line["mode"] for line in lines):
        mine = [line for line in lines if line["mode"] == mode]
        clean = [line for line in mine if line["name"].startswith("clean ")]
        planted = [line for line in mine if line not in clean and line["verdict"] != "ended"]
        caught = [line for line in planted if line["verdict"] == "fail"]
        placed = sum(line["placed"] for line in planted)
        named = [line for line in planted if line["right_cause"] is not None]
        alarms = sum(line["verdict"] == "fail" for line in clean)
        print(
            f"{mode:<9} {len(caught)} of {len(planted)} fail, {placed} at the right place, "
            f"{sum(line['right'] for line in planted)} of these with one failure; causes: "
            f"{sum(line['right_cause'] for line in named)} of {len(named)} named are right; clean "
            f"noisy runs: {alarms} false alarms in {len(clean)}; ended: "
            f"{sum(line['verdict'] == 'ended' for line in mine)}"
        )
        bad += len(planted) - len(caught) + alarms
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
