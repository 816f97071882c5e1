"""Ask whether the tests notice a changed comparison, a forgotten call, another return value.

    python -m scripts.mutants [--share 0.25] [--seed N] [--budget SECONDS] [--jobs N]
        [--files GLOB…] [--tests PATH…] [-- NAME…]

mutmut makes the mutants, finds the tests of each and runs them; `[tool.mutmut]` in pyproject.toml
says of which files and with which tests. This script chooses what is changed: it leaves out texts
and dropped arguments (most are wordings, or a TypeError at once) and adds removed calls, negated
conditions, emptied returns and swapped min/max, any/all. Survivors are printed as diffs;
`mutmut browse` shows them too. A NAME is a pattern: 'joymigrate.run.cluster.*'. With a budget only
the cheapest tests of a mutant are run; one that outlives them is tried again without, by its name.
`--files` and `--tests` narrow the lists of pyproject.toml, so that a part starts within a minute.
Functions under a decorator (properties) are not mutated.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import libcst as cst
import mutmut.__main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.workers.isolation import ForkServerRunner

LEFT_OUT = (mutators.operator_string, mutators.operator_arg_removal)
KILLED = ("killed", "timeout", "not checked")
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


def main() -> None:
    """Make the mutants, run the tests of each, print what survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="patterns of mutants' names (default: all)")
    parser.add_argument("--share", type=float, default=1.0, help="share of mutants that is made")
    parser.add_argument("--seed", type=int, default=0, help="which share")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--files", nargs="+", metavar="GLOB", help="change these files only")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="run these tests only")
    arguments = parser.parse_args()
    choose_operators()
    narrow(arguments.files, arguments.tests)
    forget_others(f"{arguments.share} {arguments.seed} {arguments.files}")
    if arguments.share < 1:
        sample(arguments.share, arguments.seed)
    cheapest_first(arguments.budget)
    mutmut._run(tuple(arguments.names), arguments.jobs)
    report()


def choose_operators() -> None:
    """Change mutmut's list of operators, which its workers inherit."""
    kept = [(kind, made) for kind, made in mutators.mutation_operators if made not in LEFT_OUT]
    own = [
        (cst.Expr, removed_call),
        (cst.Return, emptied_return),
        (cst.If, negated_condition),
        (cst.CompIf, negated_condition),
        (cst.While, negated_condition),
        (cst.Call, swapped_function),
    ]
    mutators.mutation_operators[:] = [*kept, *own]  # type: ignore[index]


def narrow(files: Sequence[str] | None, tests: Sequence[str] | None) -> None:
    """Replace the files and the tests of pyproject.toml; what it leaves out stays out."""
    chosen = config()
    if files:
        chosen.only_mutate = list(files)
    if tests:
        options = [o for o in chosen.pytest_add_cli_args_test_selection if o.startswith("-")]
        chosen.pytest_add_cli_args_test_selection = [*tests, *options]


def forget_others(choice: str) -> None:
    """Remove the mutants of another choice: mutmut takes a file it has copied for up to date."""
    note = Path("mutants") / "choice.txt"
    if note.parent.exists() and (not note.exists() or note.read_text("utf-8") != choice):
        shutil.rmtree(note.parent)
    note.parent.mkdir(exist_ok=True)
    note.write_text(choice, "utf-8")


def removed_call(node: cst.Expr) -> Iterable[cst.BaseSmallStatement]:
    """`queue.push(job)` → `pass`."""
    if isinstance(node.value, cst.Call | cst.Await):
        yield cst.Pass()


def emptied_return(node: cst.Return) -> Iterable[cst.Return]:
    """`return x` → `return None`."""
    if node.value is not None and not isinstance(node.value, cst.Name):
        yield node.with_changes(value=cst.Name("None"))


def negated_condition(node: Any) -> Iterable[Any]:
    """`if fits(card):` → `if not fits(card):`. Comparisons have mutants of their own."""
    if isinstance(node.test, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
        space = cst.SimpleWhitespace(" ")
        negated = cst.UnaryOperation(cst.Not(whitespace_after=space), node.test)
        yield node.with_changes(test=negated)


def swapped_function(node: cst.Call) -> Iterable[cst.Call]:
    """`min(…)` → `max(…)`."""
    if isinstance(node.func, cst.Name) and node.func.value in SWAPPED:
        yield node.with_changes(func=cst.Name(SWAPPED[node.func.value]))


def sample(share: float, seed: int) -> None:
    """Make only a part of the mutants, the same part for the same file and seed."""
    create = file_mutation.create_mutations

    def some(filename: str, *rest: Any) -> Any:
        module, mutations, *ignored = create(filename, *rest)
        chance = random.Random(f"{seed}:{filename}")
        return module, [one for one in mutations if chance.random() < share], *ignored

    file_mutation.create_mutations = some  # type: ignore[assignment]


def cheapest_first(budget: float) -> None:
    """Run a mutant's cheapest tests first, and no more of them than fit the budget (seconds)."""
    submit = ForkServerRunner.submit

    def ordered(self: Any, mutant: str, tests: list[str], *limits: Any) -> None:
        seconds = state().duration_by_test
        spent = 0.0
        chosen: list[str] = []
        for test in sorted(tests, key=lambda name: (seconds[name], name)):
            spent += seconds[test]
            if chosen and spent > budget:
                break
            chosen.append(test)
        submit(self, mutant, chosen, *limits)

    ForkServerRunner.submit = ordered  # type: ignore[assignment,method-assign]


def report() -> None:
    """Print every survivor as a diff, then the figures of each file."""
    total: Counter[str] = Counter()
    lines = []
    for path in sorted(walk_mutatable_files()):
        if not (Path("mutants") / f"{path}.meta").exists():
            continue
        data = SourceFileMutationData(path=path)
        data.load()
        statuses = {k: status_by_exit_code[code] for k, code in data.exit_code_by_key.items()}
        for name in (n for n, status in statuses.items() if status not in KILLED):
            print(f"# {name}: {statuses[name]}\n{get_diff_for_mutant(name, path=path)}")
        counted = Counter(statuses.values())
        del counted["not checked"]
        total += counted
        lines.append(f"{path}: {counts(counted)}")
    print("\n".join([*lines, f"all: {counts(total)}"]))


def counts(counted: Counter[str]) -> str:
    """`120 mutants: 100 killed, 20 survived`."""
    parts = ", ".join(f"{number} {status}" for status, number in counted.most_common())
    return f"{counted.total()} mutants: {parts}"


if __name__ == "__main__":
    main()
