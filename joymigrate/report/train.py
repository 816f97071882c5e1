"""A training run for people: a table of runs, the loss as a curve in a terminal, SVG or HTML."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Sequence

from joymigrate.report.blocks import BlockDocument, Chapter, Picture, TableBlock, TileRow
from joymigrate.report.html.page import Html, Tile
from joymigrate.report.html.plots import WIDTH, Curve, lines, standalone
from joymigrate.run.train.status import RunStatus

SCHEMA = "joymigrate.runs/1"
COLUMNS, ROWS = 72, 16  # of the curve in a terminal
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille: [row][column]


def text(runs: Sequence[RunStatus]) -> str:
    """One line per run."""
    lines = []
    for run in runs:
        known = run.document
        loss = known.get("loss")
        mfu = known.get("mfu")
        parts = [
            f"{run.path}: {run.state}",
            f"step {known.get('step', 0)}/{known.get('steps', '?')}",
            f"loss {loss:.4f}" if loss is not None else "no loss yet",
            f"{known.get('tokens_per_s') or 0:,.0f} tokens/s",
            f"MFU {'unknown' if mfu is None else f'{mfu:.1%}'}",
            f"{known.get('layout', '?')} on {known.get('device', '?')}"
            + (" (rehearsal)" if known.get("rehearsal") else ""),
            f"checkpoints {', '.join(map(str, run.checkpoints)) or 'none'}",
        ]
        lines.append("  ".join(parts))
        best = known.get("best") or {}
        if best.get("step"):
            lines.append(f"  best {best['metric']} {best['value']:.4g} at step {best['step']}")
        if known.get("message"):
            lines.append(f"  {known['message']}")
    return "\n".join(lines) + "\n"


def as_json(runs: Sequence[RunStatus]) -> str:
    """All runs."""
    return json.dumps({"schema": SCHEMA, "runs": [run.as_dict() for run in runs]}, indent=1) + "\n"


def thin(
    steps: Sequence[int], losses: Sequence[float], most: int
) -> tuple[list[float], list[float]]:
    """At most `most` points: the mean of neighbours."""
    size = max(1, math.ceil(len(steps) / most))
    groups = [slice(at, at + size) for at in range(0, len(steps), size)]
    return (
        [sum(steps[g]) / len(steps[g]) for g in groups],
        [sum(losses[g]) / len(losses[g]) for g in groups],
    )


def terminal_curve(run: RunStatus) -> str:
    """The loss over the steps in braille dots, with both axes' ends."""
    steps, losses = run.curve()
    if not steps:
        return "no losses yet\n"
    x, y = thin(steps, losses, COLUMNS * 2)
    low, high = min(y), max(y)
    grid = [[0] * COLUMNS for _ in range(ROWS)]
    before: int | None = None
    for across in range(COLUMNS * 2):
        loss = between(x, y, x[0] + (x[-1] - x[0]) * across / (COLUMNS * 2 - 1))
        down = ROWS * 4 - 1 - scale(loss, low, high, ROWS * 4 - 1)
        before = down if before is None else before
        for dot in range(min(before, down), max(before, down) + 1):  # steep parts have no gaps
            grid[dot // 4][across // 2] |= DOTS[dot % 4][across % 2]
        before = down
    names = {0: f"{high:.4f}", ROWS - 1: f"{low:.4f}"}
    lines = [
        f"{names.get(row, ''):>10} │{''.join(chr(0x2800 + cell) for cell in cells).rstrip()}"
        for row, cells in enumerate(grid)
    ]
    last = f"step {steps[-1]}"
    axis = f"step {steps[0]}{last:>{COLUMNS - len(f'step {steps[0]}')}}"
    return "\n".join([*lines, f"{'loss':>10} └{'─' * COLUMNS}", f"{'':12}{axis}"]) + "\n"


def between(x: Sequence[float], y: Sequence[float], at: float) -> float:
    """The curve's value at any place."""
    right = min(max(1, bisect.bisect_left(x, at)), len(x) - 1)
    if len(x) == 1:
        return y[0]
    left = right - 1
    share = (at - x[left]) / (x[right] - x[left])
    return y[left] + (y[right] - y[left]) * min(1.0, max(0.0, share))


def scale(value: float, low: float, high: float, size: int) -> int:
    """Where a value falls on 0 … size."""
    return 0 if high <= low else min(size, max(0, round((value - low) / (high - low) * size)))


def picture(run: RunStatus) -> Html:
    """The loss over the steps, thinned out where the picture could not show more points."""
    steps, losses = run.curve()
    label = f"loss of {run.path.name} over {len(steps)} steps"
    points = list(zip(*thin(steps, losses, WIDTH), strict=True))
    return lines([Curve("loss", points)], label, "step", "loss")


def svg(run: RunStatus) -> str:
    """The loss over the steps as a picture in a file of its own."""
    return standalone(picture(run))


def describe(run: RunStatus) -> BlockDocument:
    """One run: its figures, its loss, and all that is known."""
    known = run.document
    loss, mfu = known.get("loss"), known.get("mfu")
    summary = TileRow(
        [
            Tile(f"{known.get('step', 0)}/{known.get('steps', '?')}", "steps", run.state),
            Tile("–" if loss is None else f"{loss:.4f}", "loss"),
            Tile(f"{known.get('tokens_per_s') or 0:,.0f}", "tokens/s"),
            Tile(
                "unknown" if mfu is None else f"{mfu:.1%}",
                "MFU",
                str(known.get("flops_convention", "")),
            ),
        ]
    )
    rows = [
        (key, json.dumps(value) if isinstance(value, dict | list) else str(value))
        for key, value in sorted(run.as_dict().items())
    ]
    where = " (rehearsal)" if known.get("rehearsal") else ""
    return BlockDocument(
        title=f"Training run {run.path.name}",
        subtitle=f"{known.get('layout', '?')} on {known.get('device', '?')}{where}",
        chapters=[
            Chapter("summary", "Summary", [summary]),
            Chapter("loss", "Loss", [Picture(picture(run), "mean loss per target token")]),
            Chapter("details", "Details", [TableBlock(["key", "value"], rows)]),
        ],
    )
