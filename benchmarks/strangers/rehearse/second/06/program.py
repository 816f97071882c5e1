"""A trainer that makes one process group per kind of transfer; run by torchrun with two ranks."""
import os

os.environ["HCCL_BUFFSIZE"] = "4096"  # MiB, raised for large all-to-alls

import torch
import torch.distributed as dist
import torch_npu

KINDS = ["weights", "gradients", "metrics", "rollout", "reward", "reference", "critic", "sync"]


def main():
    local = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(local)
    dist.init_process_group("hccl")
    groups = {kind: dist.new_group(range(dist.get_world_size())) for kind in KINDS}
    for kind, group in groups.items():
        x = torch.ones(1024, device="npu") * (dist.get_rank() + 1)
        dist.all_reduce(x, group=group)
        torch.npu.synchronize()
        print(dist.get_rank(), kind, float(x[0]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
