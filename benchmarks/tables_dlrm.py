"""A small DLRM on two gloo processes, with joymigrate's tables or TorchRec: `tables.py torchrec`.

torchrun --nproc_per_node 2 benchmarks/tables_dlrm.py joymigrate|torchrec
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

FEATURES, ROWS, SIZE, SAMPLES, EACH = 8, 100_000, 32, 1024, 4
WARM, STEPS = 10, 40


def batches(keyed, rank: int):
    """The same batches for both libraries, made beforehand: ids by Zipf 1.05."""
    return iter(list(make_batches(keyed, rank)))


def make_batches(keyed, rank: int):
    random = np.random.default_rng(rank)
    weights = np.cumsum(np.arange(1, ROWS + 1, dtype=np.float64) ** -1.05)
    for _ in range(WARM + STEPS):
        draws = random.random(FEATURES * SAMPLES * EACH) * weights[-1]
        ids = torch.from_numpy(np.searchsorted(weights, draws).clip(max=ROWS - 1))
        yield (
            keyed.from_lengths_sync(
                [f"f{n}" for n in range(FEATURES)], ids, torch.full((FEATURES * SAMPLES,), EACH)
            ),
            torch.from_numpy(random.normal(size=(SAMPLES, 13)).astype(np.float32)),
            torch.from_numpy((random.random(SAMPLES) < 0.3).astype(np.float32)),
        )


class Dlrm(nn.Module):
    """Naumov et al., arXiv 1906.00091: dot products of all pairs of features."""

    def __init__(self, ebc: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = ebc
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, SIZE), nn.ReLU())
        pairs = (FEATURES + 1) * FEATURES // 2
        self.top = nn.Sequential(nn.Linear(SIZE + pairs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch):
        keyed, dense, labels = batch
        low = self.bottom(dense)
        rows = torch.cat((low[:, None], self.ebc(keyed).values().view(len(low), FEATURES, SIZE)), 1)
        at = torch.tril_indices(FEATURES + 1, FEATURES + 1, -1)
        dots = (rows @ rows.transpose(1, 2))[:, at[0], at[1]]
        logits = self.top(torch.cat((low, dots), 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        return loss, loss.detach()


def tables(config) -> list:
    return [
        config(num_embeddings=ROWS, embedding_dim=SIZE, name=f"t{n}", feature_names=[f"f{n}"])
        for n in range(FEATURES)
    ]


def ours():
    from joymigrate.run.train import tables as lib

    ebc = lib.EmbeddingBagCollection(
        tables(lib.EmbeddingBagConfig), optimiser=lib.RowOptimiser("adagrad", lr=0.05)
    )
    model = lib.DistributedModelParallel(Dlrm(ebc))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    # Two cores for two processes: threads that read ahead have none to run on.
    pipeline = lib.TablePipeline(model, optimiser, synchronous=True)
    source = batches(lib.KeyedJaggedTensor, dist.get_rank())

    def traffic() -> str:
        exchange = ebc.exchange
        return f"{exchange.bytes_sent / exchange.bytes_plain:.3f} {unique(dist.get_rank()):.3f}"

    return lambda: pipeline.progress(source), traffic


def unique(rank: int) -> float:
    """Distinct ids by ids, a table and a batch at a time."""
    from joymigrate.run.train.tables import KeyedJaggedTensor

    tables = [
        keyed[key].values()
        for keyed, *_ in make_batches(KeyedJaggedTensor, rank)
        for key in keyed.keys()  # noqa: SIM118  (no dictionary)
    ]
    return sum(len(ids.unique()) for ids in tables) / sum(len(ids) for ids in tables)


def theirs():
    import torchrec
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    device = torch.device("cpu")
    ebc = torchrec.EmbeddingBagCollection(tables(torchrec.EmbeddingBagConfig), device=device)
    apply_optimizer_in_backward(torch.optim.Adagrad, ebc.parameters(), {"lr": 0.05})
    model = DistributedModelParallel(Dlrm(ebc), device=device)
    dense = [p for name, p in model.named_parameters() if "ebc" not in name]
    optimiser = torch.optim.SGD(dense, lr=0.05)
    source = batches(torchrec.KeyedJaggedTensor, dist.get_rank())

    def step():
        loss, output = model(next(source))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return output

    return step, lambda: ""


def main() -> None:
    dist.init_process_group("gloo")
    step, traffic = {"joymigrate": ours, "torchrec": theirs}[sys.argv[1]]()
    for _ in range(WARM):
        step()
    dist.barrier()
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        loss = step()
    dist.barrier()
    rate = dist.get_world_size() * SAMPLES * STEPS / (time.perf_counter() - start)
    used = torch.tensor(time.process_time() - busy)
    dist.all_reduce(used)
    if dist.get_rank() == 0:
        print(f"{rate:.0f} {float(loss):.5f} {1e3 * float(used) / STEPS:.2f} {traffic()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
