"""Recomputes what coverage says of Chrome traces, by a script that shares no code with it.

    python -m benchmarks.independent_shares FOLDER [--most-kb 500]

Reads each trace with `json.load` and adds up device time (kernels, copies, settings of memory), and
the shares from the rows of `profile coverage --format json`. Time of operators and unattributed
time together must be the device time of the file, and each share the one that is printed. Exits 1
where one differs by more than a thousandth.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
STAYS = {"native", "fused", "composite"}
NEAR = 1e-3


def device_us(path: Path) -> float:
    """All device time of a file, as its events say it."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        raw = json.load(file)
    events = raw if isinstance(raw, list) else raw.get("traceEvents", [])
    total = 0.0
    for event in events:
        whole = isinstance(event, dict) and event.get("ph") == "X"
        if whole and str(event.get("cat", "")).casefold() in DEVICE:
            total += float(event.get("dur", 0))
    return total


def covered(path: Path) -> dict[str, Any] | None:
    """What our command says; None where the file holds no operators."""
    command = [sys.executable, "-m", "joymigrate", "profile", "coverage", str(path)]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def near(a: float | None, b: float | None) -> bool:
    """Equal within a thousandth; None only equals None."""
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=NEAR, abs_tol=1e-6)


def shares(found: dict[str, Any]) -> dict[str, float | None]:
    """The shares out of the rows alone."""
    rows = found["ops"]
    stay = [row for row in rows if row["status"] in STAYS]
    on_device = any(row["device_us"] for row in rows) or bool(found["unattributed_us"])
    key = "device_us" if on_device else "self_us"
    total = sum(row[key] for row in rows) + (found["unattributed_us"] if on_device else 0.0)
    calls = sum(row["calls"] for row in rows)
    return {
        "ops": len(stay) / len(rows) if rows else None,
        "calls": sum(row["calls"] for row in stay) / calls if calls else None,
        "time": sum(row[key] for row in stay) / total if total else None,
    }


def main() -> int:
    """A row per trace; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most-kb", type=float, default=500)
    arguments = parser.parse_args()
    read = wrong = 0
    print("| trace | device us in the file | in the report | shares |\n|---|---|---|---|")
    for path in sorted(p for p in arguments.folder.rglob("*.json*") if p.is_file()):
        if path.stat().st_size > 1000 * arguments.most_kb:
            continue
        found = covered(path)
        if found is None or not found["ops"]:
            continue
        read += 1
        truth = device_us(path)
        told = sum(row["device_us"] for row in found["ops"]) + found["unattributed_us"]
        own = shares(found)
        bad = [name for name, value in own.items() if not near(value, found["share"][name])]
        bad += [] if near(truth, told) else ["device time"]
        wrong += bool(bad)
        name = path.relative_to(arguments.folder)
        said = "differ: " + ", ".join(bad) if bad else "equal"
        print(f"| {name} | {truth:.1f} | {told:.1f} | {said} |", flush=True)
    print(f"\n{read} traces, {wrong} with a difference")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
