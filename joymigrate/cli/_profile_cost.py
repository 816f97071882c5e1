"""`profile cost`: the least time of a recorded step on a chip, and what bounds it."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._common_options import TO
from joymigrate.errors import JoyError

NEEDS = ("extra:torch",)


@answers("cost")
def command(
    trace: Path = typer.Argument(..., metavar="TRACE", help="A recording, or a trace with shapes."),
    to: str | None = TO,
    sku: str | None = typer.Option(None, "--sku", help="The model of the chip (910B3, a2-313t)."),
    dtype: str | None = typer.Option(
        None, "--dtype", help="Count every floating point tensor as this type (bfloat16)."
    ),
    cards: str = typer.Option("", "--cards", help="Numbers of cards, such as 8,64."),
    step_ms: float | None = typer.Option(None, "--step-ms", help="A measured step, for its MFU."),
) -> Answer:
    """Say how fast one recorded step can be at best: FLOPs, bytes and launches against peaks."""
    from joymigrate import chips, config
    from joymigrate.cli._output import one_of
    from joymigrate.profile import cost
    from joymigrate.profile.cost.work import FLOATING
    from joymigrate.profile.diff import read
    from joymigrate.report import cost as report

    if dtype is not None:
        one_of(dtype, FLOATING, "--dtype")
    if step_ms is not None and not step_ms > 0:
        raise JoyError(f"a step of {step_ms} ms", where="--step-ms", help="milliseconds above 0")
    chip = chips.target(to or config.load(Path.cwd())["to"])
    peaks = cost.peaks_of(chip, sku)
    work = cost.work_of(read(trace), dtype=dtype, own=peaks.formulas)
    found = cost.bound_step(
        work, peaks, cards=numbers(cards), measured_us=step_ms * 1000 if step_ms else None
    )
    about = {"chip": chip.name, "trace": str(trace)}
    return Answer(report.document(found, **about), lambda: report.describe(found, **about))


def numbers(text: str) -> list[int]:
    """`8,64` as numbers of cards."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if not part.isdecimal() or not 1 <= int(part) <= 1_000_000:
            raise JoyError(f"'{part}' is no number of cards", where="--cards", help="8,64")
        found.append(int(part))
    return found
