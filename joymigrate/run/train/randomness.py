"""Random states: of Python, numpy, torch and the accelerator, as one tensor of bytes.

The loop itself needs none of them: it seeds every step from (seed, step, data rank), so that a run
that stopped continues with the same numbers on any number of processes. They are saved for loops
that draw as they go.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def seed_step(seed: int, step: int, data_rank: int) -> None:
    """Make what follows depend on these three numbers alone.

    Ranks that share samples (tensor parallel, stages) draw the same numbers, which dropout on
    replicated activations needs.
    """
    import torch

    mixed = (seed * 1_000_003 + step * 7_919 + data_rank) % (1 << 63)
    torch.manual_seed(mixed)
    random.seed(mixed)


def state() -> torch.Tensor:
    """All generators of this process."""
    import numpy as np
    import torch

    kind, keys, *rest = np.random.get_state()
    version, internal, gauss = random.getstate()
    found: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "torch": pack_state(torch.get_rng_state()),
    }
    if torch.accelerator.is_available():
        found["device"] = pack_state(device_module().get_rng_state())
    text = json.dumps(found).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def restore(saved: torch.Tensor | None) -> None:
    """Set all generators to a saved state; None leaves them."""
    import numpy as np
    import torch

    if saved is None:
        return
    found = json.loads(bytes(saved.tolist()))
    version, internal, gauss = found["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = found["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(unpack_state(found["torch"]))
    if "device" in found and torch.accelerator.is_available():
        device_module().set_rng_state(unpack_state(found["device"]))


def fit(mine: dict[str, Any], known: Mapping[str, Any]) -> None:
    """Make room for the saved state of each rank in `mine`; drop ranks that nothing is known of."""
    import torch

    for name in list(mine):
        saved = known.get(f"random.{name}")
        if saved is None:
            del mine[name]
        else:
            mine[name] = torch.empty(saved.size, dtype=torch.uint8)


def device_module() -> Any:
    """`torch.<device>` of the accelerator."""
    import torch

    found = torch.accelerator.current_accelerator()
    return torch.get_device_module(found.type if found is not None else "cpu")


def pack_state(state: torch.Tensor) -> str:
    """Bytes as text."""
    return base64.b64encode(bytes(state.cpu().numpy())).decode()


def unpack_state(text: str) -> torch.Tensor:
    """Bytes from text."""
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
