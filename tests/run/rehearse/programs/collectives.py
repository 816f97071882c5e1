"""All collectives, DDP, FSDP2 and tensor parallel against a single process; run with torchrun.

Prints one json line per rank: check → largest difference from what a single process gives.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def differ(a, b):
    return (a.detach().cpu().double() - b.detach().cpu().double()).abs().max().item()


@check
def all_reduce(r, w):
    x = torch.arange(5.0, device="npu") * (r + 1)
    dist.all_reduce(x)
    return differ(x, torch.arange(5.0) * (w * (w + 1) / 2))


@check
def all_reduce_kinds(r, w):
    worst = 0.0
    for kind, wanted in ((dist.ReduceOp.MAX, w), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.AVG, (w + 1) / 2)):
        x = torch.full((3,), float(r + 1), device="npu")
        dist.all_reduce(x, op=kind)
        worst = max(worst, differ(x, torch.full((3,), float(wanted))))
    return worst


@check
def all_reduce_types(r, w):
    worst = 0.0
    for dtype in (torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.int8):
        x = torch.full((4,), r + 1, device="npu", dtype=dtype)
        dist.all_reduce(x)
        worst = max(worst, differ(x, torch.full((4,), w * (w + 1) // 2)))
    return worst


@check
def data_of_forked_workers(r, w):
    batches = [b.npu() for b in torch.utils.data.DataLoader(torch.arange(4.0), num_workers=1)]
    return differ(sum(batches), torch.tensor([6.0]))


@check
def all_reduce_long(r, w):
    x = torch.full((3_000_000,), float(r), device="npu")
    dist.all_reduce(x)
    return differ(x, torch.full((3_000_000,), w * (w - 1) / 2))


@check
def reduce(r, w):
    x = torch.full((3,), float(r + 1), device="npu")
    dist.reduce(x, 0)
    return differ(x, torch.full((3,), w * (w + 1) / 2)) if r == 0 else 0.0


@check
def broadcast(r, w):
    x = torch.full((3,), float(r), device="npu")
    dist.broadcast(x, w - 1)
    return differ(x, torch.full((3,), float(w - 1)))


@check
def all_gather(r, w):
    x = torch.full((2,), float(r), device="npu")
    parts = [torch.empty_like(x) for _ in range(w)]
    dist.all_gather(parts, x)
    whole = torch.empty(2 * w, device="npu")
    dist.all_gather_into_tensor(whole, x)
    wanted = torch.arange(float(w)).repeat_interleave(2)
    return max(differ(torch.cat(parts), wanted), differ(whole, wanted))


@check
def all_gather_uneven(r, w):
    parts = [torch.empty(i + 1, device="npu") for i in range(w)]
    dist.all_gather(parts, torch.full((r + 1,), float(r), device="npu"))
    return max(differ(part, torch.full((i + 1,), float(i))) for i, part in enumerate(parts))


@check
def reduce_scatter(r, w):
    out = torch.empty(2, device="npu")
    dist.reduce_scatter_tensor(out, torch.arange(2.0 * w, device="npu"))
    listed = torch.empty(2, device="npu")
    dist.reduce_scatter(listed, [torch.full((2,), float(i), device="npu") for i in range(w)])
    wanted = torch.arange(2.0 * w)[2 * r : 2 * r + 2] * w
    return max(differ(out, wanted), differ(listed, torch.full((2,), float(r * w))))


@check
def scatter_and_gather(r, w):
    out = torch.empty(2, device="npu")
    dist.scatter(out, [torch.full((2,), float(i), device="npu") for i in range(w)] if r == 0 else None, 0)
    worst = differ(out, torch.full((2,), float(r)))
    objects = [None] * w
    dist.all_gather_object(objects, {"rank": r})
    return max(worst, 0.0 if objects == [{"rank": i} for i in range(w)] else 1.0)


@check
def all_to_all(r, w):
    out = torch.empty(w, device="npu")
    dist.all_to_all_single(out, torch.arange(float(w), device="npu") + 10 * r)
    wanted = torch.tensor([10.0 * i + r for i in range(w)])
    parts = [torch.empty(1, device="npu") for _ in range(w)]
    dist.all_to_all(parts, [torch.full((1,), float(10 * r + i), device="npu") for i in range(w)])
    return max(differ(out, wanted), differ(torch.cat(parts), wanted))


@check
def point_to_point(r, w):
    x, y = torch.full((2,), float(r), device="npu"), torch.empty(2, device="npu")
    ops = [dist.P2POp(dist.isend, x, (r + 1) % w), dist.P2POp(dist.irecv, y, (r - 1) % w)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return differ(y, torch.full((2,), float((r - 1) % w)))


@check
def receive_before_send(r, w):
    y = torch.empty(2, device="npu")
    # A pair's communicator is made by its first message, and both ends must be there for it; in
    # a ring that begins with a receive everywhere nobody would be, on the chip neither.
    if r % 2 == 0:
        dist.send(y, (r + 1) % w)
        dist.recv(y, (r - 1) % w)
    else:
        dist.recv(y, (r - 1) % w)
        dist.send(y, (r + 1) % w)
    work = dist.irecv(y, (r - 1) % w)
    sent = dist.isend(torch.full((2,), float(r), device="npu"), (r + 1) % w)
    work.wait()
    sent.wait()
    return differ(y, torch.full((2,), float((r - 1) % w)))


@check
def sub_groups(r, w):
    groups = [dist.new_group([2 * i, 2 * i + 1]) for i in range(w // 2)]
    x = torch.full((2,), float(r), device="npu")
    dist.all_reduce(x, group=groups[r // 2])
    first = r // 2 * 2
    return differ(x, torch.full((2,), float(2 * first + 1)))


@check
def barrier(r, w):
    dist.barrier()
    return 0.0


@check
def float64_is_refused(r, w):
    try:
        dist.all_reduce(torch.ones(2, dtype=torch.float64, device="npu"))
    except (RuntimeError, TypeError) as error:
        return 0.0 if "ouble" in str(error) or "data type" in str(error) else 1.0
    return 1.0


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def single(steps, x, optimiser):
    model = mlp()
    update = optimiser(model.parameters())
    for _ in range(steps):
        update.zero_grad()
        model(x).pow(2).mean().backward()
        update.step()
    return model


@check
def ddp(r, w):
    torch.manual_seed(1)
    x = torch.randn(4 * w, 8)
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    model = mlp().npu()
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[r])
    update = sgd(wrapped.parameters())
    for _ in range(5):
        update.zero_grad()
        wrapped(x[4 * r : 4 * r + 4].npu()).pow(2).mean().backward()
        update.step()
    wanted = single(5, x, sgd)
    return max(differ(a, b) for a, b in zip(model.parameters(), wanted.parameters()))


@check
def fsdp2(r, w):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    x = torch.randn(4 * w, 8)
    adam = lambda parameters: torch.optim.AdamW(parameters, lr=0.01)
    model = mlp().npu()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    update = adam(model.parameters())
    for _ in range(3):
        update.zero_grad()
        model(x[4 * r : 4 * r + 4].npu()).pow(2).mean().backward()
        update.step()
    wanted = single(3, x, adam)
    return max(
        differ(a.full_tensor(), b) for a, b in zip(model.parameters(), wanted.parameters())
    )


@check
def tensor_parallel(r, w):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("npu", (w,))
    wanted = mlp()
    model = mlp().npu()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(1)
    x = torch.randn(4, 8)
    out = model(x.npu())
    out.pow(2).mean().backward()
    ref = wanted(x)
    ref.pow(2).mean().backward()
    grad = model[0].weight.grad.full_tensor()
    return max(differ(out, ref), differ(grad, wanted[0].weight.grad))


def main():
    r, w = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.npu.set_device(r)
    dist.init_process_group("hccl")
    results = {}
    for name, function in CHECKS.items():
        try:
            results[name] = function(r, w)
        except Exception as error:
            results[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
    # One write: the ranks share stdout.
    sys.stdout.write(json.dumps({"rank": r, "world": w, "results": results}) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
