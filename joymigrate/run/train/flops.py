"""Model FLOPs and their share of a card's peak (MFU), under one stated convention.

Per token: 6 x N for the matrix parameters N (embeddings looked up are not multiplied, a tied or
separate head is), plus 6 x layers x heads x head size x length for causal attention, counted once.
Recomputation is not counted. Peaks are dense figures per model of a card, from its chip's data; a
card without one gives "unknown", never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from joymigrate.chips import Chip, all_chips
from joymigrate.device import Device
from joymigrate.run.train.models import unwrap

CONVENTION = "6N + 6·layers·heads·head_dim·length per token; recomputation not counted"


@dataclass(frozen=True, slots=True)
class StepFlops:
    """FLOPs of one token in forward and backward."""

    per_token: float
    parameters: int

    def mfu(self, tokens_per_s: float, peak: float | None) -> float | None:
        """Share of `peak` FLOP/s of all cards together; None where the peak is unknown."""
        return None if not peak else tokens_per_s * self.per_token / peak


def work_of(model: Any, length: int) -> StepFlops:
    """The work of a model on sequences of `length` tokens, counted before it is distributed."""
    inner = unwrap(model)
    counted = sum(p.numel() for p in model.parameters())
    lookup = lookups(inner)
    matrices = sum(p.numel() for p in model.parameters() if p.ndim >= 2) - lookup
    config = getattr(inner, "config", None)
    attention = 0.0
    if config is not None and hasattr(config, "get_text_config"):
        text = config.get_text_config()
        layers = getattr(text, "num_hidden_layers", 0) or 0
        heads = getattr(text, "num_attention_heads", 0) or 0
        size = getattr(text, "head_dim", None) or (
            getattr(text, "hidden_size", 0) // heads if heads else 0
        )
        attention = 6.0 * layers * heads * size * length
    return StepFlops(6.0 * matrices + attention, counted)


def lookups(model: Any) -> int:
    """Parameters of an embedding that is only looked up: a tied one is the head's matrix too."""
    find = getattr(model, "get_input_embeddings", None)
    try:
        embedding = find() if find is not None else None
    except (NotImplementedError, AttributeError):
        return 0
    if embedding is None or getattr(model.config, "tie_word_embeddings", False):
        return 0
    return sum(p.numel() for p in embedding.parameters())


def peak_of(device: Device, dtype: str) -> tuple[float | None, str]:
    """Peak FLOP/s of one card for a type, and the name that it was found by."""
    if device.is_cpu:
        return None, "cpu"
    name = device.name()
    return known_peak(name, dtype, all_chips().values()), name


def known_peak(name: str, dtype: str, chips: Iterable[Chip]) -> float | None:
    """The peak that some chip's data has for a card called `name`."""
    for chip in chips:
        sku = chip.sku(name)
        if sku is not None and dtype in sku.peak_tflops:
            return float(sku.peak_tflops[dtype]) * 1e12
    return None
