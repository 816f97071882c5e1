"""One run of a project's program in a copy, with some edits made: what it came to.

What is compared is the exit code, the tests, printed losses and data types, and lines with other
numbers or data types that every unchanged run prints; times are no results. Which of the copy's
files Python programs ran or read is noted.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import IO

from joymigrate.chips import all_chips
from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.model import Patch
from joymigrate.rewrite.copy import rewritten_copy
from joymigrate.rewrite.outcome import lift_protection, relative

TESTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
UNITTEST = re.compile(r"\b(failures|errors|skipped|expected failures|unexpected successes)=(\d+)")
RAN = re.compile(r"^Ran (\d+) (tests?) in", re.M)
FAILING = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+)|^(?:FAIL|ERROR): (\S+ \(\S+\))", re.M)
NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[+-]?\d+)?|\.\d+|nan|inf)\b"
LOSSES = re.compile(
    rf"(?<![A-Za-z])(loss|ppl|perplexity|accuracy|acc)(?![A-Za-z])\W{{0,3}}({NUMBER})", re.I
)
TYPES = re.compile(r"\btorch\.(float\w+|bfloat16|int\d+|complex\d+|bool)\b")
NAMED = re.compile(r"\b(?:b?float\d+|complex\d+|u?int\d+|half|double)\b|(?<![\w.])" + NUMBER, re.I)
COLOURS = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
# Lines whose numbers are no results: places in the source, addresses, progress, and rates.
PLACES = re.compile(r"\.py\b|\.pyw\b|\bline \d|0x[\da-f]+|\d%\||\d ?(?:it/s|s/it)\b", re.I)
LINES = 100_000  # so many lines of a long output are held against one another
TAIL = 2000  # characters of a failed run that are shown
WATCH = Path(__file__).with_name("prove_watch.py")


@cache
def times_and_cards() -> re.Pattern[str]:
    """Numbers that are no results either: times, and cards."""
    devices = "|".join(sorted({"cpu", "mps", "xpu", *(c.device for c in all_chips().values())}))
    return re.compile(
        rf"\d+(?::\d\d)+(?:[.,]\d+)?|\d{{4}}-\d\d-\d\d|\b(?:{devices}):\d+"
        r"|[\d.]+(?:e[+-]?\d+)?\s*(?:[munµ]?s|secs?|seconds?|min|mins|minutes?|h|hours?)\b", re.I
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProofRun:
    """What one run came to.

    `numbers` are lines by their numbers and data types. `loaded` are files of the copy that it ran
    or read, `original` files of the project itself that it ran. `code` is None for a run that was
    ended as it took too long.
    """

    code: int | None
    tests: tuple[tuple[str, str], ...]
    failing: tuple[str, ...]
    losses: tuple[tuple[str, str], ...]
    types: tuple[str, ...]
    numbers: Counter[tuple[str, ...]]
    tail: str
    loaded: frozenset[str] = frozenset()
    original: tuple[str, ...] = ()

    @property
    def passed(self) -> int:
        """The number of tests that passed."""
        counts = {word: int(number) for number, word in self.tests}
        if "passed" in counts:
            return counts["passed"]
        bad = ("failures", "errors", "skipped", "expected failures")
        ran = counts.get("tests", 0) + counts.get("test", 0)
        return max(0, ran - sum(counts.get(word, 0) for word in bad))

    def same(self, other: ProofRun) -> bool:
        """Whether two runs had the same outcome, tests, losses and data types."""
        return self.differences(other) == ()

    def differences(self, other: ProofRun) -> tuple[str, ...]:
        """In what two runs differ."""
        names = {"code": "exit code", "tests": "tests", "failing": "failing tests",
                 "losses": "losses", "types": "data types"}  # fmt: skip
        found = [
            said for name, said in names.items() if getattr(self, name) != getattr(other, name)
        ]
        if self.numbers - other.numbers:
            found.append("numbers")
        return tuple(found)


def read_output(
    code: int | None, text: str, loaded: frozenset[str], original: Sequence[str]
) -> ProofRun:
    """A run, from what the program printed."""
    text = COLOURS.sub("", text)
    tests = (*TESTS.findall(text), *RAN.findall(text))
    tests += tuple((number, word) for word, number in UNITTEST.findall(text))
    failing = sorted(one or other for one, other in FAILING.findall(text))
    return ProofRun(
        code,
        tests,
        tuple(failing),
        tuple(sorted(LOSSES.findall(text))),  # several processes print in any order
        tuple(sorted(TYPES.findall(text))),
        Counter() if tests else read_numbers(text),
        text[-TAIL:],
        loaded,
        tuple(original),
    )


def read_numbers(text: str) -> Counter[tuple[str, ...]]:
    """Lines by the numbers and data types in them, of those lines that tell results."""
    lines = (line for line in islice(StringIO(text), LINES) if not PLACES.search(line))
    found = (tuple(NAMED.findall(times_and_cards().sub("", line))) for line in lines)
    return Counter(each for each in found if each)


@dataclass(slots=True)
class ProofRunner:
    """Runs `command`, which was typed in `here`, in copies of `project`."""

    project: Path
    here: Path
    command: list[str]
    timeout_s: float
    runs: int = 0
    longest_s: float = 0.0  # of the unchanged program
    _roots: list[str] = field(default_factory=list)  # folders that the project is imported from

    def __post_init__(self) -> None:
        self.project, self.here = self.project.resolve(), self.here.resolve()

    def name_of(self, path: Path) -> str:
        """A file's name inside the project, POSIX."""
        return relative(path, self.project)

    def run(self, made: Sequence[Patch]) -> ProofRun:
        """Run the command in a copy of the project with patches applied.

        Raises `JoyError` where the unchanged program takes longer than `timeout_s`.
        """
        done = self._run(made)
        if done.original and not self._roots:
            # Installed in place from a folder of its own: the copy's goes before it.
            self._roots = sorted({import_root(self.project, name) for name in done.original})
            done = self._run(made)
        return done

    def _run(self, made: Sequence[Patch]) -> ProofRun:
        self.runs += 1
        with tempfile.TemporaryDirectory(prefix="joymigrate-prove-") as folder:
            top = Path(folder).resolve()
            copy, watch = top / self.project.name, top / "watch"
            watch.mkdir()
            shutil.copyfile(WATCH, watch / "sitecustomize.py")

            def write(part: Path) -> None:
                for patch in made:
                    place = part / relative(patch.path, self.project)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    if patch.after is not None:
                        lift_protection(place)
                        place.write_bytes(patch.after)

            rewritten_copy([self.project], self.project, copy, write)
            began = time.monotonic()
            limit_s = min(self.timeout_s, 60 + 10 * self.longest_s) if made else self.timeout_s
            code, text = self._ended(copy, watch, limit_s)
            if not made and code is None:
                raise JoyError(
                    Text(
                        "the program did not end within {seconds} s",
                        seconds=f"{self.timeout_s:.0f}",
                    ),
                    where=" ".join(self.command),
                    help="--prove-timeout gives it more time",
                )
            if not made:
                self.longest_s = max(self.longest_s, time.monotonic() - began)
            loaded, original = self._loaded(copy, watch)
        return read_output(code, text.replace(str(copy), str(self.project)), loaded, original)

    def _folder(self, copy: Path) -> Path:
        """Where the command runs: the copy's folder for the one that it was typed in."""
        if self.here.is_relative_to(self.project):
            place = copy / self.here.relative_to(self.project)
            return place if place.is_dir() else copy
        return copy

    def _words(self, copy: Path) -> list[str]:
        """The command with the copy's files in place of the project's."""
        inside = self.here.is_relative_to(self.project)
        found = []
        for number, word in enumerate(self.command):
            place = Path(os.path.normpath(self.here / word))
            inner = place != self.project and place.is_relative_to(self.project)
            mine = inner and os.path.exists(place)  # no error for a text that is too long
            moved = copy / place.relative_to(self.project) if mine else None
            if number == 0 and (os.sep not in word or moved is None or not moved.exists()):
                # A program: of the copy where it has one; an environment stays behind.
                word = str(place) if os.sep in word else word
            elif moved is not None and not inside:
                word = str(moved)
            else:
                ends = r"(?=$|[/:,;=\s'\"])"
                word = re.sub(re.escape(str(self.project)) + ends, lambda _: str(copy), word)
            found.append(word)
        return found

    def _ended(self, copy: Path, watch: Path, limit_s: float) -> tuple[int | None, str]:
        """Exit code, None after `limit_s`, and output."""
        words, folder = self._words(copy), self._folder(copy)
        program = str(folder / words[0]) if os.sep in words[0] else words[0]
        if shutil.which(program) is None:
            found = os.path.isfile(program)
            raise JoyError(
                f"not executable: {words[0]}" if found else f"no such program: {words[0]}",
                help="give a command after --",
            )
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        old = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
        own = [Path(self.here, each).resolve() for each in old]
        moved = [
            str(copy / each.relative_to(self.project))
            if each.is_relative_to(self.project)
            else str(each)
            for each in own
        ]
        roots = [str(copy / each) for each in self._roots]
        roots += [str(copy), *([str(copy / "src")] if (copy / "src").is_dir() else [])]
        environment["PYTHONPATH"] = os.pathsep.join([str(watch), *roots, *moved])
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = subprocess.Popen(
                    words, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                    stdout=out, stderr=err, start_new_session=True,
                )  # fmt: skip
            except OSError as error:  # a script without its first line
                raise JoyError(
                    f"cannot start {words[0]}: {error.strerror}",
                    help="name the program that runs it: sh run.sh, python run.py",
                ) from None
            code: int | None = None
            try:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(limit_s)
            finally:
                with suppress(ProcessLookupError):  # with what it started itself and left behind
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return code, f"{read_text(out)}\n{read_text(err)}"

    def _loaded(self, copy: Path, watch: Path) -> tuple[frozenset[str], list[str]]:
        """Files of the copy that were run or read, and those of the project itself."""
        report = watch / "loaded"
        told = report.read_text(errors="replace").splitlines() if report.exists() else []
        names = set(map(Path, told))
        given = (os.path.normpath(self._folder(copy) / word) for word in self._words(copy))
        names |= {Path(path) for path in given if os.path.isfile(path)}
        loaded = {n.relative_to(copy).as_posix() for n in names if n.is_relative_to(copy)}
        own = {n.relative_to(self.project) for n in names if n.is_relative_to(self.project)}
        # What an environment inside of the project holds is no part of it.
        original = sorted(n.as_posix() for n in own if (copy / n).is_file())
        return frozenset(loaded), original


def import_root(project: Path, name: str) -> str:
    """The folder above a file's packages, relative to the project."""
    folder = (project / name).parent
    while folder != project and (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder.relative_to(project).as_posix()


def read_text(file: IO[bytes]) -> str:
    """What a program wrote into a file that is open; lines end as in a pipe of text."""
    file.seek(0)
    text = file.read().decode(errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")
