"""Memory, collectives of two cards, a small training run, a small serving run, kernel times."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .operators import find, move
from .tensors import arguments

MIB = 1 << 20
STEPS = 10
TOKENS = 12
ROUNDS = 20


class KitBlock(nn.Module):
    """One layer of a small decoder: d=64, 4 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, 64] to the same."""
        batch, length, _ = x.shape
        parts = self.qkv(self.norm(x)).reshape(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].transpose(-1, -2) / 4.0
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(mask, -1e4).softmax(-1)
        mixed = (weights @ parts[2]).transpose(1, 2).reshape(batch, length, 64)
        x = x + self.out(mixed)
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))
        return out


class KitDecoder(nn.Module):
    """Two blocks over 97 tokens; its weights depend on nothing but the formula below."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(97, 64), nn.Linear(64, 97, bias=False)
        self.blocks = nn.Sequential(KitBlock(), KitBlock())
        with torch.no_grad():
            for number, weight in enumerate(self.parameters()):
                count = torch.arange(weight.numel(), dtype=torch.float64)
                values = torch.sin(count * 12.9898 + number) * 0.08
                weight.copy_(values.reshape(weight.shape) + (weight.dim() == 1) * 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, length] to logits."""
        logits: Tensor = self.head(self.blocks(self.embed(tokens)))
        return logits


def batch() -> Tensor:
    """Tokens [4, 33] of a formula."""
    return (torch.arange(4 * 33).reshape(4, 33) * 31 % 89) + 1


def train(device: str) -> dict[str, Any]:
    """Losses of ten steps of AdamW."""
    model = KitDecoder().to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = batch().to(device)
    losses = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, 97), tokens[:, 1:].reshape(-1))
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(round(float(loss.detach().cpu()), 6))
    return {"outcome": "accepted", "losses": losses}


def serve(device: str) -> dict[str, Any]:
    """Greedy tokens after a fixed prompt."""
    model = KitDecoder().to(device).eval()
    tokens = batch()[:1, :8].to(device)
    with torch.no_grad():
        for _ in range(TOKENS):
            following = model(tokens)[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat((tokens, following), dim=1)
    return {"outcome": "accepted", "tokens": tokens[0, 8:].cpu().tolist()}


def memory(device: str) -> dict[str, Any]:
    """The card's memory and what the allocator holds after 64 MiB."""
    kind = device.split(":")[0]
    module = getattr(torch, kind, None)
    if module is None or not hasattr(module, "mem_get_info"):
        return {"outcome": "skipped", "message": f"{kind} has no memory statistics"}
    _, total = module.mem_get_info(0)
    before = module.memory_allocated(0)
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    allocated = module.memory_allocated(0) - before
    del held
    return {"outcome": "accepted", "total_bytes": total, "allocated_bytes": allocated}


def time_of(case: dict[str, Any], masters: dict[str, Tensor], device: str) -> dict[str, Any]:
    """The median time of an operator, host and device, in microseconds."""
    on_chip = [move(value, device) for value in arguments(case, masters)]
    function, kwargs = find(case["call"]), case.get("kwargs") or {}
    module = getattr(torch, device.split(":")[0])
    taken = []
    for number in range(ROUNDS + 3):
        start = time.perf_counter()
        function(*on_chip, **kwargs)
        module.synchronize()
        if number >= 3:
            taken.append((time.perf_counter() - start) * 1e6)
    return {"outcome": "accepted", "median_us": round(sorted(taken)[len(taken) // 2], 2)}


LONGEST_S = 0.05  # no larger input after one that took so long


def rate(name: str, dtype: str, device: str) -> dict[str, Any]:
    """The best rate that growing inputs reach: TFLOP/s of square products, GB/s (read and written)
    of copies. Timed by the host around work that it waits for."""
    kind = device.split(":")[0]
    module = getattr(torch, kind)
    best, largest, length = 0.0, 0, 256 if name == "matmul" else 1 << 20
    while length <= (1 << 13 if name == "matmul" else 1 << 28):
        shape = (length, length) if name == "matmul" else (length,)
        source = torch.ones(shape, dtype=getattr(torch, dtype), device=device)
        target = torch.empty_like(source)
        taken = []
        for _ in range(4):
            start = time.perf_counter()
            if name == "matmul":
                torch.matmul(source, source, out=target)
            else:
                target.copy_(source)
            module.synchronize()
            taken.append(time.perf_counter() - start)
        work = 2 * length**3 / 1e12 if name == "matmul" else 2 * source.nbytes / 1e9
        if work / min(taken[1:]) > best:
            best, largest = work / min(taken[1:]), length
        if min(taken[1:]) > LONGEST_S or sum(taken) > 20 * LONGEST_S:
            break
        length *= 2 if name == "matmul" else 4
    unit = "TFLOP/s" if name == "matmul" else "GB/s"
    return {"outcome": "accepted", "rate": round(best, 4), "unit": unit, "length": largest}


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


def collective(name: str, rank: int, device: str) -> list[float]:
    """The result of one collective of two ranks, as a list of numbers."""
    from torch import distributed

    mine = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device) * (rank + 1)
    out = torch.zeros(4, device=device)
    if name == "all_reduce":
        distributed.all_reduce(mine)
        out = mine
    elif name == "broadcast":
        distributed.broadcast(mine, 1)
        out = mine
    elif name == "all_gather":
        parts = [torch.zeros(4, device=device) for _ in range(2)]
        distributed.all_gather(parts, mine)
        out = torch.cat(parts)
    elif name == "reduce_scatter":
        out = torch.zeros(2, device=device)
        distributed.reduce_scatter_tensor(out, mine)
    elif name == "all_to_all":
        distributed.all_to_all_single(out, mine)
    return [float(value) for value in out.cpu()]


EXPECTED = {
    "all_reduce": [[3.0, 6.0, 9.0, 12.0]] * 2,
    "broadcast": [[2.0, 4.0, 6.0, 8.0]] * 2,
    "all_gather": [[1.0, 2.0, 3.0, 4.0, 2.0, 4.0, 6.0, 8.0]] * 2,
    "reduce_scatter": [[3.0, 6.0], [9.0, 12.0]],
    "all_to_all": [[1.0, 2.0, 2.0, 4.0], [3.0, 4.0, 6.0, 8.0]],
}


def run_rank(name: str, rank: int, device: str, backend: str, state: Path) -> None:
    """One of two processes: join the group, run one collective, check it. Exit code 3: wrong."""
    from torch import distributed

    if device != "cpu":
        device = f"{device}:{rank}"
        getattr(torch, device.split(":")[0]).set_device(rank)
    distributed.init_process_group(backend, rank=rank, world_size=2)
    (state / f"joined-{rank}").touch()
    result = collective(name, rank, device)
    os._exit(0 if result == EXPECTED[name][rank] else 3)
