"""Runs a kernel and its port in Triton's interpreter on the same arguments: a process of its own.

    python -m joymigrate.profile.port.interpret JOBS.json FIRST

JOBS lists `original`, `port` (files), `kernel`, `roles` and the number of `cases`. Prints a line of
JSON for each case from number FIRST on, with `told`: `equal`, `different` (with the place), or
`failed` (with no arguments that were tried does the original run and write something), and the
lines that `ran` with the `case` (the arguments). Where drawn arguments do not fit, others are
tried. The process must be started with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from joymigrate.profile.port.draw import Role, draw, role_of
from joymigrate.profile.port.retry import EVERY, NOTHING, ORDER, SLOW, CaseFault, near, search

ROOM = 1 << 19  # elements on each side of a pointer
SECONDS = 60  # of processor time for one case; then the last failure counts
ONCE = 12  # of processor time for one launch
CORES = 5  # fewer than blocks, so that cores take several
GRIDS = {1: ((7,), (9,), (13,)), 2: ((3, 3), (4, 2), (2, 5)), 3: ((3, 2, 2), (2, 3, 2), (2, 2, 3))}


class TooLong(Exception):
    """A launch that takes too long."""


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
            buffers[name] = buffer(what["pointer"], made)
            given[name] = buffers[name][ROOM:]
        elif isinstance(what["value"], Mapping):
            given[name] = getattr(tl, what["value"]["dtype"])
        else:
            given[name] = what["value"]
    return given, buffers


def buffer(kind: str, made: Any) -> Any:
    """Numbers of one type; `rising` are whole ones that grow behind the pointer, as offsets do."""
    import torch

    if kind == "float32":
        return torch.rand(2 * ROOM, generator=made) * 2 - 1
    if kind == "zero":
        return torch.zeros(2 * ROOM, dtype=torch.int64)
    if kind == "rising":
        steps = torch.randint(0, 9, (64,), generator=made).cumsum(0)
        whole = torch.full((2 * ROOM,), int(steps[-1]))
        whole[:ROOM], whole[ROOM], whole[ROOM + 1 : ROOM + 65] = 0, 0, steps
        return whole
    limit = 2 if kind == "bool" else 3
    return torch.randint(0, limit, (2 * ROOM,), generator=made).to(getattr(torch, kind))


class PortCase:
    """Arguments for one kernel that make it write something, and the comparison on them."""

    def __init__(self, job: Mapping[str, Any], original: Any, port: Any, seed: int) -> None:
        self.job, self.original, self.port, self.seed = job, original, port, seed
        source = Path(job["original"]).read_text(encoding="utf-8")
        self.tree = ast.parse(source)
        self.grid = grid_of(self.tree, job["kernel"], seed)
        self.roles = [role_of(one) for one in job["roles"]]

    def told(self) -> dict[str, Any]:
        """Try arguments until some tell something."""
        end = time.process_time() + SECONDS

        def run(roles: list[Role]) -> tuple[str, Mapping[str, Any]] | CaseFault:
            case = draw(roles, self.seed)
            told = self.run(case)
            return told if isinstance(told, CaseFault) else (told, case)

        found, _ = search(self.roles, run, self.seed, lambda: time.process_time() < end, EVERY)
        if isinstance(found, CaseFault):
            return {"told": f"failed: {found.message}", "ran": []}
        told, case = found
        ran = self.ran(case) if told == "equal" else []
        return {"told": told, "ran": ran, "case": case, "grid": self.grid}

    def ran(self, case: Mapping[str, Any]) -> list[int]:
        """The lines of the original that run with these arguments."""
        lines: set[int] = set()

        def enter(frame: Any, event: str, argument: Any) -> Any:
            return line if frame.f_code.co_filename == self.job["original"] else None

        def line(frame: Any, event: str, argument: Any) -> Any:
            if event == "line":
                lines.add(frame.f_lineno)
            return line

        sys.settrace(enter)
        try:
            self.launch(self.original, case)
        finally:
            sys.settrace(None)
        return sorted(lines)

    def run(self, case: Mapping[str, Any]) -> str | CaseFault:
        """Both on one case; where they differ, the original once more with its blocks backwards."""
        import torch

        first = self.launch(self.original, case)
        if isinstance(first, CaseFault):
            return first
        fresh = arguments(case)[1]
        if all(same(first[name], fresh[name]) for name in first):
            return CaseFault(NOTHING)
        self.port._cores = lambda products: CORES
        second = self.launch(getattr(self.port, self.job["kernel"]), case)
        if isinstance(second, CaseFault):
            return (
                second if second.message == SLOW else f"different: the port raises {second.message}"
            )
        wrong = [name for name in first if not same(first[name], second[name])]
        if not wrong:
            return "equal"
        with backwards():
            third = self.launch(self.original, case)
        if isinstance(third, CaseFault) or any(not same(first[n], third[n]) for n in first):
            # Sums of several blocks into one place are rounded in their order: nobody promises it.
            if all(torch.allclose(first[n], second[n], 1e-5, 1e-5, equal_nan=True) for n in wrong):
                return "equal"
            return CaseFault(ORDER)
        off = torch.nonzero(first[wrong[0]] != second[wrong[0]]).flatten()
        return f"different: {wrong[0]} at {int(off[0]) - ROOM if len(off) else '?'}"

    def launch(self, kernel: Any, case: Mapping[str, Any]) -> dict[str, Any] | CaseFault:
        """The buffers after a launch, or why there are none."""
        from joymigrate.profile.port.emulate import FENCE

        given, buffers = arguments(case)
        FENCE.let_in(list(buffers.values()))
        signal.setitimer(signal.ITIMER_PROF, ONCE)  # of work: a busy machine is no fault
        try:
            kernel[self.grid](**given)
        except TooLong:
            return CaseFault(SLOW)
        except Exception as error:
            return self.fault(error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return buffers

    def fault(self, error: BaseException) -> CaseFault:
        """What was raised at the bottom, and the parameters that its statements depend on."""
        while error.__cause__ is not None:
            error = error.__cause__
        if isinstance(error, TooLong):
            return CaseFault(SLOW)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in reversed(frames) if f.filename == self.job["original"]]
        message = f"{type(error).__name__}: {str(error).strip()[:200]}"
        found = [line for line in lines if line is not None]
        at = found[-1] if found else 0
        return CaseFault(message, near(self.tree, self.job["kernel"], found), at)


def grid_of(tree: ast.Module, kernel: str, seed: int) -> tuple[int, ...]:
    """A grid with as many sides as the kernel (with its helpers) asks for."""
    axes = {0}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            (".program_id", ".num_programs")
        ):
            given = [*node.args, *(k.value for k in node.keywords)]
            axes |= {int(one.value) for one in given
                     if isinstance(one, ast.Constant) and isinstance(one.value, int)}  # fmt: skip
    grids = GRIDS[min(3, max(axes) + 1)]
    return grids[seed % len(grids)]


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


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit, so that NaN is NaN."""
    import torch

    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


def loose_range(*args: Any, **hints: Any) -> range:
    """`range` as kernels may write it: with hints for the compiler."""
    return range(*args)


def stop(number: int, frame: Any) -> None:
    """A launch used up its time."""
    raise TooLong


def main(arguments_: list[str]) -> int:
    """All jobs of a file, from the case that is asked for on; see above."""
    from joymigrate.profile.port.emulate import install

    jobs = json.loads(Path(arguments_[0]).read_text())
    begin = int(arguments_[1])
    signal.signal(signal.SIGPROF, stop)
    install()
    number = 0
    for job in jobs:
        last = number + job["cases"]
        if last <= begin:
            number = last
            continue
        fault = ""
        try:
            original, port = load(Path(job["original"])), load(Path(job["port"]))
            original.range = port.range = loose_range
            first = getattr(original, job["kernel"])
        except Exception as error:
            fault = f"failed: {type(error).__name__}: {str(error).strip()[:200]}"
        for index in range(job["cases"]):
            if number >= begin:
                told = (
                    {"told": fault, "ran": []}
                    if fault
                    else PortCase(job, first, port, index).told()
                )
                print(json.dumps(told), flush=True)
            number += 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
