"""`profile port`: Triton kernels against the chip's limits, and CUDA operators to replace."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._common_options import OUTPUT, TO
from joymigrate.cli._output import emit, one_of
from joymigrate.errors import Exit, JoyError

FORMATS = ("text", "json")


def command(
    paths: list[Path] = typer.Argument(..., metavar="PATH...", help="Source files or folders."),
    to: str | None = TO,
    form: str = typer.Option("text", "--format", help="text or json."),
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
    output: Path | None = OUTPUT,
) -> int:
    """Judge every @triton.jit kernel in PATH, list bound CUDA operators, write variants."""
    from joymigrate import chips
    from joymigrate.profile import port
    from joymigrate.report import port as report

    one_of(form, FORMATS, "--format")
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
    render = report.as_json if form == "json" else report.as_text
    emit(render(found, operators, chip.name, known, variants), output)
    return Exit.OK
