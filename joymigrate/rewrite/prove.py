"""`rewrite --prove`: the project's own program before and after a rewrite, on this machine.

All runs happen in copies. Where a run ends otherwise, or tells other tests or results, groups of
edits are added by halves, and those that change it are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.model import Patch, Scan
from joymigrate.rewrite.patch import patches, unit
from joymigrate.rewrite.prove_run import ProofRun, ProofRunner


@dataclass(frozen=True, slots=True)
class Proved:
    """The patches that keep the program's behaviour, and the groups that were left out.

    `runs` is how often the program ran; `before` is its result without any edit. `loaded` are the
    changed files that Python programs of the last run ran or read, `unseen` the others.
    """

    patches: tuple[Patch, ...]
    before: ProofRun
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
    runner = ProofRunner(project or scan.root, here or Path.cwd(), list(command), timeout_s)
    before = first_runs(runner)
    last = before

    def difference(kept: Sequence[str]) -> tuple[str, ...]:
        nonlocal last
        without = frozenset(units).difference(kept)
        run = runner.run(patches(scan, unsafe=unsafe, without=without))
        found = before.differences(run)
        if not found:
            last = run
        return found

    kept = units
    found = difference(units)
    if found:
        before = steady(before, runner.run(()))
        again = difference(units)
        if not again and found != ("numbers",):
            raise differs_by_itself("with the same edits", found)
        kept = harmless(units, difference) if again else units
    left = frozenset(units).difference(kept)
    made = patches(scan, unsafe=unsafe, without=left)
    names = [runner.name_of(p.path) for p in made if p.before is not None]
    return Proved(
        tuple(made),
        before,
        tuple(sorted(left)),
        runner.runs,
        tuple(name for name in names if name in last.loaded),
        tuple(name for name in names if name not in last.loaded),
    )


def first_runs(runner: ProofRunner) -> ProofRun:
    """The result of the unchanged program; `JoyError` for one that can prove nothing."""
    where = " ".join(runner.command)
    before = steady(runner.run(()), runner.run(()))
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


def steady(before: ProofRun, again: ProofRun) -> ProofRun:
    """What two runs of the unchanged program have in common; `JoyError` if they differ."""
    common = replace(before, numbers=before.numbers & again.numbers)
    ways = common.differences(again)
    if ways:
        raise differs_by_itself("of the unchanged program", ways)
    return common


def harmless(
    units: Sequence[str], difference: Callable[[Sequence[str]], tuple[str, ...]]
) -> list[str]:
    """The units that change nothing together, found by halves; all of them together change it.

    `difference` tells in what a run with some units differs from one without any. Of units that
    only together do harm, the last is left. Raises `JoyError` where a run differs once only.
    """
    kept: list[str] = []

    def add(some: Sequence[str], known: tuple[str, ...]) -> None:
        found = known or difference([*kept, *some])
        if not found:
            kept.extend(some)
        elif len(some) > 1:
            middle = len(some) // 2
            before = len(kept)
            add(some[:middle], ())
            # Where the first half changes nothing, the second one does: this was seen just now.
            add(some[middle:], found if len(kept) == before + middle else ())
        elif not difference([*kept, *some]):
            raise differs_by_itself(f"with the same edits ({some[0]})", found)

    add(units, ("results",))
    return kept


def differs_by_itself(what: str, ways: Iterable[str]) -> JoyError:
    """The error of a program that is not the same in two runs."""
    return JoyError(
        f"two runs {what} differ in {', '.join(sorted(ways))}: nothing can be proven with it",
        help="fix its seeds, or prove with its tests; leave out what fails now and then",
    )
