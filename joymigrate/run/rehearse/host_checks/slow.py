"""Which calls the vendor's host code sends to the chip's own CPU (AICPU), by the dtype of their
first tensor.

A call that the host code takes is searched as for the table of answers; then all tensors of the
first one's dtype get each other dtype, at three sizes. A dtype counts where every call that was
taken with it launches the same kernel there: a cast of the second tensor alone is none of a call
whose tensors are alike. The table `rules/ascend/ops/kernel_aicpu.csv` is what
`python -m joymigrate.run.rehearse.host_checks.slow CHECKOUTS` prints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from joymigrate.chips.slow_kernels import AICPU, SlowKernel, table_of
from joymigrate.errors import JoyError
from joymigrate.run.rehearse.host_checks.ask import (
    CRASHED,
    NUMBERS,
    Answer,
    CheckLibrary,
    Form,
    ask_in_child,
)
from joymigrate.run.rehearse.host_checks.declarations import TENSORS, Argument
from joymigrate.run.rehearse.host_checks.grid import Grid, dtype_in, with_dtype
from joymigrate.run.rehearse.host_checks.refusals import SIDE
from joymigrate.run.rehearse.settings import HOST_MODELS

SIDES = (SIDE, 16, 1024)  # lengths of an axis


def of_side(value: Any, side: int) -> Any:
    """An argument with another length of every axis that has the grid's."""
    if isinstance(value, list):
        return [of_side(one, side) for one in value]
    if not isinstance(value, Form):
        return value
    return replace(value, shape=tuple(side if n == SIDE else n for n in value.shape))


def slow_dtypes(arguments: Sequence[Argument], grid: Grid) -> dict[str, tuple[str, ...]]:
    """By dtype of the first tensor, the kernels on the chip's CPU; empty where there are none."""
    bases, _ = grid.search()
    found: dict[str, list[list[str]]] = {}
    tensors = [n for n, a in enumerate(arguments) if a.kind in TENSORS]
    for base in bases:
        there = [n for n in tensors if base[n]]
        if not there:
            continue
        tied = [n for n in there if dtype_in(base[n]) == dtype_in(base[there[0]])]
        for dtype in NUMBERS:
            for group in (tied, there, [*there[:1], *there[-1:]]):
                question = with_dtype(base, group, dtype)
                for side in SIDES:
                    answer = grid.ask([of_side(value, side) for value in question])
                    if answer.status == 0:
                        found.setdefault(dtype, []).append(on_cpu(answer))
    shared = {dtype: shared_names(each) for dtype, each in found.items()}
    return {dtype: names for dtype, names in shared.items() if names}


def shared_names(calls: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What every call launches, in the first one's order."""
    return tuple(dict.fromkeys(n for n in calls[0] if all(n in names for names in calls)))


def on_cpu(answer: Answer) -> list[str]:
    return [name.removeprefix(AICPU) for name in answer.kernels if name.startswith(AICPU)]


def ask_kernel(
    library: CheckLibrary, kernel: str, arguments: Sequence[Argument], crashes: int = 6
) -> dict[str, tuple[str, ...]]:
    """The same in processes of their own: a crash is a call that is not taken."""
    crashed: set[str] = set()

    def work(tell: Callable[[Any], None]) -> None:
        def ask(question: Sequence[Any]) -> Any:
            key = repr(question)
            if key in crashed:
                return CRASHED
            tell({"asking": key})
            return library.ask(kernel, arguments, question)

        tell({"found": slow_dtypes(arguments, Grid(arguments, ask))})

    while len(crashed) <= crashes:
        told, _ = ask_in_child(work)
        if told and "found" in told[-1]:
            return {dtype: tuple(names) for dtype, names in told[-1]["found"].items()}
        if not told:
            break
        crashed.add(told[-1]["asking"])
    return {}


def rows_of(
    found: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]], sources: Mapping[str, str]
) -> list[SlowKernel]:
    """Kernel → model → dtype → kernels on the chip's CPU, as rows: models alike share one."""
    rows = []
    for kernel, by_model in sorted(found.items()):
        alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for model, by_dtype in by_model.items():
            groups: dict[tuple[str, ...], list[str]] = {}
            for dtype, names in by_dtype.items():
                groups.setdefault(tuple(names), []).append(dtype)
            for names, dtypes in groups.items():
                alike.setdefault((names, tuple(sorted(dtypes))), []).append(model)
        rows += [
            SlowKernel(kernel, frozenset(models), frozenset(dtypes), names, sources.get(kernel, ""))
            for (names, dtypes), models in sorted(alike.items())
        ]
    return rows


def main(folder: Path) -> str:
    """The whole table, asked of the finished build of these checkouts."""
    from joymigrate.run.rehearse.build import find_package
    from joymigrate.run.rehearse.host_checks.build import read_build
    from joymigrate.run.rehearse.host_checks.checkouts import find_checkouts
    from joymigrate.run.rehearse.host_checks.declarations import read_declarations

    checkouts = find_checkouts(folder)
    build = read_build(checkouts, find_package())
    if build is None:
        raise JoyError(
            "there is no finished build of these checkouts",
            where=str(folder),
            help=f"joymigrate rehearse setup --host-checks {folder}",
        )
    declared, sources = read_declarations(checkouts)
    library = CheckLibrary(build.library)
    found: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
    for model in HOST_MODELS.values():
        library.choose(model)
        for kernel in sorted(k for k in build.kernels if k in declared and library.has(k)):
            slow = ask_kernel(library, kernel, declared[kernel])
            if slow:
                found.setdefault(kernel, {})[model] = slow
    return table_of(rows_of(found, sources))


if __name__ == "__main__":
    print(main(Path(sys.argv[1])), end="")
