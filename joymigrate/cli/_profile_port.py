"""`profile port`: Triton kernels against the chip's limits, and CUDA operators to replace."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._common_options import TO
from joymigrate.errors import JoyError


@answers("port")
def command(
    paths: list[Path] = typer.Argument(..., metavar="PATH...", help="Source files or folders."),
    to: str | None = TO,
    skeleton: Path | None = typer.Option(
        None, "--skeleton", metavar="DIR", help="Write a reference and a test per bound operator."
    ),
    write: Path | None = typer.Option(
        None, "--write", metavar="DIR", help="Write the chip's variant of each Triton kernel."
    ),
    prove: bool = typer.Option(
        True, "--prove/--no-prove", help="Run each variant against its original (interpreter)."
    ),
    compiler: Path | None = typer.Option(
        None,
        "--compiler",
        metavar="DIR",
        help="A folder with the chip's own Triton, unpacked: its front end takes each variant.",
    ),
) -> Answer:
    """Judge every @triton.jit kernel in PATH, list bound CUDA operators, write variants."""
    from joymigrate import chips
    from joymigrate.profile import port
    from joymigrate.report import port as report

    chip = chips.target(to)
    known = port.load(chip)
    found = port.check(paths, known)
    operators = port.find_bound(paths, chip)
    if skeleton is not None:
        operators = port.write(operators, skeleton, paths, proves=prove)
    if compiler is not None and (write is None or not prove):
        raise JoyError("--compiler asks about proved variants", help="name --write DIR as well")
    variants = (
        port.port_files(paths, known, write, proves=prove, compiler=compiler) if write else []
    )
    said = found, operators, chip.name, known, variants
    return Answer(report.document(*said), report.text(*said))
