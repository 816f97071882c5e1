"""Runs a kernel and its port in Triton's interpreter on the same arguments: a process of its own.

    python -m joymigrate.profile.port.interpret JOBS.json FIRST

JOBS lists `original`, `port` (files), `kernel` and `cases`. Prints a line of JSON for each case
from number FIRST on: `equal`, `different` (with the place), `nothing` (the kernel
wrote nothing) or `failed` (the original does not run with these arguments). The process must be
started with TRITON_INTERPRET=1: an address beyond a buffer ends it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOM = 1 << 19  # elements on each side of a pointer
SECONDS = 30  # of processor time for one case; then the process is ended
CORES = 5  # fewer than blocks, so that cores take several
GRIDS = ((7,), (3, 2), (3, 2, 2))


def load(path: Path) -> Any:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(case: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments, and the whole buffers behind the pointers."""
    import torch
    import triton.language as tl

    given: dict[str, Any] = {}
    buffers: dict[str, Any] = {}
    for name, what in case.items():
        if "pointer" in what:
            made = torch.Generator().manual_seed(what["seed"])
            if what["pointer"] == "int64":
                whole = torch.randint(0, 3, (2 * ROOM,), generator=made)
            else:
                whole = torch.rand(2 * ROOM, generator=made) * 2 - 1
            buffers[name] = whole
            given[name] = whole[ROOM:]
        elif isinstance(what["value"], Mapping):
            given[name] = getattr(tl, what["value"]["dtype"])
        else:
            given[name] = what["value"]
    return given, buffers


def take_reals() -> None:
    """Let the interpreter take a real number as the compiler does: as a scalar of float32."""
    import numpy
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def taken(value: Any) -> Any:
        if type(value) is float:
            handle = interpreter.TensorHandle(numpy.array([value], numpy.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return convert(value)

    interpreter._implicit_cvt = taken


def run(original: Any, module: Any, kernel: str, case: Mapping[str, Any], grid: Any) -> str:
    """Both on one case; where they differ, the original once more with its blocks backwards."""
    import torch

    first = launch(original, case, grid)
    if isinstance(first, str):
        return f"failed: {first}"
    module._cores = lambda products: CORES
    second = launch(getattr(module, kernel), case, grid)
    if isinstance(second, str):
        return f"different: the port raises {second}"
    fresh = arguments(case)[1]
    wrong = [name for name in first if not same(first[name], second[name])]
    if not wrong:
        written = any(not same(first[name], fresh[name]) for name in first)
        return "equal" if written else "nothing"
    with backwards():
        third = launch(original, case, grid)
    if not isinstance(third, str) and any(not same(first[n], third[n]) for n in first):
        # Sums of several blocks into one place are rounded in their order, which nobody promises.
        if all(torch.allclose(first[n], second[n], 1e-5, 1e-5, equal_nan=True) for n in wrong):
            return "equal"
        return "failed: blocks write to one place with these arguments, so their order counts"
    off = torch.nonzero(first[wrong[0]] != second[wrong[0]]).flatten()
    return f"different: {wrong[0]} at {int(off[0]) - ROOM if len(off) else '?'}"


@contextlib.contextmanager
def backwards() -> Iterator[None]:
    """Let the interpreter take the blocks of a grid from the last to the first."""
    from triton.runtime.interpreter import interpreter_builder

    place = interpreter_builder.set_grid_idx

    def turned(*at: int) -> None:
        place(*(size - 1 - one for size, one in zip(interpreter_builder.grid_dim, at, strict=True)))

    interpreter_builder.set_grid_idx = turned
    try:
        yield
    finally:
        interpreter_builder.set_grid_idx = place


def launch(kernel: Any, case: Mapping[str, Any], grid: Any) -> dict[str, Any] | str:
    """The buffers after a launch, or what it raised."""
    given, buffers = arguments(case)
    try:
        kernel[grid](**given)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip()[:200]}"
    return buffers


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit, so that NaN is NaN."""
    import torch

    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


def main(arguments_: list[str]) -> int:
    """All jobs of a file, from the case that is asked for on; see above."""
    jobs = json.loads(Path(arguments_[0]).read_text())
    begin = int(arguments_[1])
    take_reals()
    number = 0
    for job in jobs:
        last = number + len(job["cases"])
        if last <= begin:
            number = last
            continue
        try:
            first = getattr(load(Path(job["original"])), job["kernel"])
            module = load(Path(job["port"]))
            fault = ""
        except Exception as error:
            fault = f"failed: {type(error).__name__}: {str(error).strip()[:200]}"
        for index, case in enumerate(job["cases"]):
            if number >= begin:
                grid = GRIDS[index % len(GRIDS)]
                signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of work: a busy machine is no fault
                told = fault or run(first, module, job["kernel"], case, grid)
                print(json.dumps(told), flush=True)
            number += 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
