"""Two processes with half a sequence each: attention and gradients equal those of one process."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from joymigrate.run.kernels import context_parallel
from joymigrate.run.kernels.mask import Causal, Globals, Jagged, Window
from joymigrate.run.kernels.ops.attention import reference
from joymigrate.run.kernels.scores import Bias, Silu


def work(rank: int, meet: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    for packed in (False, True):
        generator = torch.Generator().manual_seed(0)
        shape = (24, 4, 6) if packed else (2, 4, 24, 6)
        inner = Causal() & (Window(5) | Globals(2))
        mask = Jagged(torch.tensor([0, 15, 24]), inner) if packed else inner
        bias = Bias(position=torch.randn(4, 9, generator=generator, dtype=torch.float64))
        more = {"bias": bias, "activation": Silu(9.0)} if packed else {"bias": bias}
        whole = [
            torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
            for _ in range(3)
        ]
        want = reference(*whole, mask, **more)
        grads = torch.autograd.grad(want.square().sum(), whole)
        axis = 0 if packed else 2
        mine = [t.detach().chunk(2, axis)[rank].clone().requires_grad_() for t in whole]
        got = context_parallel.attention(*mine, mask, **more)
        found = torch.autograd.grad(got.square().sum(), mine)
        for one, other in zip((got, *found), (want, *grads), strict=True):
            torch.testing.assert_close(one, other.chunk(2, axis)[rank])
    print("equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
