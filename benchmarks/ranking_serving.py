"""Ranking: operators and time of merged requests, and compiled code, against one by one.

    python -m benchmarks.ranking_serving [--compile]

Prints ratios of one run on the DIN-like model of `benchmarks.ranking_example`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import ranking_example as example
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.meters import compilations
from joymigrate.run.serve.ranking.packages import Packages
from joymigrate.run.serve.ranking.program import load

ROUNDS = 60


class Launches(TorchDispatchMode):
    """Counts operators as they reach the dispatcher."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def seconds(call: Callable[[], object]) -> float:
    """Median CPU seconds of one call."""
    rows = []
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        rows.append(time.process_time() - began)
    return statistics.median(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="AOTInductor, too (minutes)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    program = load(example.export(folder / "din.pt2"))
    for candidates, length in ((1, 10), (5, 20), (20, 50)):
        given = [draw(program.signature, candidates, length, seed) for seed in range(3)]
        whole = merge(program.signature, given)
        with torch.no_grad(), Launches() as alone:
            single = [program.run(one.arrays)[0].numpy() for one in given]
        with torch.no_grad(), Launches() as together:
            merged = program.run(whole.arrays)[0].numpy()
        gap = float(np.abs(np.concatenate(single) - merged).max())
        one_by_one = seconds(lambda given=given: [program.run(one.arrays) for one in given])
        at_once = seconds(lambda given=given: program.run(merge(program.signature, given).arrays))
        print(
            f"3 requests, {candidates} candidates, history {length}: operators "
            f"{alone.count} -> {together.count}, throughput {one_by_one / at_once:.2f}x, "
            f"largest difference {gap:.1e}"
        )
    if options.compile:
        compiled(program, folder)


def compiled(program: Any, folder: Path) -> None:
    """Compile in a process beside this one, and compare."""
    engine = RankingEngine(program)
    packages = Packages(engine, folder)
    before = compilations()
    packages.work()
    print(f"package: {packages.state} {packages.reason} after {packages.seconds:.0f} s")
    if program.compiled is None:
        return
    for candidates, length in ((1, 10), (20, 50)):
        arrays = draw(program.signature, candidates, length).arrays
        eager = seconds(lambda arrays=arrays: program.run(arrays))
        fast = seconds(lambda arrays=arrays: program.run(arrays, program.compiled))
        print(f"{candidates} candidates, history {length}: AOTInductor {eager / fast:.2f}x eager")
    print(f"compilations in this process: {compilations() - before:.0f}")


if __name__ == "__main__":
    main()
