"""Described attention on packed sequences against padded SDPA, and its memory at 16,384 events.

    python -m benchmarks.attention_masks [--memory]

Lengths are drawn from a Zipf law. The peer pads to the longest and gives SDPA the mask as a tensor
(or is_causal). Ratios of CPU seconds a useful token, forward and backward, medians of one run.
`--memory`: the growth of the process's peak memory over one forward and backward pass, 4 heads,
16,384 events, against the pairs that a mask as a tensor would hold.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run import kernels
from joymigrate.run.kernels.mask import (
    CandidateMask,
    Causal,
    Globals,
    JaggedMask,
    Simple,
    WindowMask,
    dense,
)
from joymigrate.run.kernels.scores import Bias, Silu

HEADS, SIZE, ROUNDS = 4, 32, 5
MASKS: dict[str, Simple] = {
    "causal": Causal(),
    "causal & (window 128 | 8 globals)": Causal() & (WindowMask(128) | Globals(8)),
    "candidates behind 3/4": CandidateMask(),
}


def zipf_lengths(count: int, longest: int) -> list[int]:
    """Lengths of the ranks of a Zipf law, at least 16."""
    return [max(16, int(longest / rank)) for rank in range(1, count + 1)]


def seconds(runs: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median CPU seconds, the runs in turn."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            began = time.process_time()
            run()
            found[name].append(time.process_time() - began)
    return {name: statistics.median(rows) for name, rows in found.items()}


def compare(label: str, mask: Simple, lengths: list[int], *, hstu: bool = False) -> None:
    """One line: padded SDPA's time by ours."""
    total, longest = sum(lengths), max(lengths)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    contexts = torch.tensor([length * 3 // 4 for length in lengths])
    targets = isinstance(mask, CandidateMask)
    packed = JaggedMask(offsets, mask, contexts if targets else None, longest)
    q, k, v = (torch.randn(total, HEADS, SIZE, requires_grad=True) for _ in range(3))
    more = {}
    if hstu:
        position = torch.zeros(1, 2 * longest - 1, requires_grad=True)
        stamps = Bias(position, torch.zeros(1, 128, requires_grad=True), torch.arange(total))
        more = {"bias": stamps, "activation": Silu(longest), "scale": 1.0}

    def ours() -> None:
        kernels.op("attention")(q, k, v, packed, **more).sum().backward()

    seen: Tensor | None = None
    if targets:
        seen = torch.stack(
            [
                dense(CandidateMask(int(c)), longest, longest, q.device)
                for c in contexts  # type: ignore[misc]
            ]
        )[:, None]
    elif not isinstance(mask, Causal):
        seen = dense(mask, longest, longest, q.device)
    inside = torch.arange(longest) < torch.tensor(lengths)[:, None]

    def padded() -> None:
        parts = []
        for t in (q, k, v):
            wide = t.new_zeros(len(lengths), longest, HEADS, SIZE)
            wide[inside] = t
            parts.append(wide.transpose(1, 2))
        y = F.scaled_dot_product_attention(*parts, attn_mask=seen, is_causal=seen is None)
        y.transpose(1, 2)[inside].sum().backward()

    found = seconds({"ours": ours, "padded": padded})
    chosen = kernels.op("attention")
    name = chosen.choose_for(chosen.call_of(q, k, v, packed, **more)).implementation
    print(f"{label}: {found['padded'] / found['ours']:.2f}x padded SDPA ({name}), {total} tokens "
          f"in {len(lengths)} x {longest}")  # fmt: skip


def peak_mib() -> float:
    """The largest resident memory of this process so far. (ru_maxrss begins with the parent's.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def memory() -> None:
    """The growth of the peak over one pass."""
    length = 16_384
    q, k, v = (torch.randn(length, HEADS, SIZE, requires_grad=True) for _ in range(3))
    near = Causal() & (WindowMask(1024) | Globals(16))
    packed = JaggedMask(torch.tensor([0, length]), near, longest=length)
    kernels.op("attention")(q[:64], k[:64], v[:64], JaggedMask(torch.tensor([0, 64]), near)).sum()
    before = peak_mib()
    kernels.op("attention")(q, k, v, packed).sum().backward()
    grown = peak_mib() - before
    scores = HEADS * 4 * length**2 / 2**20
    print(
        f"peak at {length} events: + {grown:.0f} MiB; the mask alone would be "
        f"{length**2 / 2**20:.0f} MiB, the scores {scores:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", action="store_true", help="only the peak at 16,384 events")
    torch.set_num_threads(1)
    if parser.parse_args().memory:
        memory()
        return
    torch.manual_seed(0)
    lengths = zipf_lengths(16, 2048)
    for label, mask in MASKS.items():
        compare(label, mask, lengths)
    compare("HSTU (SiLU, bias by position and time)", Causal(), lengths, hstu=True)
    subprocess.run([sys.executable, "-m", "benchmarks.attention_masks", "--memory"], check=True)


if __name__ == "__main__":
    main()
