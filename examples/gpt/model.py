"""A small decoder-only transformer: pre-norm blocks, rotary positions, tied embeddings.

Shapes: B batch, T tokens, D width, H heads, K head width (D = H * K), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class GPTConfig:
    vocab_size: int
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0


def rotary_table(context: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles, each [T, K / 2]."""
    frequency = 10000.0 ** (-torch.arange(0, head_width, 2) / head_width)
    angle = torch.outer(torch.arange(context), frequency)
    return angle.cos(), angle.sin()


def rotate(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Turn pairs of channels by the angle of their position."""
    first, second = x_BHTK.chunk(2, dim=-1)
    turned = (first * cos_TK - second * sin_TK, second * cos_TK + first * sin_TK)
    return torch.cat(turned, dim=-1).type_as(x_BHTK)


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        cos, sin = rotary_table(config.context, config.width // config.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        batch, tokens, width = x_BTD.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x_BTD).chunk(3, dim=-1)
        )
        cos, sin = self.cos[:tokens], self.sin[:tokens]
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin),
            rotate(k, cos, sin),
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.norm1(x_BTD))
        return x_BTD + self.mlp(self.norm2(x_BTD))


class GPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.apply(self.initialise)
        self.head.weight = self.embed.weight

    @staticmethod
    def initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor | None = None):
        """Logits [B, T, V], and the mean loss over targets that are not -100."""
        x_BTD = self.embed(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV = self.head(self.norm(x_BTD))
        if targets_BT is None:
            return logits_BTV, None
        loss = F.cross_entropy(
            logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), ignore_index=-100
        )
        return logits_BTV, loss

    @torch.no_grad()
    def generate(self, tokens_BT: Tensor, count: int) -> Tensor:
        """Append `count` tokens, each the most probable one."""
        for _ in range(count):
            logits, _ = self(tokens_BT[:, -self.config.context :])
            tokens_BT = torch.cat([tokens_BT, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
        return tokens_BT
