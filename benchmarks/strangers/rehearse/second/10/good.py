"""Moves the experts of one rank to another, a slice of the fused weight at a time; by torchrun, two ranks."""
import os

import torch
import torch.distributed as dist
import torch_npu

ND = 2
EXPERTS, ROWS, COLUMNS = 4, 256, 512


def main():
    rank = int(os.environ["RANK"])
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl")
    weight = torch.full((EXPERTS * ROWS, COLUMNS), float(rank), dtype=torch.float16, device="npu")
    weight = torch_npu.npu_format_cast(weight, ND)  # no private layout where weights travel
    expert = weight[ROWS : 2 * ROWS].clone()  # a storage of its own
    other = 1 - rank
    if rank == 0:
        work = dist.batch_isend_irecv([dist.P2POp(dist.isend, expert, other)])
    else:
        work = dist.batch_isend_irecv([dist.P2POp(dist.irecv, expert, other)])
    for item in work:
        item.wait()
    weight[ROWS : 2 * ROWS].copy_(expert)
    torch.npu.synchronize()
    print("rank", rank, "expert 1 is now", float(expert.float().mean()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
