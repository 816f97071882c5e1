"""The backtest: how many failures that people met on real chips a rehearsal (or a scan) warns of.

    python benchmarks/rehearse_backtest.py [-o benchmarks/RESULTS.md]

`backtest/threads.csv` names public threads, `known` ones and ones `collected` (and, later, `fresh`
ones) without a look at this code; `backtest/programs.yaml` holds a minimal program for each cause.
A thread counts as warned only when the words of a warning match what the thread is about.
`backtest/fine.yaml` holds programs that are known to run on chips: any refusal there is a false
alarm.
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
from pathlib import Path
from typing import Any

import yaml

from joymigrate.run.rehearse import report, session
from joymigrate.run.rehearse.options import read_options

FOLDER = Path(__file__).parent / "backtest"
START = "import torch, torch_npu; d = 'npu:0'\n"
MODEL = "910B3"
FINE = "fine_"
ALARMS = ("refused", "raises", "race")


def main() -> None:
    """Run every program once and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="a page whose shares are written anew")
    asked = parser.parse_args()
    programs = yaml.safe_load((FOLDER / "programs.yaml").read_text(encoding="utf-8"))
    fine = yaml.safe_load((FOLDER / "fine.yaml").read_text(encoding="utf-8"))
    with (FOLDER / "threads.csv").open(encoding="utf-8", newline="") as file:
        threads = list(csv.DictReader(file))
    everything = {**programs, **{FINE + name: {"code": code} for name, code in fine.items()}}
    with tempfile.TemporaryDirectory() as temporary:
        said = warnings(everything, Path(temporary))
    first = {name: first_match(said[name], one["expect"]) for name, one in programs.items()}
    alarms = {
        name: "; ".join(words for kind, words in said[FINE + name] if kind in ALARMS)
        for name in fine
    }
    text = "\n".join(table(threads, first, {k: v for k, v in alarms.items() if v}, len(fine)))
    print(text)
    if asked.output is not None:
        shares = text.partition("\n\n")[0]
        asked.output.write_text(replaced(asked.output, shares), encoding="utf-8")


def replaced(page: Path, shares: str) -> str:
    """The page with these lines between its marks."""
    begin, end = "<!-- backtest -->", "<!-- end -->"
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if not rest:
        raise SystemExit(f"{page} has no mark {begin}")
    return f"{before}{begin}\n```text\n{shares}\n```\n{end}{after}"


def first_match(said: list[tuple[str, str]], expected: str) -> str:
    """The command and the words of the first warning that is about the cause; empty when none."""
    for kind, words in said:
        if re.search(expected, words):
            return f"{kind}: {words[:110]}"
    return ""


def warnings(
    programs: Mapping[str, Mapping[str, Any]], folder: Path
) -> dict[str, list[tuple[str, str]]]:
    """What the rehearsal, then the scan, say of each program: (which, words)."""
    said: dict[str, list[tuple[str, str]]] = {name: [] for name in programs}
    for name, one in programs.items():
        (folder / f"{name}.py").write_text(START + one["code"], encoding="utf-8")
    for (soc, mode), names in groups(programs).items():
        for name, found, end in rehearsed(soc, mode, names, folder):
            said[name] += list(spoken(found)) + list(ended(end))
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", "scan", str(folder), "--format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for row in json.loads(done.stdout or "{}").get("findings", ()):
        said[Path(row["path"]).stem].append(("scan", f"{row['rule']} {row['message']}"))
    return said


def groups(programs: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Programs that one rehearsal runs, by chip model and mode.

    Programs that are known to run are run in both modes: a race there is a false alarm too.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for name, one in programs.items():
        modes = ("run", "async") if name.startswith(FINE) else (one.get("mode", "run"),)
        for mode in modes:
            found.setdefault((str(one.get("soc", MODEL)), mode), []).append(name)
    return found


def rehearsed(
    soc: str, mode: str, names: list[str], folder: Path
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Rehearse programs on one model in one mode: per program the result and how it ended."""
    options = read_options(
        to=None, soc=soc, devices=8, memory=None, mode=mode, precision="fp32", policy="count",
        inject=[],
    )  # fmt: skip
    ends = folder / f"ended-{soc}-{mode}.json"
    files = [str(folder / f"{name}.py") for name in names]
    with session.open_session(options) as settings:
        environment = session.environment(settings, {**os.environ, "OMP_NUM_THREADS": "1"})
        subprocess.run(
            [sys.executable, str(FOLDER / "batch.py"), str(ends), *files],
            env=environment, cwd=folder, check=False, capture_output=True,
        )  # fmt: skip
        records = {record["pid"]: record for record in session.read_records(settings)}
    for name, end in json.loads(ends.read_text(encoding="utf-8")).items():
        own = [records[end["pid"]]] if end["pid"] in records else []
        yield name, report.summarise(settings, own, end["code"]), end


def spoken(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The warnings of a rehearsal."""
    for row in found["refusals"]:
        yield "refused", f"{row['kernel']}: {row['message']} ({row['grade']})"
    for row in found["fallbacks"]:
        yield "falls back", f"{row['op']} runs on the CPU"
    for row in found["some_releases"]:
        yield "other releases", f"{row['op']} is in torch_npu {row['releases']} only"
    for row in found["slow_kernels"]:
        yield "slow CPU", f"{row['op']}: slow CPU (AICPU) {' '.join(row['aicpu'])}"
    for row in found["races"]:
        first, second = (row[key].rpartition(":")[2] for key in ("first_where", "where"))
        yield "race", f"lines {first} and {second}: {row['message']}"
    for row in found["traps"]:
        yield "trap", f"{row['message']}; {row['remedy']}"


def ended(end: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The error of a program that did not end well."""
    if end["code"]:
        yield "raises", " ".join(end["error"].split()) or f"exit code {end['code']}"


def table(
    threads: list[dict[str, str]], said: Mapping[str, str], alarms: Mapping[str, str], fine: int
) -> Iterator[str]:
    """Shares first, then a row per thread."""
    for origin in ("known", "collected", "fresh", "drawn"):
        rows = [row for row in threads if row["origin"] == origin]
        count = sum(bool(said[row["program"]]) for row in rows)
        yield f"{origin}: warned {count} of {len(rows)} threads ({count / len(rows):.0%})"
    warned = sum(bool(said[row["program"]]) for row in threads)
    yield f"all: warned {warned} of {len(threads)} threads ({warned / len(threads):.0%})"
    distinct = sum(bool(text) for text in said.values())
    yield f"distinct causes: warned {distinct} of {len(said)} ({distinct / len(said):.0%})"
    yield f"false alarms: {len(alarms)} of {fine} programs{f' {dict(alarms)}' if alarms else ''}"
    yield ""
    yield "| thread | cause | warned by |"
    yield "|---|---|---|"
    for row in threads:
        text = said[row["program"]].replace("|", "/") or "silent"
        yield f"| {row['thread']} | {row['program']} | {text} |"


if __name__ == "__main__":
    main()
