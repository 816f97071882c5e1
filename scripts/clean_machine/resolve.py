"""How long pip takes to resolve the wheel with each extra: an old pip and a new one.

    python -m scripts.clean_machine.resolve
    python -m scripts.clean_machine.resolve --extra ascend --pip 23.2 --constraint torch==2.13.0

`pip install --dry-run WHEEL[EXTRA]` in an environment that has pip alone, without pip's cache. From
an index that has no metadata files pip downloads whole wheels, and then the time is the network's:
`--constraint torch==2.13.0` beside a CPU build of torch leaves CUDA's gigabytes out. Wall and
processor seconds, how often pip had to try another release, and which torch and torch-npu it took.
Exit code 1 when an extra does not resolve within `--limit` seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.clean_machine.build import built, command
from scripts.clean_machine.extras import declared

REPOSITORY = Path(__file__).parents[2]
PIPS = ("23.2", "26.3")
TRIED_IN_VAIN = re.compile(r"INFO: pip is looking at multiple versions|This could take a while")


def main() -> int:
    """Build the wheel, resolve it in every way, print a line each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--extra", action="append", help="only this one; core: none")
    parser.add_argument("--pip", action="append", help=f"only this one ({', '.join(PIPS)})")
    parser.add_argument("--wheel", type=Path, help="do not build, take this one")
    parser.add_argument("--constraint", action="append", default=[], help="as in constraints.txt")
    parser.add_argument("--limit", type=int, default=60, help="seconds (60)")
    options = parser.parse_args()
    extras = options.extra or ["core", *declared(REPOSITORY / "pyproject.toml")]
    bad = 0
    with tempfile.TemporaryDirectory(prefix="resolve-") as folder:
        room = Path(folder)
        wheel = options.wheel or built(REPOSITORY, room / "build")
        (room / "constraints.txt").write_text("\n".join(options.constraint) + "\n")
        print("extra     pip    wall_s   cpu_s  backtracked  result")
        for version in options.pip or PIPS:
            python = environment(room / version, version)
            for extra in extras:
                what = str(wheel) if extra == "core" else f"{wheel}[{extra}]"
                line, fine = resolved(python, what, room / "constraints.txt", options.limit)
                print(f"{extra:<9} {version:<6} {line}", flush=True)
                bad += not fine
    return 1 if bad else 0


def environment(folder: Path, version: str) -> Path:
    """An environment with this pip alone; its Python."""
    command([sys.executable, "-m", "venv", str(folder)])
    python = folder / "bin" / "python"
    command([str(python), "-m", "pip", "install", "--quiet", f"pip=={version}"])
    return python


def resolved(python: Path, what: str, constraints: Path, limit_s: int) -> tuple[str, bool]:
    """One line about one resolution, and whether it ended well in time."""
    report = constraints.with_name("report.json")
    report.unlink(missing_ok=True)
    words = [str(python), "-m", "pip", "install", "--dry-run", "--no-cache-dir"]
    words += ["--disable-pip-version-check", "-c", str(constraints), "--report", str(report), what]
    begin, before = time.monotonic(), os.times()
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=4 * limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{4 * limit_s:>6}+       -            -  FAILED: not resolved", False
    wall, after = time.monotonic() - begin, os.times()
    cpu = after.children_user + after.children_system - before.children_user
    cpu -= before.children_system
    vain = len(TRIED_IN_VAIN.findall(done.stdout))
    start = f"{wall:>6.0f}  {cpu:>6.0f}  {vain:>11}  "
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"{start}FAILED: {last[:120]}", False
    items = json.loads(report.read_text(encoding="utf-8"))["install"]
    versions = {
        item["metadata"]["name"].replace("_", "-"): item["metadata"]["version"] for item in items
    }
    shown = [f"{name} {versions[name]}" for name in ("torch", "torch-npu") if name in versions]
    late = "" if wall <= limit_s else f"LATE (more than {limit_s} s): "
    return f"{start}{late}{len(items)} packages {', '.join(shown)}".rstrip(), not late


if __name__ == "__main__":
    sys.exit(main())
