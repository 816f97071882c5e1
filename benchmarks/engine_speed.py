"""The engine's speed on a random 82M model, beside transformers' own continuous batching.

    python benchmarks/engine_speed.py                      # c = 1, 8, 32; prefix cache; start
    python benchmarks/engine_speed.py --peer transformers  # and transformers' generate_batch
    python -m benchmarks.engine_speed --model DIR --quantised DIR --concurrent 8 32

Load: 3·c texts, c at a time, 128 random prompt tokens, 64 output tokens, greedy. Rows are
tokens per second, tokens per processor-second of this process, and the median time to the first
token. Runs of the two engines alternate. Everything happens in this process; no HTTP.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.chips import hide_driverless

hide_driverless()

PROMPT, OUTPUT, TEXTS = 128, 64, 3
CONCURRENT = (1, 8, 32)
VOCABULARY = 8192
START = """
import time; began = time.perf_counter()
import asyncio, sys
from joymigrate.run.serve.engine import AsyncEngine, EngineOptions, Request, Sampling
engine = AsyncEngine.load(sys.argv[1], EngineOptions(threads=1))
async def first():
    async for output in engine.generate(Request("a", (5, 6, 7), Sampling(max_tokens=1))):
        return time.perf_counter() - began
print(asyncio.run(first()), time.process_time())
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    engine: str
    load: str
    tokens_per_s: float
    tokens_per_cpu_s: float
    ttft_ms: float


