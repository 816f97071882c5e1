"""The variables by which the pods of a job find each other: one world, whatever starts them.

`python train.py` reads torch.distributed's own names (one process a pod). `torchrun train.py`
ignores those and reads its options from `PET_` variables (torch/distributed/argparse_util.py):
without them every pod trains alone, and with success.
"""

from __future__ import annotations

from typing import TypeVar

PORT = 29500  # torch.distributed's own default
Value = TypeVar("Value")


def variables(
    world: Value, master: Value, port: Value, rank: Value, per_pod: Value | None = None
) -> dict[str, Value]:
    """Names and values for one pod.

    A value is a text, or how the engine says where it comes from. `world` is the number of pods,
    `rank` this pod's number in it, `master` the host of pod 0, `per_pod` torchrun's processes in a
    pod, one for each card.
    """
    found = {
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "WORLD_SIZE": world,
        "RANK": rank,
        "NNODES": world,
        "NODE_RANK": rank,
        "PET_NNODES": world,
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
    }
    return found if per_pod is None else found | {"PET_NPROC_PER_NODE": per_pod}
