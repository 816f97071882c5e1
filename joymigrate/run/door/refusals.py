"""What torch says on a machine with cards, raised here in its words.

A stop whose innermost frame is in this file is the program's, as it would be on a GPU; one in
another file of joymigrate's is a fault of ours (`blame/program.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn


def refuse_card(card: int, count: int) -> NoReturn:
    """A card that is not there."""
    if count == 0:
        raise RuntimeError("No CUDA GPUs are available")
    raise RuntimeError(f"CUDA error: invalid device ordinal ({card} of {count})")


def refuse_two_devices(names: Iterable[str]) -> NoReturn:
    """Tensors of several devices in one call."""
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{' and '.join(names)}!"
    )


def refuse_numpy(name: str) -> NoReturn:
    """A card's tensor as an array."""
    raise TypeError(
        f"can't convert {name} device type tensor to numpy. "
        "Use Tensor.cpu() to copy the tensor to host memory first."
    )


def refuse_elapsed() -> NoReturn:
    """The time between events of which one was not recorded."""
    raise RuntimeError("Both events must be recorded before calculating elapsed time.")
