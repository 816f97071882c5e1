"""Data without end: the program stops in the middle, and leaves pipeline and group to Python.

torchrun --nproc_per_node 2 endless.py
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

from joymigrate.run.train.tables import DistributedModelParallel, TablePipeline, failures
from sharded import OPTIONS, Model, batches


def main() -> None:
    failures.LOOK_S = 1e-5  # in the store nearly always
    dist.init_process_group("gloo")
    wrapped = DistributedModelParallel(Model(OPTIONS["cache"], torch.device("cpu")))
    pipeline = TablePipeline(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1))
    source = itertools.cycle(list(batches(dist.get_rank(), dist.get_world_size())))
    for _ in range(10):
        pipeline.progress(source)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
