"""Runs a kernel and its port in Triton's interpreter on the same arguments: a process of its own.

    python -m joymigrate.profile.port.interpret JOBS.json FIRST

JOBS lists `original`, `port` (files), `kernel` and `cases`. Prints a line of JSON for each case
from number FIRST on: `equal`, `different` (with the place), `nothing` (the kernel
wrote nothing) or `failed` (the original does not run with these arguments). The process must be
started with TRITON_INTERPRET=1: an address beyond a buffer ends it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOM = 1 << 19  # elements on each side of a pointer
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


def run(original: Any, port: Any, case: Mapping[str, Any], grid: tuple[int, ...]) -> str:
    """Both on one case."""
    import torch

    given, before = arguments(case)
    try:
        original[grid](**given)
    except Exception as error:
        return f"failed: {type(error).__name__}: {str(error).strip()[:200]}"
    again, after = arguments(case)
    try:
        port[grid](**again)
    except Exception as error:
        return f"different: the port raises {type(error).__name__}: {str(error).strip()[:200]}"
    _, fresh = arguments(case)
    written = False
    for name, whole in before.items():
        written = written or not same(whole, fresh[name])
        if not same(whole, after[name]):
            off = torch.nonzero(whole != after[name]).flatten()
            return f"different: {name} at {int(off[0]) - ROOM if len(off) else '?'}"
    return "equal" if written else "nothing"


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
            module._cores = lambda products: CORES
            second = getattr(module, job["kernel"])
            fault = ""
        except Exception as error:
            fault = f"failed: {type(error).__name__}: {str(error).strip()[:200]}"
        for index, case in enumerate(job["cases"]):
            if number >= begin:
                grid = GRIDS[index % len(GRIDS)]
                print(json.dumps(fault or run(first, second, case, grid)), flush=True)
            number += 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
