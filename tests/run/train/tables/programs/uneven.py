"""Processes that stop reading at different moments; each must end, and the next pass be right.

    torchrun --nproc_per_node 2 uneven.py
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist

from joymigrate.errors import JoyError
from joymigrate.run.train.tables import DistributedModelParallel, TablePipeline
from sharded import OPTIONS, Model, batches


def slowly(source, behind: int):
    """Batches that come late from one of them on."""
    for number, batch in enumerate(source):
        if number >= behind:
            time.sleep(1.0)
        yield batch


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=40))
    rank, told = dist.get_rank(), {}
    model = Model(OPTIONS["cache"], torch.device("cpu"))
    wrapped = DistributedModelParallel(model, plan={"a": "row", "b": "row"})
    pipeline = TablePipeline(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1))

    # All stop behind step 3; here the next batches are fetched ahead already, there none is read.
    source = slowly(batches(rank, 2), 3 if rank else 99)
    for step in range(3):
        pipeline.progress(source)
        if step == 1:  # a lookup of the main thread, while the other thread fetches at one rank
            with torch.no_grad():
                model.eval()(next(batches(rank, 2)))
            model.train()
    pipeline.close()
    told["left"] = len([t for t in pipeline.threads if t.name == "_fetch"])

    # One process has two batches fewer.
    source = islice(batches(rank, 2), 4 + 2 * rank)
    try:
        steps = 0
        while True:
            pipeline.progress(source)
            steps += 1
    except StopIteration:
        told["end"] = steps
    except JoyError as error:
        told["end"] = steps
        told["error"] = str(error)

    # And the same groups serve whole passes afterwards.
    losses, source = [], batches(rank, 2)
    while True:
        try:
            losses.append(float(pipeline.progress(source)))
        except StopIteration:
            break
    told["losses"] = losses
    sys.stdout.write(json.dumps({"rank": rank, **told}) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
