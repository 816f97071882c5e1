"""One process fails in the middle of a step and does not end; the other has to hear of it.

    torchrun --nproc_per_node 2 one_fails.py forward|optimiser|plain
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

from joymigrate.run.train.tables import DistributedModelParallel, TablePipeline
from sharded import OPTIONS, Model, batches


class Broken(Model):
    def forward(self, batch):
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == 3 and dist.get_rank() == 1 and sys.argv[1] != "optimiser":
            raise ValueError("a user's own mistake")
        return super().forward(batch)


class BrokenSgd(torch.optim.SGD):
    def step(self, closure=None):
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == 3 and dist.get_rank() == 1:
            raise ValueError("a user's own mistake")
        super().step(closure)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    wrapped = DistributedModelParallel(Broken(OPTIONS["cache"], torch.device("cpu")))
    kind = BrokenSgd if sys.argv[1] == "optimiser" else torch.optim.SGD
    optimiser = kind(wrapped.parameters(), lr=0.1)
    source, start = batches(rank, 2), time.monotonic()
    try:
        if sys.argv[1] == "plain":
            for batch in source:
                loss, _ = wrapped(batch)
                loss.backward()
                optimiser.step()
        else:
            pipeline = TablePipeline(wrapped, optimiser)
            while True:
                pipeline.progress(source)
    except Exception as error:
        print(f"process {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        if rank == 1:
            time.sleep(25)  # a program that goes on by itself: others must not wait for its end
    seconds = time.monotonic() - start
    print(f"process {rank} left after {seconds:.0f} s", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    main()
