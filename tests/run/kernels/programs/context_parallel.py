"""Processes with a part of a sequence each: attention and gradients equal those of one process."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from joymigrate.errors import JoyError
from joymigrate.run.kernels import context_parallel
from joymigrate.run.kernels.mask import (
    BlockSparseMask,
    CandidateMask,
    Causal,
    Full,
    Globals,
    JaggedMask,
    Prefix,
    SharedPrefixMask,
    WindowMask,
)
from joymigrate.run.kernels.ops.attention import reference
from joymigrate.run.kernels.ring_attention import share_of
from joymigrate.run.kernels.scores import Bias, Silu

LENGTH = 24


def compare(
    rank: int, world: int, mask: Any, heads: int, keys: int, more: dict[str, Any], **how: Any
) -> None:
    """The result, and the gradients of inputs and of the bias' tables."""
    packed = isinstance(mask, JaggedMask)
    draw = torch.Generator().manual_seed(heads)
    whole = []
    for count in (heads, keys, keys):
        shape = (LENGTH, count, 6) if packed else (2, count, LENGTH, 6)
        whole.append(torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_())
    bias: Bias | None = more.get("bias")
    tables = bias.tables if bias is not None else ()
    want = reference(*whole, mask, **more)
    slopes = torch.autograd.grad(want.square().sum(), (*whole, *tables))
    axis, zigzag = (0 if packed else 2), how.get("zigzag", False)
    mine = [share_of(t.detach(), axis, rank, world, zigzag).clone().requires_grad_() for t in whole]
    got = context_parallel.attention(*mine, mask, **more, **how)
    found = torch.autograd.grad(got.square().sum(), (*mine, *tables))
    for one, other in zip((got, *found[:3]), (want, *slopes[:3]), strict=True):
        torch.testing.assert_close(one, share_of(other, axis, rank, world, zigzag))
    for one, other in zip(found[3:], slopes[3:], strict=True):
        dist.all_reduce(one)
        torch.testing.assert_close(one, other)


def drawn(dice: random.Random, heads: int) -> tuple[Any, dict[str, Any]]:
    """A mask, and what is added to scores."""
    inner = dice.choice([
        Full(), Causal(), WindowMask(dice.randint(1, 9)), Prefix(dice.randint(0, 12)),
        SharedPrefixMask(5, (4, 0, 8)), CandidateMask(dice.randint(0, 20), causal=dice.random() < 0.5),
        Causal() & (WindowMask(3) | Globals(2)), BlockSparseMask(4, ((0,), (1,), (0, 2), (), (4,), (1, 5))),
    ])  # fmt: skip
    packed = dice.random() < 0.5
    mask: Any = inner
    if packed:
        cuts = sorted(dice.randint(0, LENGTH) for _ in range(dice.randint(0, 4)))
        mask = JaggedMask(torch.tensor([0, *cuts, LENGTH]), inner)
    more: dict[str, Any] = {}
    draw = torch.Generator().manual_seed(dice.randint(0, 9999))
    if dice.random() < 0.6:
        shape = (LENGTH,) if packed else (2, LENGTH)
        times, asks = (torch.randint(0, 10**5, shape, generator=draw) for _ in range(2))
        more["bias"] = Bias(
            position=torch.randn(heads, 9, generator=draw, dtype=torch.float64).requires_grad_(),
            time=torch.randn(1, 40, generator=draw, dtype=torch.float64).requires_grad_(),
            times=times, query_times=asks if dice.random() < 0.5 else None,
        )  # fmt: skip
    if dice.random() < 0.4:
        more["activation"] = Silu(9.0)
    if dice.random() < 0.3:
        more["scale"] = 0.7
    return mask, more


def work(rank: int, world: int, count: int, meet: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    dice = random.Random(world)
    ways = {"all-to-all": 0, "ring": 0, "auto": 0}
    for _ in range(count):
        keys = dice.choice([1, 2, 3, 4])
        heads = keys * dice.choice([1, 2])
        mask, more = drawn(dice, heads)
        way = dice.choice(["auto", "ring", "all-to-all" if keys % world == 0 else "ring"])
        zigzag = way == "ring" and dice.random() < 0.5
        compare(rank, world, mask, heads, keys, more, way=way, zigzag=zigzag)
        ways[way] += 1
    q = torch.zeros(1, world + 1, 2, 4)
    try:
        context_parallel.attention(q, q, q, way="all-to-all")
    except JoyError as error:
        assert "do not divide over" in str(error), error
    print(f"equal {ways}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (int(sys.argv[2]), int(sys.argv[3]), sys.argv[1]), nprocs=int(sys.argv[2]))
