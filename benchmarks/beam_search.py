"""Beam search over valid ids: tokens/s against transformers.generate, and memory at 512 x 512.

python -m benchmarks.beam_search [BEAMS | memory]

Both use one tiny Qwen2 on the CPU, one prompt of 256 tokens, 4 codes, the same beams; transformers
searches without a trie, which spares it the rules.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from joymigrate.chips import hide_driverless
from joymigrate.run.beam import AnyToken, BeamRequest, BeamSearch, Trie, choose
from joymigrate.run.beam.causal import CausalWriter


def tiny() -> Any:
    """A Qwen2 of 4 layers and 1,024 tokens."""
    hide_driverless()
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "qwen2", hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=1024, eos_token_id=None,
        pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def best_of(run: Any, times: int = 3) -> float:
    """Seconds of the fastest of some runs."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


def main(beams: int) -> None:
    """Print both figures."""
    model, rounds = tiny(), 4
    prompt = torch.randint(1024, (256,)).tolist()
    codes = torch.unique(torch.randint(1024, (20_000, rounds)), dim=0)
    search = BeamSearch(CausalWriter(model), Trie.of(codes))
    request = BeamRequest(prompt, beams)
    free = BeamRequest(prompt, beams, rules=AnyToken(1024, rounds))
    with torch.no_grad():
        ours = best_of(lambda: search.run([request]))
        plain = best_of(lambda: search.run([free]))
        theirs = best_of(
            lambda: model.generate(
                torch.tensor([prompt]), num_beams=beams, num_return_sequences=beams,
                max_new_tokens=rounds, do_sample=False, length_penalty=0.0,
            ), 2,
        )  # fmt: skip
    tokens = beams * rounds
    print(f"{beams} beams, {rounds} codes: trie {tokens / ours:,.0f} tokens/s, "
          f"no rules {tokens / plain:,.0f}, transformers {tokens / theirs:,.0f}")  # fmt: skip
    print(f"ratio {theirs / ours:.1f} with the trie, {theirs / plain:.1f} without rules")
    memory()


def memory() -> None:
    """The growth of the peak over one selection; the peak before it is forgotten (Linux)."""
    choose(torch.zeros(8), torch.randn(8, 512), torch.zeros(8).long(), AnyToken(512, 3), 8, 512)
    for width in (512, 2048, 8192):
        logits = torch.randn(width, 512)
        nodes = torch.zeros(width, dtype=torch.long)
        Path("/proc/self/clear_refs").write_text("5")
        before = memory_kib("VmRSS")
        choose(torch.zeros(width), logits, nodes, AnyToken(512, 3), width, 512)
        grown = (memory_kib("VmHWM") - before) / 1024
        print(f"{width} x 512 candidates a round: the peak grew by {grown:.1f} MiB")


def memory_kib(name: str) -> int:
    """A figure of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


if __name__ == "__main__":
    if sys.argv[1:] == ["memory"]:
        memory()
        sys.exit()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 128)
