"""Trains one model over all processes, pipelined and one stage after another; prints what differs.

    torchrun --nproc_per_node 2 sharded.py OPTIONS WAY [DEVICE [STALENESS]]
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from joymigrate.run.train.tables import (
    CommType,
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    EmbeddingBagConfig,
    Eviction,
    KeyedJaggedTensor,
    QCommsConfig,
    RowOptimiser,
    TableOptions,
    TablePipeline,
    get_qcomm_codecs_registry,
)

STEPS, SAMPLES = 12, 6
OPTIONS = {
    "static": TableOptions(),
    "cache": TableOptions(cache_rows=40),
    "half": TableOptions(cache_rows=40),  # rows and gradients travel in 16 bits
    "evictions": TableOptions(
        dynamic=True, cache_rows=40, eviction=Eviction(max_rows=9, every=1, max_age=2)
    ),
}


class Model(nn.Module):
    def __init__(self, options: TableOptions, device: torch.device) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(61, 8, "a", feature_names=["f"]),
            EmbeddingBagConfig(60, 4, "b", feature_names=["g"]),
        ]
        kind = RowOptimiser("adagrad", lr=0.05)
        self.ebc = EmbeddingBagCollection(tables, device=device, optimiser=kind, options=options)
        torch.manual_seed(0)
        self.top = nn.Linear(12, 1).to(device)

    def forward(self, batch):
        keyed, labels = batch
        loss = (self.top(self.ebc(keyed).values()).squeeze(1) - labels).square().mean()
        return loss, loss.detach()


def batches(rank: int, world: int):
    """This rank's share of the same batches, whatever the number of processes."""
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        parts = []
        for _ in range(max(2, world)):  # shares
            lengths = random.integers(0, 4, 2 * SAMPLES)
            lengths[SAMPLES:] *= 4  # long bags are sent as sums
            lengths[0] = 2
            ids = random.zipf(1.2, lengths.sum()).clip(max=59)
            ids[:2] = 7
            labels = random.normal(size=SAMPLES).astype(np.float32)
            parts.append((torch.from_numpy(ids), torch.from_numpy(lengths), torch.from_numpy(labels)))
        mine = parts[rank :: world] if world > 1 else parts
        jagged = []
        for ids, lengths, labels in mine:
            jagged.append((KeyedJaggedTensor(["f", "g"], ids, lengths=lengths), labels))
        if world > 1:
            yield jagged[0]
            continue
        both = {
            key: [kjt[key] for kjt, _ in jagged] for key in ("f", "g")
        }
        values = torch.cat([j.values() for key in both for j in both[key]])
        lengths = torch.cat([j.lengths() for key in both for j in both[key]])
        yield (
            KeyedJaggedTensor(["f", "g"], values, lengths=lengths),
            torch.cat([labels for _, labels in jagged]),
        )


def run(options: TableOptions, way: str, device: torch.device, synchronous: bool, world: int, staleness: int = 0):
    model = Model(options, device)
    codecs = get_qcomm_codecs_registry(QCommsConfig(CommType.FP16, CommType.BF16))
    half = EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs)
    sharders = [half] if options is OPTIONS["half"] else None
    plan = {"a": way, "b": way}
    wrapped = model if world == 1 else DistributedModelParallel(model, plan=plan, sharders=sharders)
    pipeline = TablePipeline(
        wrapped,
        torch.optim.SGD([p for p in wrapped.parameters()], lr=0.1),
        device,
        synchronous=synchronous,
        staleness=staleness,
    )
    source, losses = batches(int(os.environ.get("RANK", 0)), world), []
    while True:
        try:
            losses.append(pipeline.progress(source))
        except StopIteration:
            break
        if not synchronous:
            time.sleep(0.02)  # lets the other threads run ahead as far as they can
    rows = [t for part in model.ebc.local_tables() for _, *pair in part.row_chunks() for t in pair]
    state = [torch.stack(losses).cpu(), model.top.weight.detach().cpu(), *rows]
    exchange = model.ebc.exchange
    if world == 1:
        return state, ()
    sums = [exchange.ways[name].sums for name in ("a", "b")]
    return state, (exchange.bytes_sent, exchange.bytes_plain, *sums)


def main() -> None:
    name, way, kind = sys.argv[1], sys.argv[2], (sys.argv + ["cpu"])[3]
    world = int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if kind != "cpu":
        import torch_npu  # noqa: F401

        torch.npu.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        device = torch.device("npu", int(os.environ.get("LOCAL_RANK", 0)))
    if world > 1:
        dist.init_process_group("gloo" if kind == "cpu" else "hccl")
    want, traffic = run(OPTIONS[name], way, device, True, world)
    staleness = int((sys.argv + ["0"])[4]) if len(sys.argv) > 4 else 0
    got, _ = run(OPTIONS[name], way, device, False, world, staleness)
    different = sum(not torch.equal(a, b) for a, b in zip(got, want, strict=True))
    losses = want[0].clone().to(device)
    if world > 1:
        dist.all_reduce(losses)
    result = {
        "rank": int(os.environ.get("RANK", 0)),
        "different": different,
        "tensors": len(want),
        "losses": (losses.cpu() / world).tolist(),
        "bytes": traffic[:2],
        "sums": traffic[2:],
    }
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
