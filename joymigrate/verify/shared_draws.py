"""The same random numbers in a whole process, whatever device draws them.

A generator of one device gives other numbers than that of another. Where a program draws outside
of its modules (noise of a diffusion step, a mask, a shuffled batch), two runs of it then see other
data, and their difference says nothing. JOYMIGRATE_DRAWS=1 replaces what torch draws, on both
sides: numbers come from the seed of the generator that is asked, and are counted by operator and
shape, so that a draw more of another kind moves nothing. A generator that is seeded again, or put
back to an earlier state, gives the same numbers again (`verify.draw_positions`).

Fused attention and recurrent networks run without their dropout (`verify.draws`). What can't be
replaced is drawn by the device; JOYMIGRATE_DRAWS=FILE gets one line for each operator of that kind.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from joymigrate import attach

ENVIRONMENT = "JOYMIGRATE_DRAWS"
# torch before 2.8 frees a mode that only its own stack holds when the stack is emptied for a while.
entered: list[Any] = []


def start() -> None:
    """Wait for torch in this process."""
    if os.environ.get(ENVIRONMENT, "0") != "0":
        attach.after_import("torch", install, who="shared draws")


def install() -> None:
    """Replace draws from here to the end of the process."""
    from joymigrate.verify.draw_positions import SharedDrawMode, SharedDraws
    from joymigrate.verify.draws import DropoutMode

    draws = SharedDraws()
    draws.positions.watch_default()
    for one in (DropoutMode(draws), SharedDrawMode(draws, tell)):
        entered.append(one)
        entered[-1].__enter__()
    attach.after_import("torch._dynamo", run_plainly, who="shared draws and torch.compile")


def run_plainly() -> None:
    """What the program gives to `torch.compile` runs as plain code: torch compiles nothing under a
    mode, and with `fullgraph=True` it ends the program for that."""
    import torch

    stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    if stance is not None:
        stance("force_eager")


def tell(name: str) -> None:
    """Add an operator to the file that was named."""
    named = os.environ.get(ENVIRONMENT, "")
    if os.sep not in named:
        return
    try:
        with Path(named).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
    except OSError:
        return
