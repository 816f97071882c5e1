"""A library's own tests on the simulated chip, beside the list of those that fail on a real one.

    python -m benchmarks.vendor_tests CHECKOUT WORK [--tests test] [FILE …]
    python -m benchmarks.vendor_tests CHECKOUT WORK --tests . --select "not export"
        --environment TRANSFORMERS_TEST_DEVICE=npu FILE …

CHECKOUT is a checkout of Ascend/pytorch, or of another library whose tests know the chip. The
`test/` of the former holds torch's device-generic tests, made for the chip, and
`test/unsupported_test_cases/.pytorch-disabled-tests.json` names those that its maintainers switched
off because they fail there. Every FILE below the tests runs in a rehearsal with nothing switched
off, and each test falls into one of four cells. Where there is no such list, the cells are two.
WORK keeps one report per file: a file that has one is not run again. Without FILE, those in WORK
are told.

The last column says how many operator calls of a file reached the chip: tests of a file with none
say nothing about it. A test that is on the list and passes here is not always a silent yes: the
list grew with every release, and tests are also switched off for their time or their memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.board import limited

LIST = "unsupported_test_cases/.pytorch-disabled-tests.json"
CELLS = {
    (False, True): "passes on both",
    (True, False): "fails on both",
    (False, False): "fails here alone",
    (True, True): "switched off there, passes here",
}
REPRODUCE = re.compile(r"\s*To execute this test, run.*", re.DOTALL)
QUOTED = 140  # characters of a message
CALLS = "calls"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vendor_tests", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--tests", default="test", help="folder below CHECKOUT to start in")
    parser.add_argument("--select", default="", help="pytest's -k")
    parser.add_argument("--environment", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seconds", type=float, default=900, help="limit of one file")
    parser.add_argument("--gib", type=float, default=6, help="limit of one file's memory")
    parser.add_argument("--messages", action="store_true", help="what failed here alone, and why")
    given = parser.parse_intermixed_args()
    tests, work = given.checkout.resolve() / given.tests, given.work.resolve()
    words = ["-k", given.select] if given.select else []
    surroundings = dict(one.split("=", 1) for one in given.environment)
    work.mkdir(parents=True, exist_ok=True)
    for name in given.files:
        report = work / f"{name.replace('/', '-').removesuffix('.py')}.xml"
        if not report.is_file():
            command = [name, *words]
            rehearse(tests, command, surroundings, report, given.seconds, given.gib)
    switched_off = tests / LIST
    disabled = set()
    if switched_off.is_file():
        disabled = set(json.loads(switched_off.read_text(encoding="utf-8")))
    total: Counter[str] = Counter()
    print(f"| file | {' | '.join(CELLS.values())} | skipped by themselves | calls on the chip |")
    print(f"|---|{'---|' * (len(CELLS) + 2)}")
    for report in sorted(work.glob("*.xml")):
        counts, alone = cells(report, disabled)
        counts[CALLS] = calls(report)
        total += counts
        show(report.stem, counts)
        if given.messages:
            for text, names in sorted(alone.items(), key=lambda item: -len(item[1])):
                print(f"    {len(names)} x {text} ({', '.join(names[:3])})", file=sys.stderr)
    show("together", total)
    for log in sorted(work.glob("*.log")):
        if not log.with_suffix(".xml").is_file():
            print(f"{log.stem}: no report, not counted (see {log})")
    return 0


def rehearse(
    tests: Path,
    words: list[str],
    surroundings: dict[str, str],
    report: Path,
    seconds: float,
    gib: float,
) -> None:
    """One file under the rehearsal; when the process dies, again with its tests apart."""
    said = report.with_suffix(".json")
    ask = [sys.executable, "-m", "joymigrate", "rehearse", "-q", "-o", str(said), "--"]
    ask += [sys.executable, "-m", "pytest", "-q", "--disable-warnings", "-p", "no:cacheprovider"]
    ask += ["-o", "addopts=", "-o", "log_cli=false", "--continue-on-collection-errors"]
    ask += [f"--junitxml={report}", *words]
    path = os.pathsep.join([surroundings.get("PYTHONPATH", ""), str(Path(__file__).parents[1])])
    environment = {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        **surroundings,
        "PYTHONPATH": path.strip(os.pathsep),
    }
    log = report.with_suffix(".log")
    for extra in ([], ["-n", "1", "--max-worker-restart", "20"]):
        ended = limited.run(
            [*ask, *extra], tests, log, seconds=seconds, gib=gib, environment=environment
        )
        if ended.stopped or report.is_file():
            break
    if not report.is_file():
        why = f"limit of {ended.stopped}" if ended.stopped else f"exit code {ended.code}"
        print(f"{words[0]}: no report ({why}; {log})", file=sys.stderr)


def cells(report: Path, disabled: set[str]) -> tuple[Counter[str], dict[str, list[str]]]:
    """How many tests fall into each cell, and those that fail here alone by message."""
    counts: Counter[str] = Counter()
    alone: dict[str, list[str]] = defaultdict(list)
    for name, end, message in ends(report):
        if end == "skipped":
            counts["skipped"] += 1
            continue
        listed = name in disabled
        counts[CELLS[listed, end == "passed"]] += 1
        if end == "failed" and not listed:
            alone[REPRODUCE.sub("", message).replace("\n", " ")[:QUOTED]].append(name)
    return counts, alone


def calls(report: Path) -> int:
    """Operator calls that reached the chip while a file ran; 0 where the rehearsal told nothing."""
    said = report.with_suffix(".json")
    return int(json.loads(said.read_text(encoding="utf-8"))["calls"]) if said.is_file() else 0


def ends(report: Path) -> Iterator[tuple[str, str, str]]:
    """Name as the list writes it, how it ended and the message of each test of a report."""
    for one in ET.parse(report).getroot().iter("testcase"):
        where = str(one.get("classname")).rpartition(".")[2]
        where = re.sub(r"NPU$", "PRIVATEUSE1", where)  # the list keeps the device's older name
        end, message = "passed", ""
        for child in one:
            if child.tag in ("failure", "error"):
                end, message = "failed", child.get("message") or ""
            elif child.tag == "skipped" and end == "passed":
                end = "skipped"
        yield f"{one.get('name')} (__main__.{where})", end, message


def show(name: str, counts: Counter[str]) -> None:
    row = [counts[cell] for cell in (*CELLS.values(), "skipped", CALLS)]
    print(f"| {name} | {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    sys.exit(main())
