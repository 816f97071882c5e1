"""Published training speeds against the bound of `profile cost`: the bound is never above them.

    python -m benchmarks.published_speed

Each model's matrix products and attention of one sequence, forward and backward, are written down
as a recording would have them, and go through the same counting as one. `of the bound` is how many
times the bound the published time is. Exit code 1 where a published time lies below its bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from joymigrate import chips
from joymigrate.profile.capture import Capture, CapturedOperator
from joymigrate.profile.cost import Cost, bound_step, peaks_of, work_of

FIGURES = Path(__file__).with_suffix(".yaml")


def tensor(*shape: int) -> dict[str, Any]:
    """A bfloat16 tensor of a recording."""
    return {"dtype": "bfloat16", "shape": list(shape)}


def product(m: int, k: int, n: int, module: str) -> Iterator[CapturedOperator]:
    """A linear layer: one product forward, two backward."""
    for phase, a, b in (("forward", (m, k), (k, n)), ("backward", (m, n), (n, k)),
                        ("backward", (k, m), (m, n))):  # fmt: skip
        yield call("aten::mm", [tensor(*a), tensor(*b)], [tensor(a[0], b[1])], phase, module)


def call(op: str, args: list[Any], outputs: list[Any], phase: str, module: str) -> CapturedOperator:
    """One operator of a recording."""
    return CapturedOperator(op, "", tuple(args), {}, tuple(outputs), 1, 0.0, phase, None, module,
                            ("aten::linear",))  # fmt: skip


def operators(sizes: list[Any], length: int) -> Iterator[CapturedOperator]:
    """One training step on one sequence. Embeddings are looked up, which costs no product."""
    layers, hidden, heads, key_heads, inner, gated, words = sizes
    size = hidden // heads
    for layer in range(layers):
        yield from product(length, hidden, hidden + 2 * key_heads * size, f"{layer}.qkv")
        q, k = tensor(1, heads, length, size), tensor(1, key_heads, length, size)
        base = "aten::_scaled_dot_product_flash_attention"
        yield call(base, [q, k, k, 0.0, True], [q], "forward", f"{layer}.attention")
        rest = [q, k, k, q, tensor(1, heads, length), None, None, length, length, 0.0, True]
        yield call(f"{base}_backward", [q, *rest], [q, k, k], "backward", f"{layer}.attention")
        yield from product(length, hidden, hidden, f"{layer}.out")
        yield from product(length, hidden, inner * (2 if gated else 1), f"{layer}.up")
        yield from product(length, inner, hidden, f"{layer}.down")
    yield from product(length, hidden, words, "head")


def cost_of(figure: dict[str, Any], models: dict[str, list[Any]]) -> Cost:
    """The bound of one sequence, against its published time."""
    made = tuple(operators(models[figure["model"]], figure["length"]))
    capture = Capture(Path(figure["model"]), {}, made)
    peaks = peaks_of(chips.target(figure["chip"]), figure["sku"])
    published_us = figure["length"] / figure["tokens_s"] * 1e6
    return bound_step(work_of(capture, own=peaks.formulas), peaks, measured_us=published_us)


def main() -> int:
    """Print the table."""
    raw = yaml.safe_load(FIGURES.read_text())
    wrong = 0
    print("| model | length | chip | machine | tokens/s a card | published MFU | MFU here | "
          "of the bound | source |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for figure in raw["figures"]:
        cost = cost_of(figure, raw["models"])
        assert cost.measured_us is not None
        times = cost.measured_us / cost.bound_us
        wrong += times < 1
        said = f"{figure['mfu']:.1f} %" if "mfu" in figure else "-"
        print(
            f"| {figure['model']} | {figure['length']:,} | {figure['sku']} | {figure['machine']} | "
            f"{figure['tokens_s']:,} | {said} | {cost.measured_mfu:.1%} | {times:.2f} | "
            f"{figure['source']} |"
        )
    print(f"\n{len(raw['figures'])} figures, {wrong} below the bound")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
