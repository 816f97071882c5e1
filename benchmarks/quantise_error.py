"""What the searches gain over rounding to nearest, with and without planted outlier channels.

    python benchmarks/quantise_error.py
    python benchmarks/quantise_error.py --hidden 768 --layers 4 --times 60

A random Llama is quantised with and without the search. Outliers are planted so that the model
computes the same: some channels of every norm's weight are made larger, and the weights that meet
them as much smaller. The error is each layer's own, ‖quantised - plain‖ / ‖what the layer adds‖, as
the written files compute it on samples that were not calibrated with. Bounds: w8a8 at most 1/3 of
naive W8A8 with outliers, w4a16 at most 1/2 of rounding to nearest, both at most 1.05 without.
Exit 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from joymigrate.chips import hide_driverless

hide_driverless()

BOUNDS = {("w8a8", True): 1 / 3, ("w4a16", True): 1 / 2}
CHANNELS = 8
VOCABULARY = 512


def build(folder: Path, arguments: argparse.Namespace, *, outliers: bool) -> None:
    """A random model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    hidden = arguments.hidden
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=arguments.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(config).float()
    channels = torch.randperm(hidden)[:CHANNELS] if outliers else torch.tensor([], dtype=torch.long)
    with torch.no_grad():
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            plant(layer.input_layernorm, channels, arguments.times,
                  attention.q_proj, attention.k_proj, attention.v_proj)  # fmt: skip
            plant(layer.post_attention_layernorm, channels, arguments.times,
                  mlp.gate_proj, mlp.up_proj)  # fmt: skip
    model.save_pretrained(folder)


def plant(norm: Any, channels: Any, times: float, *linears: Any) -> None:
    """Larger channels, and as much smaller weights."""
    norm.weight[channels] *= times
    for linear in linears:
        linear.weight[:, channels] /= times


def errors(model: Path, samples: Any, scheme: str, *, search: bool) -> tuple[list[float], float]:
    """Every layer's own error, and the divergence of the outputs in nats."""
    from joymigrate.run.train.quantise.options import QuantiseOptions
    from joymigrate.run.train.quantise.verdict import judge
    from joymigrate.run.train.quantise.work import quantise

    seen, held, _ = samples.split()
    out = model.parent / "out"
    quantise(model, out, seen, QuantiseOptions(scheme=scheme, search=search), replace_out=True)
    _, document = judge(model, out, held)
    found = document["quantise"]
    return [one["own"] for one in found["errors"]], found["kl"]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--times", type=float, default=60.0, help="size of the outliers")
    arguments = parser.parse_args()
    import torch

    from joymigrate.run.train.quantise.data import read_samples

    torch.set_num_threads(1)  # small products are slower on several
    missed = False
    print(
        f"{'scheme':<8}{'outliers':<10}{'nearest':>9}{'searched':>10}{'ratio':>8}{'bound':>8}  KL"
    )
    with tempfile.TemporaryDirectory() as place:
        source = random.Random(0)
        data = Path(place) / "samples.jsonl"
        rows = [[source.randrange(VOCABULARY) for _ in range(64)] for _ in range(8)]
        data.write_text("".join(json.dumps({"tokens": row}) + "\n" for row in rows))
        for outliers in (False, True):
            model = Path(place) / f"model{outliers}"
            build(model, arguments, outliers=outliers)
            samples = read_samples(data, model)
            for scheme in ("w8a8", "w4a16"):
                plain, plain_kl = errors(model, samples, scheme, search=False)
                found, kl = errors(model, samples, scheme, search=True)
                worst = max(range(len(found)), key=lambda i: found[i] / plain[i])
                ratio, bound = found[worst] / plain[worst], BOUNDS.get((scheme, outliers), 1.05)
                missed |= ratio > bound
                print(
                    f"{scheme:<8}{outliers!s:<10}{plain[worst]:>9.4f}{found[worst]:>10.4f}"
                    f"{ratio:>8.3f}{bound:>8.3f}  {plain_kl:.2e} → {kl:.2e}"
                )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
