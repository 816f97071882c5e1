"""Collectives for `--mode async`, on two ranks: the marked lines race (see streams.py)."""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("hccl")
    torch.npu.set_device(dist.get_rank())
    x = torch.ones(1024, device="npu")

    dist.all_reduce(x)
    x.add_(1)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    x.mul_(2)
    torch.npu.synchronize()

    late = dist.all_reduce(x, async_op=True)  # first
    y = x + 1  # second
    late.wait()
    torch.npu.synchronize()

    sent = torch.ones(64, device="npu")
    got = torch.empty(128, device="npu")
    late = dist.all_gather_into_tensor(got, sent, async_op=True)  # first
    sent.zero_()  # second
    late.wait()
    torch.npu.synchronize()

    swaps = [
        dist.P2POp(dist.isend, sent, 1 - dist.get_rank()),
        dist.P2POp(dist.irecv, got[:64], 1 - dist.get_rank()),
    ]
    for request in dist.batch_isend_irecv(swaps):
        request.wait()
    assert got.sum().item() == 64 and y[0].item() > 0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
