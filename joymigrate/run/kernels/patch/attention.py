"""Attention, through transformers' own AttentionInterface.

A model whose attention modules go by the interface gets the name of ours in its configuration;
masks are made as for SDPA. What our operator has no word for goes to SDPA as before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.run.kernels.mask import Causal, Dense, Full, Mask
from joymigrate.run.kernels.patch.site import PatchSite, Undo
from joymigrate.run.kernels.registry import op

OP = "attention"
NAME = "joymigrate"
BEFORE = ("sdpa", "eager")  # implementations that a model has by default
# Attributes of attention that adds to the scores or to the softmax's sum.
OTHER = {"attn_logit_softcapping": "soft-capped scores", "sinks": "sinks", "softcap": "soft caps"}
LENGTH = 1024  # of a typical call


def sites(model: nn.Module, request: str | None) -> Iterator[PatchSite]:
    """The attention modules of every part of the model that has a configuration of its own."""
    seen: set[int] = set()
    for module in model.modules():
        config = getattr(module, "config", None)
        can_set = getattr(type(module), "_can_set_attn_implementation", None)
        if config is None or can_set is None or id(config) in seen:
            continue
        seen.add(id(config))
        found = [(n, m) for n, m in model.named_modules() if is_attention(m, config)]
        reason = why_not(config, can_set, [m for _, m in found])
        switch = functools.partial(use, config, request)
        for number, (name, attention) in enumerate(found):
            if reason is not None:
                yield PatchSite(name, OP, reason=reason)
                continue
            # The configuration is shared: the first module switches all of them.
            replace = switch if number == 0 else nothing_more
            yield PatchSite(
                name, OP, replace, shape=typical(attention, config), variant=variant(attention)
            )


def is_attention(module: nn.Module, config: Any) -> bool:
    """An attention module that follows this configuration."""
    named = "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()
    return named and getattr(module, "config", None) is config and hasattr(module, "is_causal")


def why_not(config: Any, can_set: Any, modules: list[nn.Module]) -> str | None:
    """Why attention under this configuration keeps its implementation."""
    if not can_set():
        return "the model does not go by transformers' AttentionInterface"
    now = getattr(config, "_attn_implementation", None)
    if now == NAME:
        return "goes by this registry already"
    if now not in BEFORE:
        return f"the model was told to use {now}"
    if getattr(config, "output_attentions", False):
        return "attention weights are asked for"
    for name, what in OTHER.items():
        if getattr(config, name, None) or any(getattr(m, name, None) is not None for m in modules):
            return f"has {what}, which the operator does not know"
    return None


def variant(module: nn.Module) -> str:
    return "causal" if getattr(module, "is_causal", True) else "full"


def typical(module: nn.Module, config: Any) -> tuple[int, ...]:
    """Shape of a typical call, as the operator describes it."""
    heads = int(getattr(config, "num_attention_heads", 0) or 8)
    groups = int(getattr(module, "num_key_value_groups", 0) or 1)
    size = int(getattr(module, "head_dim", 0) or 64)
    return (1, heads, LENGTH, LENGTH, heads // groups, size)


def use(config: Any, request: str | None) -> Undo:
    """Register ours and name it in the configuration."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    name = NAME if request is None else f"{NAME}_{request}"
    AttentionInterface.register(name, functools.partial(forward, request=request))
    AttentionMaskInterface.register(name, sdpa_mask)
    before = config._attn_implementation_internal
    config._attn_implementation_internal = name

    def undo() -> None:
        config._attn_implementation_internal = before

    return undo


def nothing_more() -> Undo:
    return lambda: None


def forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    request: str | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' calling convention around our operator; [B, N, S, D] in, [B, S, N, D] out."""
    given = attention_mask is not None and attention_mask.dtype != torch.bool
    if dropout or given or kwargs.get("position_bias") is not None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask,
            dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs,
        )  # fmt: skip
        return found
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask: Mask = Causal() if causal and query.shape[2] > 1 else Full()
    if attention_mask is not None:
        mask = Dense(attention_mask[..., : key.shape[2]])
    y: Tensor = op(OP)(query, key, value, mask, scale=scaling, request=request)
    return y.transpose(1, 2).contiguous(), None
