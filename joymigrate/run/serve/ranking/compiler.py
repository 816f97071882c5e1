"""Compiles a program with AOTInductor: a process of its own, started by `packages`.

`python -m joymigrate.run.serve.ranking.compiler PROGRAM TARGET DEVICE [PART]`. The package appears
under its name when it is whole; a process that is killed leaves a file that nobody reads.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NICE = 10


def compile_program(path: Path, target: Path, device: str, part: str = "") -> None:
    """One package for all sizes that the program, or a part of it, declares as free."""
    import torch

    from joymigrate.run.serve.ranking import runner
    from joymigrate.run.serve.ranking.program import exported_of

    torch.set_num_threads(1)
    exported = exported_of(path, device, part)
    library = target.with_name(runner.LIBRARY)
    if device == "cpu" and not library.is_file():
        trouble = runner.build(library)
        if trouble:
            print(f"batches of compiled code will hold up the server: {trouble}", file=sys.stderr)
    building = target.with_name(f".{target.stem}.{os.getpid()}.pt2")
    try:
        torch._inductor.aoti_compile_and_package(exported, package_path=str(building))
        os.replace(building, target)
    finally:
        building.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(NICE)
    compile_program(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5])
