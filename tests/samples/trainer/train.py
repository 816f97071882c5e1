"""Trains a small classifier. The word cuda in this text is no site; 这里的 cuda 也不是。"""

import os

import torch
import torch.distributed as dist
from flash_attn import flash_attn_func


def setup() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def train(model: torch.nn.Module, batches: list) -> float:
    model = model.to("cuda")
    loss = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        名称 = batch.to(device="cuda:0", non_blocking=True)
        loss += model(名称).mean()
    scratch = torch.empty(8, device="cuda")  # joymigrate: ignore[JM120] stays on the old cards
    return float(loss) + len(scratch)  # joymigrate: ignore[JM101]
