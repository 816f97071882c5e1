"""`rewrite --prove`: the project's own program before and after a rewrite, on this machine.

Both runs happen in copies. A run that ends otherwise, or tells other tests or losses, is traced to
the groups of edits that change it, by halves, and those are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.model import Patch, Scan
from joymigrate.rewrite.copy import rewritten_copy
from joymigrate.rewrite.outcome import relative
from joymigrate.rewrite.patch import patches, unit

# What a run tells about its result: test counts, losses, data types. Times are no results.
TESTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
LOSSES = re.compile(
    r"\b(loss|ppl|perplexity|accuracy|acc)\b\W{0,3}(-?\d+\.?\d*(?:e[+-]?\d+)?)", re.I
)
TYPES = re.compile(r"\btorch\.(float\w+|bfloat16|int\d+|complex\d+|bool)\b")
TAIL = 2000  # characters of a failed run that are shown


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to."""

    code: int
    tests: tuple[tuple[str, str], ...]
    losses: tuple[tuple[str, str], ...]
    types: tuple[str, ...]
    tail: str

    def same(self, other: Run) -> bool:
        """Whether two runs had the same outcome, tests, losses and data types."""
        return self.differences(other) == ()

    def differences(self, other: Run) -> tuple[str, ...]:
        """In what two runs differ."""
        names = ("code", "tests", "losses", "types")
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))


@dataclass(frozen=True, slots=True)
class Proved:
    """The patches that keep the program's behaviour, and the groups that were left out.

    `runs` is how often the program ran; `before` is its result without any edit.
    """

    patches: tuple[Patch, ...]
    before: Run
    left: tuple[str, ...]
    runs: int


def prove(
    scan: Scan, paths: Sequence[Path], command: Sequence[str], *, unsafe: bool, timeout_s: float
) -> Proved:
    """Find the largest set of edits, by halves, under which `command` does what it did before."""
    runs = 0

    def result(made: Sequence[Patch]) -> Run:
        nonlocal runs
        runs += 1
        return run(scan, paths, made, command, timeout_s)

    before = result(())
    again = result(())
    if not before.same(again):
        what = ", ".join(before.differences(again))
        raise JoyError(
            f"two runs of the unchanged program differ in {what}: nothing can be proven with it",
            where=" ".join(command),
            help="fix its seeds, or prove with its tests",
        )
    if before.code and not before.tests:
        raise JoyError(
            f"the program fails before any edit (exit code {before.code}):\n{before.tail}",
            where=" ".join(command),
            help="name a command that works on this machine",
        )
    units = list(
        dict.fromkeys(unit(f) for p in patches(scan, unsafe=unsafe) for f in p.findings
                      if f.rule != "JM001")
    )  # fmt: skip
    left: set[str] = set()

    def stands(without: set[str]) -> bool:
        made = patches(scan, unsafe=unsafe, without=frozenset(without))
        return result(made).same(before)

    if not stands(left):
        for one in culprits(units, lambda tried: not stands(set(units) - set(tried))):
            left.add(one)
        if not stands(left):  # edits that only together do harm
            left = set(units)
    made = patches(scan, unsafe=unsafe, without=frozenset(left))
    return Proved(tuple(made), before, tuple(sorted(left)), runs)


def culprits(units: Sequence[str], harms: Callable[[Sequence[str]], bool]) -> list[str]:
    """The units that do harm alone, found by halves."""
    if not units or not harms(units):
        return []
    if len(units) == 1:
        return list(units)
    middle = len(units) // 2
    found = [*culprits(units[:middle], harms), *culprits(units[middle:], harms)]
    return found or list(units)  # harm needs both halves


def run(
    scan: Scan,
    paths: Sequence[Path],
    made: Sequence[Patch],
    command: Sequence[str],
    timeout_s: float,
) -> Run:
    """Run a command in a copy of the project with patches applied."""
    with tempfile.TemporaryDirectory(prefix="joymigrate-prove-") as folder:
        copy = Path(folder) / scan.root.name

        def write(part: Path) -> None:
            for patch in made:
                place = part / relative(patch.path, scan.root)
                place.parent.mkdir(parents=True, exist_ok=True)
                if patch.after is not None:
                    place.write_bytes(patch.after)

        rewritten_copy(list(paths), scan.root, copy, write)
        words = [str(copy) + w[len(str(scan.root)) :] if w.startswith(str(scan.root)) else w
                 for w in command]  # fmt: skip
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        extra = [str(copy), *([str(copy / "src")] if (copy / "src").is_dir() else [])]
        old = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([*extra, *([old] if old else [])])
        if shutil.which(words[0]) is None:
            raise JoyError(f"no such program: {words[0]}", help="give a command after --")
        try:
            done = subprocess.run(
                words, cwd=copy, env=environment, capture_output=True, text=True, errors="replace",
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise JoyError(
                Text("the program did not end within {seconds} s", seconds=f"{timeout_s:.0f}"),
                where=" ".join(command),
                help="--prove-timeout gives it more time",
            ) from None
        told = done.stdout + "\n" + done.stderr
    return Run(
        done.returncode,
        tuple(TESTS.findall(told)),
        tuple(LOSSES.findall(told)),
        tuple(TYPES.findall(told)),
        told[-TAIL:],
    )
