"""Faults outside of modules: how many a verdict finds, and at the right place.

    python benchmarks/verify_whole.py [--modes float32,bfloat16,autocast] [--only TEXT] [--every N]
        [--programs lm,cnn,…] [--clean N] [--log FILE]

Every fault is a change of a whole program's source (tests/verify/whole_faults.py,
more_faults.py, hunted_faults.py and late_faults.py): loss, gradients, updates, buffers, copies,
modes, decoding,
schedules, results.
The target differs from the baseline by one unit in the last place of every product and reduction,
as another chip would. Clean runs are the programs themselves with that noise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parent.parent))

WRITES = ("loader",)  # programs that write files


def main() -> int:
    from tests.verify import harness
    from tests.verify.harness import SERVER, record, replay
    from tests.verify.hunted_faults import HUNTED_FAULTS
    from tests.verify.late_faults import LATE_FAULTS
    from tests.verify.more_faults import MORE_FAULTS
    from tests.verify.whole_faults import PROGRAMS, WHOLE_FAULTS

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--modes", default="float32,bfloat16,autocast")
    options.add_argument("--only", default="")
    options.add_argument("--every", type=int, default=1, help="one fault of so many")
    options.add_argument("--clean", type=int, default=1, help="clean runs per program and mode")
    options.add_argument(
        "--programs",
        default="lm,cnn,ctr,gan,rl,diffusion,functional,loader,speech,"
        "trainer,accelerate,transforms,einsum,serve,moe,checkpoint,scaler,translate,queue,series,graph,"
        "final,control2",
    )
    options.add_argument("--log", help="a file for one JSON line per run")
    chosen = options.parse_args()
    names = chosen.programs.split(",")
    if {"trainer", "accelerate"} & set(names):  # 15 s of imports in every child otherwise
        SERVER.set_forkserver_preload([harness.__name__, "tests.verify.transformers_loaded"])
    planted: Counter[str] = Counter()
    caught: Counter[str] = Counter()
    placed: Counter[str] = Counter()
    single: Counter[str] = Counter()
    clean = alarms = 0
    faults = [
        f
        for f in (*WHOLE_FAULTS, *MORE_FAULTS, *HUNTED_FAULTS, *LATE_FAULTS)
        if f.program in names and chosen.only in f.name
    ]
    for mode in chosen.modes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            room, out = Path(folder), Path(folder) / "out"
            out.mkdir()
            environment = {"SEED": "0", "MODE": mode, "OUT": str(out)}
            for name in names:
                source = PROGRAMS / f"whole_{name}.py"
                record(source, room / f"{name}.jmb", environment, out if name in WRITES else None)
                for run in range(chosen.clean):
                    bundle = room / f"clean-{name}-{run}.jmb"
                    there = out if name in WRITES else None
                    found = replay(
                        room / f"{name}.jmb", source, bundle, environment, there, noise=1.0
                    )
                    clean += 1
                    note(chosen.log, mode, f"clean {name}", found, found.verdict.value != "fail")
                    if found.verdict.value == "fail":
                        alarms += 1
                        show(mode, f"CLEAN {name}", "", found)
            for number, fault in enumerate(faults[:: chosen.every]):
                program = room / "target.py"
                program.write_text(fault.source())
                base = room / f"{fault.program}.jmb"
                try:
                    there = out if fault.program in WRITES else None
                    bundle = room / f"{number}.jmb"
                    found = replay(base, program, bundle, environment, there, noise=1.0)
                except RuntimeError as error:
                    print(f"ended: {mode} {fault.name}: {str(error)[-200:]}", flush=True)
                    continue
                first = found.first_divergence
                failures = sum(row.status.failed for row in found.records)
                planted[mode] += 1
                caught[mode] += found.verdict.value == "fail"
                phase = first.phase if first is not None else None
                by_stage = {"S5F": "file", "S1": phase or "weights"}
                phase = by_stage.get(first.stage, phase) if first is not None else phase
                if first is not None and first.stage == "S1" and first.phase is None:
                    given = {"batch": "input", "data": "input", "buffer": "state"}
                    phase = given.get(str(first.op).replace(",", " ").split()[0], phase)
                right = {"optimiser": "update"}.get(phase or "", phase) in fault.where.split()
                placed[mode] += right
                single[mode] += right and failures == 1
                note(chosen.log, mode, fault.name, found, right and failures == 1)
                if not right or failures != 1:
                    show(mode, fault.name, fault.where, found)
    for mode in planted:
        print(
            f"{mode:<9} {caught[mode]} of {planted[mode]} fail, {placed[mode]} at the right "
            f"place, {single[mode]} of these with one failure"
        )
    print(f"clean runs: {alarms} false alarms in {clean}")
    return int(alarms > 0 or sum(caught.values()) < sum(planted.values()))


def note(log: str | None, mode: str, name: str, found: object, right: bool) -> None:
    """One line of the log."""
    if log is None:
        return
    first = found.first_divergence  # type: ignore[attr-defined]
    line = {
        "time": time.strftime("%H:%M:%S"),
        "mode": mode,
        "name": name,
        "verdict": found.verdict.value,  # type: ignore[attr-defined]
        "reason": str(found.reason or ""),  # type: ignore[attr-defined]
        "right": bool(right),
        "failures": sum(row.status.failed for row in found.records),  # type: ignore[attr-defined]
        "first": [first.stage, first.module, first.phase, first.op] if first else None,
        "cause": first.cause if first else None,
    }
    with open(log, "a", encoding="utf-8") as file:
        file.write(json.dumps(line, default=str) + "\n")


def show(mode: str, name: str, where: str, found: object) -> None:
    """One line on what was not as it should be."""
    verdict = found.verdict.value  # type: ignore[attr-defined]
    first = found.first_divergence  # type: ignore[attr-defined]
    rows = found.records  # type: ignore[attr-defined]
    place = f"{first.module} {first.phase} {first.op} {first.value}" if first else found.reason  # type: ignore[attr-defined]
    failures = sum(row.status.failed for row in rows)
    print(f"{mode} {name} [{where}]: {verdict}, {failures} failures, {place}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
