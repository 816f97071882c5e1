"""Installs joymigrate where nothing is, with each extra alone, and uses it there.

    python -m scripts.clean_machine                       # the core, and each extra by itself
    python -m scripts.clean_machine --extra core --extra serve

Builds the sdist, the wheel and the wheel of the sdist, installs the last into an empty virtual
environment per extra (versions of constraints.txt), and there, from a folder outside the
repository: `--help` of every command, `doctor`, and the commands of exercises.py. A command that
needs another extra must say so in one error. Faults go to stderr as they are found, one line per
extra to stdout; exit code 1 when one fails.
Needs Python alone.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scripts.clean_machine.attempt import Result, attempt, explain_all, finished
from scripts.clean_machine.build import Broken, built
from scripts.clean_machine.environment import Environment, made
from scripts.clean_machine.exercises import EXERCISES, TORCH, Exercise
from scripts.clean_machine.extras import declared
from scripts.clean_machine.workplace import filled

REPOSITORY = Path(__file__).parents[2]
CORE = "core"
OURS = ("dev", "docs")  # for those who build joymigrate: `make test` and `make docs` use them


@dataclass(frozen=True, slots=True)
class Line:
    """What came out for one extra."""

    extra: str
    size_bytes: int
    install_s: float
    helped: int
    results: tuple[Result, ...]
    total_s: float
    broken: str | None = None

    @property
    def faults(self) -> list[Result]:
        return [result for result in self.results if result.fault]

    def text(self) -> str:
        """The line of the table."""
        if self.broken:
            return f"{self.extra:<9} failed: {self.broken}"
        worked = sum(not r.refused for r in self.results if not r.fault)
        refused = sum(r.refused for r in self.results if not r.fault)
        verdict = f"FAILED {len(self.faults)}" if self.faults else "ok"
        return (
            f"{self.extra:<9} {self.size_bytes / 2**20:>6.0f} {self.install_s:>8.0f} "
            f"{self.helped:>5} {worked:>6} {refused:>8} {self.total_s:>8.0f}  {verdict}"
        )


HEAD = "extra        MiB install_s  help worked  refused  total_s  result"


def main() -> int:
    """Build, install, try, print the table."""
    options = parsed()
    known = declared(REPOSITORY / "pyproject.toml")
    extras = options.extra or [CORE, *(name for name in known if name not in OURS)]
    for extra in extras:
        if extra not in (CORE, *known):
            print(f"error: there is no extra '{extra}': {', '.join(known)}", file=sys.stderr)
            return 2
    room = Path(tempfile.mkdtemp(prefix="clean-machine-"))
    begin = time.monotonic()
    try:
        wheel = built(REPOSITORY, room / "build")
        print(f"built {wheel.name} in {time.monotonic() - begin:.0f} s", file=sys.stderr)
        with ThreadPoolExecutor(options.jobs) as pool:
            lines = list(pool.map(lambda extra: tried(extra, room, wheel, options.keep), extras))
    except Broken as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(room, ignore_errors=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = used.ru_utime + used.ru_stime
    print(f"{spent:.0f} s of processor time in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    print("\n".join([HEAD, *(line.text() for line in lines)]))
    return 1 if any(line.faults or line.broken for line in lines) else 0


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        "python -m scripts.clean_machine", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--extra", action="append", help=f"only this one ({CORE}: none); repeatable"
    )
    parser.add_argument("--jobs", type=int, default=2, help="environments at a time (2)")
    parser.add_argument("--keep", action="store_true", help="leave the environments there")
    return parser.parse_args()


def tried(extra: str, room: Path, wheel: Path, keep: bool) -> Line:
    """Install one extra and try everything with it."""
    begin = time.monotonic()
    name = None if extra == CORE else extra
    folder, home, cwd = room / extra / "env", room / extra / "home", room / extra / "work"
    try:
        environment, took = made(folder, home, wheel, name, REPOSITORY / "constraints.txt")
        size = environment.size_bytes()
        filled(cwd, REPOSITORY / "examples" / "gpt")
        if name in TORCH:
            # A plain `import torch` loads the chip's package, which fails without its driver.
            quiet = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
            code, text = finished(environment, ["python", "model.py", "model"], cwd, quiet)
            if code:
                raise Broken(f"no model could be made\n{text}")
        helped, results = exercised(environment, cwd, name)
    except Broken as error:
        return Line(extra, 0, 0.0, 0, (), time.monotonic() - begin, str(error))
    if not keep:
        shutil.rmtree(room / extra, ignore_errors=True)
    total = time.monotonic() - begin
    line = Line(extra, size, took, helped, results, total)
    shown = [f"{extra}: {total:.0f} s"]
    shown += [f"\n{extra}: {result.line}\n  {result.fault}\n" for result in line.faults]
    print("\n".join(shown), file=sys.stderr, flush=True)
    return line


def exercised(
    environment: Environment, cwd: Path, extra: str | None
) -> tuple[int, tuple[Result, ...]]:
    """`--help` of every command, and the exercises that have their place here."""
    helped, first = explain_all(environment, cwd)
    found = [first]
    for exercise in EXERCISES:
        if not has_place(exercise, extra):
            continue
        result = attempt(exercise, environment, cwd, extra)
        if result is not None:
            found.append(result)
    return helped, tuple(found)


def has_place(exercise: Exercise, extra: str | None) -> bool:
    """Whether an exercise says something new with this extra.

    What needs none is tried in a bare core, what needs torch also with torch alone. With the chip's
    package both are tried again: it is there without its driver.
    """
    if "doctor" in exercise.line or exercise.only:
        return True
    if not exercise.extras:
        return extra in (None, "ascend")
    if exercise.extras == TORCH:
        return extra in (None, "torch", "ascend") or f"joymigrate {extra} " in exercise.line
    return True


if __name__ == "__main__":
    sys.exit(main())
