"""Planted faults: how many are named with their exact module and phase, by kind and dtype.

    python benchmarks/verify_faults.py [--seeds 0,1,2] [--dtypes float32,bfloat16] [--clean 4]

Every fault is a change of a program's source (tests/verify/faults.py). Clean runs differ by one
unit in the last place of every product and reduction, and by the number of threads.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parent.parent))


def main() -> int:
    from tests.verify.faults import FAULTS, PROGRAMS
    from tests.verify.harness import record, replay

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", default="0,1,2")
    options.add_argument("--dtypes", default="float32,bfloat16")
    options.add_argument("--clean", type=int, default=4, help="clean runs per program")
    chosen = options.parse_args()
    named: Counter[tuple[str, str]] = Counter()
    planted: Counter[tuple[str, str]] = Counter()
    clean = alarms = 0
    for dtype in chosen.dtypes.split(","):
        for seed in chosen.seeds.split(","):
            environment = {"SEED": seed, "DTYPE": dtype}
            with tempfile.TemporaryDirectory() as folder:
                room = Path(folder)
                for name in sorted({fault.program for fault in FAULTS}):
                    record(PROGRAMS / f"{name}.py", room / f"{name}.jmb", environment)
                for number, fault in enumerate(FAULTS):
                    program = room / "target.py"
                    program.write_text(fault.source())
                    base = room / f"{fault.program}.jmb"
                    found = replay(base, program, room / f"{number}.jmb", environment)
                    first = found.first_divergence
                    failures = sum(row.status.failed for row in found.records)
                    kind = (fault.phase or "data, weights", dtype)
                    exact = first is not None and (first.module, first.phase) == (
                        fault.module,
                        fault.phase,
                    )
                    planted[kind] += 1
                    named[kind] += exact and failures == 1
                    if not exact or failures != 1:
                        place = f"{first.module} {first.phase}" if first else found.reason
                        print(f"missed: {fault.name} ({dtype}, seed {seed}): {place}, {failures}")
                for name in sorted({fault.program for fault in FAULTS}):
                    for run in range(chosen.clean):
                        other = {**environment, "THREADS": str(1 + run % 2)}
                        found = replay(
                            room / f"{name}.jmb",
                            PROGRAMS / f"{name}.py",
                            room / f"clean-{name}-{run}.jmb",
                            other,
                            noise=1.0,
                        )
                        clean += 1
                        alarms += found.verdict.value != "pass"
    for (phase, dtype), number in sorted(planted.items()):
        print(f"{phase:<14} {dtype:<9} {named[phase, dtype]:>4} of {number}")
    print(f"clean runs: {alarms} false alarms in {clean}")
    return int(alarms > 0 or sum(named.values()) < sum(planted.values()))


if __name__ == "__main__":
    sys.exit(main())
