"""`rewrite --prove`: the project's own program before and after a rewrite, on this machine.

Both runs happen in copies. A run that ends otherwise, or tells other tests or losses, is traced to
the groups of edits that change it, by halves, and those are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.model import Patch, Scan
from joymigrate.rewrite.patch import patches, unit
from joymigrate.rewrite.prove_run import Run, Runner

PYTHON = (".py", ".pyw")


@dataclass(frozen=True, slots=True)
class Proved:
    """The patches that keep the program's behaviour, and the groups that were left out.

    `runs` is how often the program ran; `before` is its result without any edit. `loaded` are the
    changed Python files that the last run loaded, `unseen` those that it did not.
    """

    patches: tuple[Patch, ...]
    before: Run
    left: tuple[str, ...]
    runs: int
    loaded: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def prove(
    scan: Scan,
    command: Sequence[str],
    *,
    unsafe: bool,
    timeout_s: float,
    project: Path | None = None,
    here: Path | None = None,
) -> Proved | None:
    """Find the largest set of edits, by halves, under which `command` does what it did before.

    `project` is the folder that is copied (default: the scan's root), `here` the folder that the
    command was typed in. None when there is no edit to prove.
    """
    units = list(
        dict.fromkeys(unit(f) for p in patches(scan, unsafe=unsafe) for f in p.findings
                      if f.rule != "JM001")
    )  # fmt: skip
    if not units:
        return None
    runner = Runner(project or scan.root, here or Path.cwd(), list(command), timeout_s)
    before = first_runs(runner)
    left: set[str] = set()

    def result(without: set[str]) -> Run:
        made = patches(scan, unsafe=unsafe, without=frozenset(without))
        return runner.run(made)

    last = result(left)
    if not last.same(before):
        everything = set(units)
        harms = lambda tried: not result(everything - set(tried)).same(before)  # noqa: E731
        left |= set(culprits(units, harms))
        last = result(left)
        if not last.same(before):  # edits that only together do harm
            left = everything
    made = patches(scan, unsafe=unsafe, without=frozenset(left))
    names = [runner.name_of(p.path) for p in made if p.before is not None]
    python = [name for name in names if name.endswith(PYTHON)]
    return Proved(
        tuple(made),
        before,
        tuple(sorted(left)),
        runner.runs,
        tuple(name for name in python if name in last.loaded),
        tuple(name for name in python if name not in last.loaded),
    )


def first_runs(runner: Runner) -> Run:
    """The result of the unchanged program; `JoyError` for one that can prove nothing."""
    where = " ".join(runner.command)
    before, again = runner.run(()), runner.run(())
    if not before.same(again):
        what = ", ".join(before.differences(again))
        raise JoyError(
            f"two runs of the unchanged program differ in {what}: nothing can be proven with it",
            where=where,
            help="fix its seeds, or prove with its tests",
        )
    if before.code and not before.tests:
        raise JoyError(
            f"the program fails before any edit (exit code {before.code}):\n{before.tail}",
            where=where,
            help=f"it ran in a copy of {runner.project}; name a command that works there",
        )
    if before.original:
        raise JoyError(
            f"the command loads {before.original[0]} from the project itself, not from the copy "
            "that is rewritten: nothing can be proven with it",
            where=where,
            help="run it with a Python that finds the project through PYTHONPATH",
        )
    return before


def culprits(units: Sequence[str], harms: Callable[[Sequence[str]], bool]) -> list[str]:
    """The units that do harm alone, found by halves."""
    if not units or not harms(units):
        return []
    if len(units) == 1:
        return list(units)
    middle = len(units) // 2
    found = [*culprits(units[:middle], harms), *culprits(units[middle:], harms)]
    return found or list(units)  # harm needs both halves
