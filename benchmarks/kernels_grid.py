"""Are the chosen kernels ever slower than the reference, and how do they compare?

    python benchmarks/kernels_grid.py [--rounds 9] [--op NAME …]        on a CPU
    python benchmarks/kernels_grid.py --device cuda                      on a GPU

On a CPU: tunes on the grid of every operator into a folder of its own, then measures the same grid
again and asks of each case whether the choice is slower than the reference now. One thread, this
process's processor time, implementations in turn. A case fails below 0.95 twice in a row (the
second time with three times the rounds); exit 1 then.

On a GPU: sizes of a 1.5B and a 7B model in bfloat16, with Liger beside the others where it is
installed, and the percentage of the card's peak bandwidth or FLOP/s from the chip's data sheet.
This branch has not been run: no GPU was at hand when it was written.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator

ALLOWED = 0.95  # of the reference's speed; a busy machine moves single cases by some percent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--dtype", action="append", default=[])
    return parser.parse_args()


def on_cpu(options: argparse.Namespace) -> int:
    """Tune, measure again, and name the choices that lost."""
    import torch

    from joymigrate.report.kernels import bench_text
    from joymigrate.run import kernels
    from joymigrate.run.kernels import bench, tuning_results

    torch.set_num_threads(1)
    chosen = [kernels.op(name) for name in options.op] or [*kernels.operators().values()]
    dtypes = options.dtype or ["float32", "bfloat16"]

    def measure(only: list, rounds: int, tune: bool) -> list:
        return [*bench.bench(only, "cpu", dtypes=dtypes, rounds=rounds, tune=tune)]

    measure(chosen, options.rounds, True)
    found = measure(chosen, options.rounds, False)
    print(bench_text(found, {"card": tuning_results.card_name("cpu")}))
    doubtful = {t.op for t in found if t.speed_up[t.chosen] < ALLOWED}
    slow = {key(t) for t in found if t.speed_up[t.chosen] < ALLOWED}
    again = measure([kernels.op(op) for op in doubtful], 3 * options.rounds, False)
    failed = [t for t in again if key(t) in slow and t.speed_up[t.chosen] < ALLOWED]
    for timing in failed:
        print(f"slower: {' '.join(key(timing))} {timing.speed_up[timing.chosen]:.2f}")
    against_torch = [
        t.times_us["torch"] / t.times_us[t.chosen] for t in found if "torch" in t.times_us
    ]
    gains = [t.speed_up[t.chosen] for t in found]
    print(
        f"{len(found)} cases: choices {statistics.geometric_mean(gains):.2f} x the reference and "
        f"{statistics.geometric_mean(against_torch):.2f} x torch's fused ones (geometric means); "
        f"{len(failed)} slower than {ALLOWED} x the reference"
    )
    return 1 if failed else 0


def key(timing) -> tuple[str, ...]:
    return timing.op, timing.case, timing.dtype, timing.phase


def on_gpu(options: argparse.Namespace) -> int:
    """The grid of a GPU, Liger and percentages of peak included."""
    from joymigrate.report.kernels import bench_text
    from joymigrate.run import kernels
    from joymigrate.run.kernels import bench, tuning_results
    from joymigrate.run.kernels.registry import Kernel

    found = []
    for name, grid in GPU_GRIDS.items():
        if options.op and name not in options.op:
            continue
        kernel = Kernel(dataclasses.replace(kernels.op(name).operator, grid=grid))
        dtypes = options.dtype or ["bfloat16"]
        found += bench.bench([kernel], options.device, dtypes=dtypes, rounds=options.rounds)
    print(bench_text(found, {"card": tuning_results.card_name(options.device)}))
    return 0


def rows(*sizes: tuple[int, ...], build: Callable) -> Callable:
    """A grid from sizes and a function (samples, *sizes) → (arguments, which get gradients)."""

    def grid(random) -> Iterator:
        from joymigrate.run.kernels.operator import OperatorCase

        for size in sizes:

            def made(size: tuple[int, ...] = size) -> OperatorCase:
                args, grad = build(random, *size)
                return OperatorCase("", args, grad=grad)

            yield "x".join(map(str, size)), made

    return grid


def norm(random, tokens: int, size: int) -> tuple:
    return (random.normal(tokens, size), random.normal(size)), (0, 1)


def add_norm(random, tokens: int, size: int) -> tuple:
    both = random.normal(tokens, size), random.normal(tokens, size)
    return (*both, random.normal(size)), (0, 1, 2)


def gate(random, tokens: int, size: int) -> tuple:
    return (random.normal(tokens, size), random.normal(tokens, size)), (0, 1)


def turn(random, batch: int, heads: int, positions: int, size: int) -> tuple:
    return (random.normal(batch, heads, positions, size), *random.angles(1, 1, positions, size)), (
        0,
    )


def history(random, batch: int, length: int, size: int) -> tuple:
    return (random.normal(batch, 1, size), random.normal(batch, length, size)), (0, 1)


def dense_attention(random, batch: int, heads: int, groups: int, length: int, size: int) -> tuple:
    from joymigrate.run.kernels.mask import Causal
    from joymigrate.run.kernels.ops.attention import qkv

    return (*qkv(random, batch, heads, groups, length, length, size), Causal()), (0, 1, 2)


def loss(random, tokens: int, size: int, classes: int) -> tuple:
    weight = random.normal(classes, size, scale=0.02)
    return (random.normal(tokens, size), weight, random.integers(0, classes, tokens)), (0, 1)


HIDDEN = ((4096, 1024), (4096, 1536), (4096, 4096), (4096, 8192), (32, 4096))
GPU_GRIDS = {
    "rms_norm": rows(*HIDDEN, build=norm),
    "add_rms_norm": rows(*HIDDEN, build=add_norm),
    "swiglu": rows((4096, 8960), (4096, 18944), (32, 18944), build=gate),
    "rotary": rows((1, 12, 4096, 128), (4, 28, 4096, 128), (32, 28, 1, 128), build=turn),
    "sub_mul_concat": rows((1024, 200, 64), (4096, 100, 32), build=history),
    "attention": rows(
        (1, 12, 2, 4096, 128), (1, 28, 4, 8192, 128), (8, 28, 4, 1024, 128), build=dense_attention
    ),
    "fused_linear_cross_entropy": rows((4096, 1536, 151936), (8192, 3584, 151936), build=loss),
}


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        os.environ["JOYMIGRATE_CACHE"] = folder
        return on_cpu(options) if options.device == "cpu" else on_gpu(options)


if __name__ == "__main__":
    sys.exit(main())
