"""Two workers of one tensor-parallel group, placed by an index that restarts for each replica; by torchrun, two ranks."""
import os

import torch
import torch.distributed as dist
import torch_npu

WORKERS_PER_REPLICA = 1


def main():
    rank = int(os.environ["RANK"])
    replica, worker = divmod(rank, WORKERS_PER_REPLICA)
    torch.npu.set_device(replica * WORKERS_PER_REPLICA + worker)
    dist.init_process_group("hccl")
    x = torch.full((1024,), float(rank), device="npu")
    dist.all_reduce(x)
    torch.npu.synchronize()
    print("replica", replica, "device", torch.npu.current_device(), "sum", float(x[0]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
