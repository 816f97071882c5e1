"""A language model of transformers (the kind of Llama, Mistral, Qwen2 and Qwen3) as a `Writer`.

The prompt goes through the model itself, once; its keys and values are kept once a request. The
codes that beams write go through the model's own layers, with `attend` between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.beam.prefix import attend, remember

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")
Pair = tuple[Tensor, Tensor]


@dataclass(slots=True)
class CausalState:
    """One request: keys and values of the prompt by layer [P, M, D], of the beams [W, S, M, D]."""

    prefix: list[Pair]
    own: list[Pair] = field(default_factory=list)
    length: int = 0


class CausalWriter:
    """`model` is an AutoModelForCausalLM; prompts are lists of token ids, not empty."""

    def __init__(self, model: Any) -> None:
        self.model, self.body = model, getattr(model, "model", None)
        layers = getattr(self.body, "layers", None)
        plain = layers is not None and all(
            hasattr(layer, "self_attn")
            and all(hasattr(layer.self_attn, part) for part in PARTS)
            and hasattr(layer, "post_attention_layernorm")
            and not hasattr(layer, "pre_feedforward_layernorm")
            for layer in layers
        )
        window = getattr(model.config, "sliding_window", None)
        if not plain or not hasattr(self.body, "rotary_emb") or has_window(model.config, window):
            raise JoyError(
                f"{type(model).__name__} is not of the kind that beam search writes with",
                help="models like Llama, Mistral, Qwen2 and Qwen3, without sliding windows",
            )
        self.layers = list(layers or ())

    @torch.no_grad()
    def begin(self, prompts: Sequence[Sequence[int]]) -> list[tuple[CausalState, Tensor]]:
        """Read the prompts, one after another."""
        found = []
        for prompt in prompts:
            if not len(prompt):
                raise JoyError("a prompt has one token at least")
            ids = torch.tensor([list(prompt)], device=self.model.device)
            made = self.model(input_ids=ids, use_cache=True, logits_to_keep=1)
            prefix = [
                (layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1))
                for layer in made.past_key_values.layers
            ]
            found.append((CausalState(prefix, length=len(prompt)), made.logits[0, -1]))
        return found

    @torch.no_grad()
    def step(
        self,
        states: Sequence[CausalState],
        parents: Sequence[Tensor],
        tokens: Sequence[Tensor],
    ) -> list[Tensor]:
        """All beams of all requests go through each layer together, but for attention."""
        counts = [len(one) for one in tokens]
        x = self.body.embed_tokens(torch.cat(list(tokens)))  # type: ignore[union-attr]
        places = [
            torch.full_like(one, state.length) for state, one in zip(states, tokens, strict=True)
        ]
        turned = self.body.rotary_emb(x[None], torch.cat(places)[None])  # type: ignore[union-attr]
        cos, sin = (t[0, :, None] for t in turned)
        for number, layer in enumerate(self.layers):
            inner, part = layer.input_layernorm(x), layer.self_attn
            q, k, v = (
                getattr(part, name)(inner).view(len(x), -1, part.head_dim) for name in PARTS[:3]
            )
            if hasattr(part, "q_norm"):
                q, k = part.q_norm(q), part.k_norm(k)
            q, k = (t * cos + half_turned(t) * sin for t in (q, k))
            rows = zip(*(torch.split(t, counts) for t in (q, k, v)), strict=True)
            mixed = [
                self.mix(state, number, parent, row, part.scaling)
                for state, parent, row in zip(states, parents, rows, strict=True)
            ]
            x = x + part.o_proj(torch.cat(mixed).flatten(1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        for state in states:
            state.length += 1
        logits = self.model.lm_head(self.body.norm(x))  # type: ignore[union-attr]
        return list(torch.split(logits, counts))

    def mix(
        self,
        state: CausalState,
        number: int,
        parents: Tensor,
        rows: tuple[Tensor, ...],
        scale: float,
    ) -> Tensor:
        """Attention of one request's beams; their new keys and values are remembered."""
        q, k, v = rows
        own = remember(state.own, number, parents, (k[:, None], v[:, None]))
        return attend(q, state.prefix[number], own, scale)


def has_window(config: Any, window: int | None) -> bool:
    """Whether a layer sees a window only."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    return window is not None and getattr(config, "use_sliding_window", True)


def half_turned(x: Tensor) -> Tensor:
    """The other half of a rotation: [-x2, x1]."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)
