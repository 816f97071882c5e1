"""Runs the `after` example of each rule of advice that calls the chip's package; JSON to argv[2].

    joymigrate rehearse -- python advice_examples.py EXAMPLES.json RESULTS.json

EXAMPLES maps a rule to its example; `SETUP` makes the names that it uses.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch_npu

half = {"dtype": torch.float16, "device": "npu"}


def rand(*shape, **options):
    return torch.rand(*shape, **{**half, **options})


def world():
    """The name of a communicator of one process."""
    if not torch.distributed.is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29517")
        torch.distributed.init_process_group("hccl", rank=0, world_size=1)
    backend = torch.distributed.group.WORLD._get_backend(torch.device("npu"))
    return {"hcom": backend.get_hccl_comm_name(0), "world_size": 2}


def product():
    return {"x": rand(16, 32), "w": rand(32, 64)}


def optimiser():
    layer = torch.nn.Linear(8, 8).npu()
    made = torch_npu.optim.NpuFusedAdamW(layer.parameters(), lr=0.1)
    layer(rand(4, 8, dtype=torch.float32)).sum().backward()
    return {"optimizer": made}


def heads():
    made = {name: rand(1, 2, 16, 64) for name in "qkv"}
    return {**made, "h": 2, "d": 64}


def integers(*shape, low=0, high=4, dtype=torch.int64):
    return torch.randint(low, high, shape, dtype=dtype, device="npu")


class Norm:
    weight, eps = None, 1e-6


def normed():
    Norm.weight = rand(32)
    return {"norm": Norm}


SETUP = {
    "FUSE-ADD-LAYERNORM": lambda: {"x": rand(4, 32), "y": rand(4, 32), "weight": rand(32),
                                   "bias": rand(32), "eps": 1e-5},
    "FUSE-ADD-RMSNORM": lambda: {"x": rand(4, 32), "y": rand(4, 32), **normed()},
    "FUSE-ALLGATHER-MM": lambda: {**product(), **world()},
    "FUSE-ATTENTION-INFER": heads,
    "FUSE-BMM-TRANSPOSE": lambda: {"a": rand(4, 16, 32), "b": rand(4, 32, 16)},
    "FUSE-CLIP": optimiser,
    "FUSE-CROSS-ENTROPY": lambda: {"logits": rand(8, 32), "labels": integers(8)},
    "FUSE-FFN": lambda: {"x": rand(4, 16), "w1": rand(32, 16), "w2": rand(16, 32),
                         "b1": rand(32), "b2": rand(16)},
    "FUSE-GEGLU": lambda: {"x": rand(4, 32)},
    "FUSE-GRAD-ACCUMULATION": lambda: {
        "x": rand(16, 8), "grad_output": rand(16, 4),
        "weight": type("Weight", (), {"main_grad": rand(4, 8, dtype=torch.float32)})},
    "FUSE-GROUPED-MATMUL": lambda: {"x": rand(16, 32), "weights": rand(4, 32, 8),
                                    "counts": torch.tensor([4, 4, 4, 4], device="npu")},
    "FUSE-GROUPNORM-SILU": lambda: {"x": rand(2, 64, 4, 4), "weight": rand(64), "bias": rand(64)},
    "FUSE-KV-WRITE": lambda: {
        "keys": rand(4, 2, 16), "values": rand(4, 2, 16),
        "slots": torch.tensor([0, 1, 2, 3], dtype=torch.int32, device="npu"),
        "key_cache": rand(2, 16, 2, 16), "value_cache": rand(2, 16, 2, 16)},
    "FUSE-MASKED-SOFTMAX": lambda: {"scores": rand(2, 2, 32, 32), "scale": 0.5,
                                    "mask": rand(2, 2, 32, 32) > 0.5},
    "FUSE-MM-ALLREDUCE": lambda: {**product(), **world()},
    "FUSE-MM-REDUCE-SCATTER": lambda: {**product(), **world()},
    "FUSE-MOE-GATE": lambda: {"logits": rand(8, 16), "k": 2},
    "FUSE-MOE-PERMUTE": lambda: {"tokens": rand(8, 32, dtype=torch.bfloat16),
                                 "experts": integers(8, 2)},
    "FUSE-MOE-UNPERMUTE": lambda: {
        "x": rand(16, 32, dtype=torch.bfloat16), "weights": rand(8, 2, dtype=torch.bfloat16),
        "order": torch.randperm(16, device="npu").int()},
    "FUSE-QUANT-MM": lambda: {"x8": integers(16, 32, dtype=torch.int8),
                              "w8": integers(32, 64, dtype=torch.int8),
                              "scale": integers(64, low=1)},
    "FUSE-RMSNORM": lambda: {"x": rand(4, 32), "weight": rand(32), "eps": 1e-6},
    "FUSE-ROTARY": lambda: {"q": rand(1, 2, 16, 64), "cos": rand(1, 1, 16, 64),
                            "sin": rand(1, 1, 16, 64)},
    "FUSE-SAMPLING": lambda: {"logits": rand(4, 64), "p": rand(4),
                              "k": integers(4, low=1, dtype=torch.int32)},
    "FUSE-SWIGLU": lambda: {"gate": rand(4, 32), "up": rand(4, 32)},
    "FUSE-TRANSPOSE": lambda: {"x": rand(2, 16, 4, 8), "b": 2, "t": 4, "c": 128},
    "FUSE-WEIGHT-QUANT": lambda: {"x": rand(16, 32), "w8": integers(32, 64, dtype=torch.int8),
                                  "scale": rand(64)},
}  # fmt: skip


def run(rule, text):
    """What an example raises, or an empty text."""
    if rule not in SETUP:
        return "no setup: write one"
    try:
        exec(text, {"torch": torch, "torch_npu": torch_npu, **SETUP[rule]()})
        torch.npu.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


examples = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps({rule: run(rule, text) for rule, text in examples.items()}))