def make_model(folder: Path) -> None:
    """A Qwen2 of 82M random bfloat16 numbers."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def prompts(count: int, length: int = PROMPT, shared: int = 0, seed: int = 0) -> list[list[int]]:
    """Random prompts; the first `shared` tokens are the same."""
    source = random.Random(seed)
    beginning = [source.randrange(3, VOCABULARY) for _ in range(shared)]
    return [
        beginning + [source.randrange(3, VOCABULARY) for _ in range(length - shared)]
        for _ in range(count)
    ]


def ours(folder: Path, threads: int, dtype: str, **more: Any) -> Any:
    """Our engine, without its thread."""
    import torch

    from joymigrate.run.serve.engine.load import load_engine
    from joymigrate.run.serve.engine.types import EngineOptions

    torch.set_num_threads(threads)
    return load_engine(folder, EngineOptions(dtype=dtype, **more)).engine


def run_ours(engine: Any, asked: list[list[int]], concurrent: int, load: str) -> Row:
    """`asked`, `concurrent` at a time; the next one starts when one ends."""
    from joymigrate.run.serve.engine.types import Request, Sampling

    sampling = Sampling(max_tokens=OUTPUT, temperature=0, ignore_eos=True)
    waiting = [(str(i), ids) for i, ids in enumerate(asked)][::-1]
    begun: dict[str, float] = {}
    first: dict[str, float] = {}

    def start() -> None:
        if waiting:
            name, ids = waiting.pop()
            begun[name] = time.perf_counter()
            engine.add(Request(name, tuple(ids), sampling))

    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(concurrent):
        start()
    made = 0
    while not engine.idle:
        for output in engine.step():
            made += len(output.new_ids)
            first.setdefault(output.request_id, time.perf_counter() - begun[output.request_id])
            if output.finish_reason:
                start()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert made == len(asked) * OUTPUT
    return Row("joymigrate", load, made / wall, made / cpu, 1e3 * statistics.median(first.values()))


def run_transformers(model: Any, asked: list[list[int]], load: str) -> Row:
    """All at once through `generate_batch`, which has no way to hold texts back."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    settings = GenerationConfig(max_new_tokens=OUTPUT, do_sample=False, eos_token_id=-1)
    limits = ContinuousBatchingConfig(max_batch_tokens=512, num_blocks=512)
    wall, cpu = time.perf_counter(), time.process_time()
    found = model.generate_batch(
        inputs=asked,
        generation_config=settings,
        continuous_batching_config=limits,
        progress_bar=False,
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    made = sum(len(output.generated_tokens) for output in found.values())
    return Row("transformers", load, made / wall, made / cpu, float("nan"))


def show(row: Row) -> None:
    """One line of the table."""
    print(
        f"| {row.engine} | {row.load} | {row.tokens_per_s:.0f} | {row.tokens_per_cpu_s:.0f} "
        f"| {row.ttft_ms:.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="an existing copy of the model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--peer", choices=["transformers"])
    parser.add_argument("--only", choices=["load", "prefix", "start"])
    parser.add_argument("--quantised", type=Path, help="a quantised copy of --model, by turns")
    parser.add_argument("--profile", action="store_true", help="where steps of --quantised go")
    parser.add_argument("--rounds", type=int, default=2, help="of --quantised")
    parser.add_argument("--concurrent", type=int, nargs="*", default=CONCURRENT)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = given.model or Path(made)
        if not (folder / "config.json").is_file():
            make_model(folder)
        rows: list[Row] = []
        print("| engine | load | tokens/s | tokens/CPU-s | first token ms |\n|---|---|---|---|---|")
        if given.quantised:
            rows += measure_quantised(folder, given)
        elif given.only in (None, "load"):
            rows += measure_load(folder, given)
        if given.only in (None, "prefix") and not given.quantised:
            rows += measure_prefix(folder, given)
        if given.only in (None, "start") and not given.quantised:
            measure_start(folder)
        if given.json:
            fields = [{name: getattr(row, name) for name in Row.__slots__} for row in rows]
            given.json.write_text(json.dumps(fields, indent=1) + "\n")


def measure_load(folder: Path, given: Any) -> list[Row]:
    """Throughput at each concurrency, the peer in turn."""
    engine = ours(folder, given.threads, given.dtype, prefix_cache=False)
    peer = None
    if given.peer:
        import torch
        from transformers import AutoModelForCausalLM

        dtype = getattr(torch, given.dtype)
        peer = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa"
        ).eval()
    run_ours(engine, prompts(2), 2, "warm-up")
    rows = []
    for concurrent in given.concurrent:
        asked = prompts(TEXTS * concurrent, seed=concurrent)
        rows.append(run_ours(engine, asked, concurrent, f"c={concurrent}"))
        show(rows[-1])
        if peer is not None:
            at_once = asked[:concurrent]
            rows.append(run_transformers(peer, at_once, f"{concurrent} at once"))
            show(rows[-1])
    return rows


def measure_quantised(folder: Path, given: Any) -> list[Row]:
    """The model and its quantised copy by turns; the ratio of their best rounds."""
    folders = {"joymigrate": folder, "quantised": given.quantised}
    engines = {name: ours(each, given.threads, given.dtype, prefix_cache=False)
               for name, each in folders.items()}  # fmt: skip
    for engine in engines.values():
        run_ours(engine, prompts(2), 2, "warm-up")
    if given.profile:
        for concurrent in given.concurrent:
            for name, engine in engines.items():
                profile_steps(engine, concurrent, name)
        return []
    rows = []
    for concurrent in given.concurrent:
        best = dict.fromkeys(engines, 0.0)
        for number in range(given.rounds):
            asked = prompts(TEXTS * concurrent, seed=1000 * number + concurrent)
            for name, engine in engines.items():
                row = run_ours(engine, asked, concurrent, f"c={concurrent}")
                row = replace(row, engine=name)
                best[name] = max(best[name], row.tokens_per_cpu_s)
                rows.append(row)
                show(row)
        print(f"quantised, c={concurrent}: {best['quantised'] / best['joymigrate']:.2f}x tokens "
              "per processor-second")  # fmt: skip
    return rows


def profile_steps(engine: Any, concurrent: int, name: str, steps: int = 10) -> None:
    """The operators of `steps` steps that go on with `concurrent` texts, by torch's profiler."""
    import torch

    from joymigrate.run.serve.engine.types import Request, Sampling

    sampling = Sampling(max_tokens=400, temperature=0, ignore_eos=True)
    for i, ids in enumerate(prompts(concurrent)):
        engine.add(Request(f"profile {i}", tuple(ids), sampling))
    for _ in range(concurrent * PROMPT // 512 + 4):
        engine.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        for _ in range(steps):
            engine.step()
    for one in list(engine.texts):
        engine.abort(one)
    print(f"{name}, c={concurrent}: {steps} steps")
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))


def measure_prefix(folder: Path, given: Any) -> list[Row]:
    """512 prompt tokens of which 448 are shared, against none shared."""
    rows = []
    for shared in (0, 448):
        engine = ours(folder, given.threads, given.dtype)
        run_ours(engine, prompts(1, 512, shared), 1, "warm-up")
        asked = prompts(TEXTS * 8 + 1, 512, shared)[1:]
        rows.append(run_ours(engine, asked, 8, f"c=8, {shared} of 512 shared"))
        show(rows[-1])
    cold, warm = rows
    print(f"prefix cache: {warm.tokens_per_s / cold.tokens_per_s:.2f}x tokens/s, "
          f"{warm.ttft_ms / cold.ttft_ms:.2f}x time to the first token")  # fmt: skip
    return rows


def measure_start(folder: Path) -> None:
    """A new process, from its first import to its first token."""
    taken = subprocess.run(
        [sys.executable, "-c", START, str(folder)], capture_output=True, text=True, check=True
    )
    wall, cpu = map(float, taken.stdout.split())
    print(f"start to the first token: {wall:.2f} s, {cpu:.2f} s of processor time")


if __name__ == "__main__":
    main()
