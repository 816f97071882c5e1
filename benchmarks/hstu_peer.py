"""HSTU beside its published PyTorch code: the same weights, states, gradients, and time a token.

    PYTHON benchmarks/hstu_peer.py --checkout DIR

PYTHON has fbgemm-gpu-cpu and torchrec beside torch; DIR is
github.com/facebookresearch/generative-recommenders (2e81fab was measured). Its class HSTU is taken
as it is, and gets the weights of ours; nothing of it is copied. Lengths are those of users who
watch by Zipf, at most 200 events, as in the paper's section 4.1.1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from joymigrate.run.train.recommendation.hstu import Hstu
from joymigrate.run.train.recommendation.inputs import InputShape

LENGTH, SIZE, HEADS, LAYERS, ROWS, TURNS = 200, 64, 2, 2, 64, 5


def theirs() -> Any:
    """The published model of the same sizes."""
    import fbgemm_gpu  # noqa: F401
    from generative_recommenders.research.modeling.sequential import (
        embedding_modules,
        hstu,
        input_features_preprocessors,
        output_postprocessors,
    )
    from generative_recommenders.research.rails.similarities import dot_product_similarity_fn

    return hstu.HSTU(
        max_sequence_len=LENGTH, max_output_len=0, embedding_dim=SIZE, num_blocks=LAYERS,
        num_heads=HEADS, linear_dim=SIZE // HEADS, attention_dim=SIZE // HEADS,
        normalization="rel_bias", linear_config="uvqk", linear_activation="silu",
        linear_dropout_rate=0.0, attn_dropout_rate=0.0,
        embedding_module=embedding_modules.LocalEmbeddingModule(10, SIZE),
        similarity_module=dot_product_similarity_fn.DotProductSimilarity(),
        input_features_preproc_module=
        input_features_preprocessors.LearnablePositionalEmbeddingInputFeaturesPreprocessor(
            max_sequence_len=LENGTH, embedding_dim=SIZE, dropout_rate=0.0),
        output_postproc_module=output_postprocessors.L2NormEmbeddingPostprocessor(SIZE),
        verbose=False,
    )  # fmt: skip


def pairs(ours: Hstu, other: Any) -> list[tuple[str, torch.Tensor, torch.Tensor, bool]]:
    """Our parameters and theirs; True where theirs is transposed."""
    found = [("positions", ours.positions.weight,
              other._input_features_preproc._pos_emb.weight, False)]  # fmt: skip
    for number, (mine, one) in enumerate(
        zip(ours.layers, other._hstu._attention_layers, strict=True)
    ):
        found += [
            (f"{number} inner", mine.inner.weight, one._uvqk, True),
            (f"{number} outer", mine.outer.weight, one._o.weight, False),
            (f"{number} outer bias", mine.outer.bias, one._o.bias, False),
            (f"{number} place", mine.by_place, one._rel_attn_bias._pos_w, False),
            (f"{number} time", mine.by_time, one._rel_attn_bias._ts_w, False),
        ]
    return found


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Events [B, L, D], their mask and times; times behind the last event repeat it."""
    draw = np.random.default_rng(0)
    lengths = torch.from_numpy(np.minimum(LENGTH, draw.zipf(1.3, ROWS) * 8))
    mask = torch.arange(LENGTH) < lengths[:, None]
    gaps = torch.from_numpy(draw.integers(1, 90_000, (ROWS, LENGTH))) * mask
    events = torch.from_numpy(draw.normal(size=(ROWS, LENGTH, SIZE)).astype(np.float32)) * 0.1
    return events * mask[..., None], mask, 1_000_000_000 + gaps.cumsum(1)


def compare(ours: Hstu, other: Any) -> None:
    """States, and gradients of all parameters and of the events."""
    events, mask, times = batch()
    with torch.no_grad():
        for _, mine, one, turned in pairs(ours, other):
            one.copy_((mine.T if turned else mine).reshape(one.shape))
    weight = torch.randn(events.shape, generator=torch.Generator().manual_seed(0)) * mask[..., None]
    one, two = (events.clone().requires_grad_() for _ in range(2))
    states = ours.states(one, mask, times)
    (states * weight).sum().backward()
    found = run_theirs(other, two, mask, times)
    (found * weight).sum().backward()
    apart = ((states - found).detach() * mask[..., None]).abs().max()
    print(f"states of {int(mask.sum())} events: largest difference {apart:.1e} (of length 1)")
    worst, slope = 0.0, 0.0
    every = [(mine.grad, one.grad.T if turned else one.grad)
             for _, mine, one, turned in pairs(ours, other)]  # fmt: skip
    for a, b in [*every, (one.grad, two.grad)]:
        scale = float(b.abs().max())
        worst = max(worst, float((a.reshape(-1) - b.reshape(-1)).abs().max()) / scale)
        slope = max(slope, scale)
    print(f"gradients of {len(every)} parameters and the events: largest difference {worst:.1e} "
          f"of the largest of each")  # fmt: skip


def run_theirs(
    other: Any, events: torch.Tensor, mask: torch.Tensor, times: torch.Tensor
) -> torch.Tensor:
    """Their states [B, L, D]; an id of 0 is padding there."""
    found: torch.Tensor = other(
        past_lengths=mask.sum(1), past_ids=mask.long(), past_embeddings=events,
        past_payloads={"timestamps": times},
    )  # fmt: skip
    return found


def speed(ours: Hstu, other: Any) -> None:
    """Processor's time of forward and backward."""
    events, mask, times = batch()
    useful = int(mask.sum())

    def spent(act: Callable[[], torch.Tensor]) -> float:
        found = []
        for _ in range(TURNS):
            start = time.process_time()
            act().square().sum().backward()
            found.append(time.process_time() - start)
        return min(found)

    mine = spent(lambda: ours.states(events.clone().requires_grad_(), mask, times))
    one = spent(lambda: run_theirs(other, events.clone().requires_grad_(), mask, times))
    print(
        f"{ROWS} users, {useful} of {mask.numel()} places used: {1e6 * mine / useful:.1f} us a "
        f"token, theirs {1e6 * one / useful:.1f}: {one / mine:.2f}x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True)
    options = parser.parse_args()
    sys.path.insert(0, str(options.checkout))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ours = Hstu(InputShape(0, 0, SIZE, (LENGTH,)), LAYERS, HEADS, 0.0, 128)
    other = theirs()
    compare(ours, other)
    speed(ours, other)


if __name__ == "__main__":
    main()
