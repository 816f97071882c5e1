"""The backtest: how many failures that people met on real chips a rehearsal (or a scan) warns of.

    python benchmarks/rehearse_backtest.py [--host-checks CHECKOUTS] [-o table.md]

`backtest/threads.csv` names public threads, `known` ones and ones `collected` without a look at
this code; `backtest/programs.yaml` holds a minimal program for each cause. A thread counts as
warned only when the words of a warning match what the thread is about. `backtest/fine.yaml` holds
programs that are known to run on chips: any refusal there is a false alarm.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "backtest"
START = "import torch, torch_npu; d = 'npu:0'\n"


def main() -> None:
    """Run every program once and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host-checks", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("-j", "--jobs", type=int, default=2)
    asked = parser.parse_args()
    programs = yaml.safe_load((FOLDER / "programs.yaml").read_text(encoding="utf-8"))
    fine = yaml.safe_load((FOLDER / "fine.yaml").read_text(encoding="utf-8"))
    with (FOLDER / "threads.csv").open(encoding="utf-8", newline="") as file:
        threads = list(csv.DictReader(file))
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(asked.jobs) as pool:
        folder = Path(temporary)

        def run(item: tuple[str, Mapping[str, Any]]) -> tuple[str, str]:
            return item[0], warned(item[0], item[1], folder, asked.host_checks)

        said = dict(pool.map(run, programs.items()))

        def alarm(item: tuple[str, str]) -> tuple[str, str]:
            found = document(item[0], {"code": item[1]}, folder, asked.host_checks)
            return item[0], "; ".join(words for kind, words in found if kind == "refused")

        alarms = {name: text for name, text in pool.map(alarm, fine.items()) if text}
    report = "\n".join(table(threads, said, alarms, len(fine)))
    print(report)
    if asked.output is not None:
        asked.output.write_text(report + "\n", encoding="utf-8")


def warned(name: str, program: Mapping[str, Any], folder: Path, host: Path | None) -> str:
    """The command and the words of the first warning that is about the cause; empty when none."""
    for kind, words in document(name, program, folder, host):
        if re.search(program["expect"], words):
            return f"{kind}: {words[:110]}"
    return ""


def document(
    name: str, program: Mapping[str, Any], folder: Path, host: Path | None
) -> Iterator[tuple[str, str]]:
    """What the rehearsal, then the scan, say of a program: (which, words)."""
    file, report = folder / f"{name}.py", folder / f"{name}.json"
    file.write_text(START + program["code"], encoding="utf-8")
    tool = [sys.executable, "-m", "joymigrate"]
    options = ["--soc", program.get("soc", "910B3"), "-o", str(report), "-q"]
    options += ["--host-checks", str(host)] if host else []
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*tool, "rehearse", *options, "--", sys.executable, str(file)],
        capture_output=True, text=True, env=environment, timeout=300, check=False,
    )  # fmt: skip
    found = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
    for row in found.get("refusals", ()):
        yield "refused", f"{row['kernel']}: {row['message']} ({row['grade']})"
    for row in found.get("fallbacks", ()):
        yield "falls back", f"{row['op']} runs on the CPU"
    for row in found.get("launches", ()):
        if row["aicpu"]:
            yield "slow CPU", f"{row['op']}: slow CPU (AICPU) {' '.join(row['aicpu'])}"
    for row in found.get("traps", ()):
        yield "trap", f"{row['message']}; {row['remedy']}"
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if "Error" in line or "child" in line]
        yield "raises", (last or [""])[-1]
    scanned = subprocess.run(
        [*tool, "scan", str(file), "--format", "json"],
        capture_output=True, text=True, env=environment, timeout=300, check=False,
    )  # fmt: skip
    for row in json.loads(scanned.stdout or "{}").get("findings", ()):
        yield "scan", f"{row['rule']} {row['message']}"


def table(
    threads: list[dict[str, str]], said: Mapping[str, str], alarms: Mapping[str, str], fine: int
) -> Iterator[str]:
    """Shares first, then a row per thread."""
    for origin in ("known", "collected"):
        rows = [row for row in threads if row["origin"] == origin]
        count = sum(bool(said[row["program"]]) for row in rows)
        yield f"{origin}: warned {count} of {len(rows)} threads ({count / len(rows):.0%})"
    distinct = sum(bool(text) for text in said.values())
    yield f"distinct causes: warned {distinct} of {len(said)} ({distinct / len(said):.0%})"
    yield f"false alarms: {len(alarms)} of {fine} programs {dict(alarms) or ''}"
    yield ""
    yield "| thread | cause | warned by |"
    yield "|---|---|---|"
    for row in threads:
        text = said[row["program"]].replace("|", "/") or "silent"
        yield f"| {row['thread']} | {row['program']} | {text} |"


if __name__ == "__main__":
    main()
