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

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate import attach

if TYPE_CHECKING:
    import torch

ENVIRONMENT = "JOYMIGRATE_DRAWS"
# They start other generators, which draw numbers of their own, the same on every device.
SEEDS = ("random", "random_")
# torch before 2.8 frees a mode that only its own stack holds when the stack is emptied for a while.
entered: list[Any] = []


def start() -> None:
    """Wait for torch in this process."""
    if os.environ.get(ENVIRONMENT, "0") != "0":
        attach.after_import("torch", install, who="shared draws")


def install() -> None:
    """Replace draws from here to the end of the process."""
    from joymigrate.verify.draws import Draws, DropoutMode

    draws = share_draws(Draws)
    draws.positions.watch_default()
    for one in (DropoutMode(draws), mode(draws)):
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


def share_draws(base: Any) -> Any:
    """Draws that are counted by generator, operator and shape."""
    from joymigrate.seeded import requested_seed
    from joymigrate.verify.draw_positions import DrawPositions

    class Shared(base):  # type: ignore[misc]
        """No log, for a program draws without end."""

        def __init__(self) -> None:
            super().__init__(lambda: "")
            self.shape: tuple[int, ...] = ()
            self.source: torch.Generator | None = None  # None: torch's own, of any device
            self.positions = DrawPositions(requested_seed() or 0)

        def generator(self, what: str, setting: Any = None) -> Any:
            import numpy as np

            place = f"{what}{self.shape}"
            self.shape = ()
            seed, number = self.positions.next(self.source, place)
            digest = hashlib.sha256(f"{seed}:{place}#{number}".encode()).digest()
            return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))

        def uniform(self, shape: Any, what: str, setting: Any = None) -> torch.Tensor:
            self.shape = tuple(shape)
            made: torch.Tensor = super().uniform(shape, what, setting)
            return made

        def normal(self, shape: Any, what: str) -> torch.Tensor:
            self.shape = tuple(shape)
            made: torch.Tensor = super().normal(shape, what)
            return made

    return Shared()


def mode(draws: Any) -> Any:
    """The mode that replaces draws, and tells which it could not."""
    from joymigrate.verify.draws import DrawMode

    class Telling(DrawMode):
        """`DrawMode` that writes down what it leaves to the device."""

        def __init__(self) -> None:
            super().__init__(draws)
            self.told: set[str] = set()

        def draw(self, name: str, args: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
            draws.source = kwargs.get("generator")
            try:
                made = super().draw(name, args, kwargs)
            finally:
                draws.source = None
            if made is None and name not in SEEDS and name not in self.told:
                self.told.add(name)
                tell(name)
            return made

    return Telling()


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
