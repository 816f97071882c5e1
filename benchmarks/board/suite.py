"""A library's own tests: on the CPU as they are, rewritten on the simulated chip, test by test."""

from __future__ import annotations

import re
import shlex
import xml.etree.ElementTree as Tree
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.board.outcome import Attempt, attempt, blame_one

DEVICE = re.compile(r"(?<![a-z])(?:cpu|cuda|npu)(?::\d+)?(?![a-z])")
QUOTED = 200  # characters of a message that a row keeps
KEPT = 12  # messages of a class that a row keeps


@dataclass(frozen=True, slots=True)
class Case:
    """One test: `end` is passed, failed or skipped; `text` what it printed when it failed."""

    end: str
    text: str = ""


def asks(command: str, report: Path) -> list[str]:
    """The words of a suite's command, with pytest's report in `report`."""
    return [*shlex.split(command), f"--junitxml={report}", "-o", "junit_family=xunit1"]


def read(report: Path) -> dict[str, Case]:
    """The tests of pytest's report by name, the device's name taken out; none without a report.

    Of a test that ran on the CPU and on a device, the device's counts.
    """
    if not report.is_file():
        return {}
    found: dict[str, Case] = {}
    for one in Tree.parse(report).getroot().iter("testcase"):
        written = f"{one.get('classname')}::{one.get('name')}"
        name = DEVICE.sub("device", written)
        if name in found and "cpu" in DEVICE.findall(written):
            continue
        end, text = "passed", ""
        for child in one:
            if child.tag in ("failure", "error"):
                end, text = "failed", child.text or child.get("message") or ""
            elif child.tag == "skipped" and end == "passed":
                end = "skipped"
        found[name] = Case(end, text)
    return found


def compare(original: Mapping[str, Case], chip: Mapping[str, Case]) -> dict[str, Any]:
    """What became on the chip of the tests that pass on the CPU.

    `same` pass on both sides; `skipped` and `missing` ran on one alone; the others failed on the
    chip and are classed by their own last error, as a program is; `names` are the first of a class.
    """
    short = {unpadded(name): case for name, case in chip.items()}
    counts: Counter[str] = Counter()
    messages: dict[str, Counter[str]] = {}
    names: dict[str, list[str]] = {}
    for name, before in original.items():
        if before.end != "passed":
            counts[f"{before.end} on the CPU"] += 1
            continue
        after = chip.get(name) or short.get(unpadded(name))
        if after is None:
            counts["missing"] += 1
        elif after.end != "failed":
            counts["same" if after.end == "passed" else "skipped"] += 1
        else:
            run = failed(after.text)
            kind = blame_one(run)
            counts[kind.name] += 1
            messages.setdefault(kind.name, Counter())[run.error[:QUOTED]] += 1
            names.setdefault(kind.name, []).append(name)
    kept = {kind: dict(said.most_common(KEPT)) for kind, said in messages.items()}
    first = {kind: every[:KEPT] for kind, every in names.items()}
    return {"counts": dict(counts), "messages": kept, "names": first}


def unpadded(name: str) -> str:
    """A test's name without the zeros before its number: ten cases more on a device, and `x_1` is
    written `x_01` (parameterized)."""
    return re.sub(r"(?<=_)0+(?=\d)", "", name)


def failed(text: str) -> Attempt:
    """A failed test as an attempt. pytest writes `E   Error: …` and `file.py:12: Error`."""
    plain = re.sub(r"^E +", "", text, flags=re.MULTILINE)
    framed = re.sub(r"^(\S+\.py):(\d+): .*$", r'  File "\1", line \2', plain, flags=re.MULTILINE)
    return attempt(1, framed)
