"""Tiny models for quantising: with planted outlier channels, and samples of tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

from tests.run.serve.engine.models import VOCABULARY, save

OUTLIERS = (3, 17, 30, 45)
TIMES = 60.0


def samples(path: Path, count: int = 8, length: int = 32, seed: int = 0) -> Path:
    """A JSONL file of random tokens."""
    source = random.Random(seed)
    lines = [
        json.dumps({"tokens": [source.randrange(VOCABULARY) for _ in range(length)]})
        for _ in range(count)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def plant(model: Any, channels: tuple[int, ...] = OUTLIERS, times: float = TIMES) -> None:
    """Make some channels of what the norms give `times` larger, and the weights that meet them as
    much smaller: the model computes the same, and its inputs have outlier channels."""
    with torch.no_grad():
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for norm, linears in (
                (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
                (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
            ):
                norm.weight[list(channels)] *= times
                for linear in linears:
                    linear.weight[:, list(channels)] /= times


def tiny(folder: Path, kind: str = "qwen2", *, outliers: bool = False, **more: Any) -> Any:
    """A tiny model in a folder; with `outliers` planted ones."""
    model = save(folder, kind, **more)
    if outliers:
        plant(model)
        model.save_pretrained(folder)
    return model
