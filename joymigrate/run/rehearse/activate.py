"""Makes a process part of a rehearsal. Outside of one nothing is done, and nothing imported."""

from __future__ import annotations

import os


def autoload() -> None:
    """Entry point of the group `torch.backends`: called at the end of `import torch`."""
    if not os.environ.get("JOYMIGRATE_REHEARSE"):
        return
    start()
    import torch_npu  # noqa: F401  its import installs the device


def start() -> None:
    """Wait for torch_npu in this process; called when its Python starts."""
    from joymigrate.run.rehearse.watch import start as watch

    watch()
