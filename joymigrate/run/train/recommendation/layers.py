"""Parts that several models share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def mlp(inputs: int, widths: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Linear layers with ReLU between them, and behind the last one."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        inputs = width
    return nn.Sequential(*layers)


def head(inputs: int, widths: Sequence[int], targets: int, dropout: float = 0.0) -> nn.Sequential:
    """An MLP with one logit per target."""
    last = widths[-1] if widths else inputs
    return nn.Sequential(*mlp(inputs, widths, dropout), nn.Linear(last, targets))


def pairwise_sum(fields_BFD: Tensor) -> Tensor:
    """The sum of <v_i, v_j> over all pairs i < j (Rendle, 2010, eq. 5) [B]."""
    total = fields_BFD.sum(1).square() - fields_BFD.square().sum(1)
    return 0.5 * total.sum(-1)


def compare_events(query_BD: Tensor, events_BLD: Tensor) -> Tensor:
    """DIN's input of the activation unit: query, event, difference, product [B, L, 4 D]."""
    query = query_BD[:, None].expand_as(events_BLD)
    return torch.cat([query, events_BLD, query - events_BLD, query * events_BLD], -1)


class ActivationUnit(nn.Module):
    """A weight for every event, given the candidate (Zhou et al., 2018, figure 2) [B, L]."""

    def __init__(self, dim: int, widths: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 4 * dim
        for width in widths:
            layers += [nn.Linear(inputs, width), nn.Sigmoid()]
            inputs = width
        self.layers = nn.Sequential(*layers, nn.Linear(inputs, 1))

    def forward(self, query_BD: Tensor, events_BLD: Tensor) -> Tensor:
        """Weights before any normalisation."""
        weights: Tensor = self.layers(compare_events(query_BD, events_BLD)).squeeze(-1)
        return weights


class AttentionBlock(nn.Module):
    """Self-attention and a feed-forward network, each with a shortcut; a norm before or behind."""

    def __init__(
        self, dim: int, heads: int, hidden: int, dropout: float, *, first: bool, slope: float = 0.0
    ) -> None:
        super().__init__()
        self.first, self.heads, self.dropout = first, heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.output = nn.Linear(dim, dim)
        self.inner, self.outer = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.slope = slope

    def attend(self, query_BLD: Tensor, context_BLD: Tensor, allowed: Tensor) -> Tensor:
        """Multi-head attention; a position that may look at nothing gets zeros."""

        def split(x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], self.heads, x.shape[-1] // self.heads).transpose(1, 2)

        mixed = nn.functional.scaled_dot_product_attention(
            split(self.query(query_BLD)),
            split(self.key(context_BLD)),
            split(self.value(context_BLD)),
            attn_mask=allowed[:, None],
            dropout_p=self.dropout if self.training else 0.0,
        )
        merged: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return merged

    def feed(self, x_BLD: Tensor) -> Tensor:
        """The feed-forward network."""
        hidden = nn.functional.leaky_relu(self.inner(x_BLD), self.slope)
        found: Tensor = self.outer(self.drop(hidden))
        return found

    def drop(self, x: Tensor) -> Tensor:
        """Dropout while training."""
        return nn.functional.dropout(x, self.dropout, self.training)

    def forward(self, x_BLD: Tensor, allowed_BLL: Tensor) -> Tensor:
        """`allowed` says which event each one may look at."""
        if self.first:
            query = self.norm_1(x_BLD)
            x_BLD = query + self.drop(self.attend(query, x_BLD, allowed_BLL))
            inner = self.norm_2(x_BLD)
            return inner + self.drop(self.feed(inner))  # type: ignore[no-any-return]
        x_BLD = self.norm_1(x_BLD + self.drop(self.attend(x_BLD, x_BLD, allowed_BLL)))
        found: Tensor = self.norm_2(x_BLD + self.drop(self.feed(x_BLD)))
        return found


def visible(mask_BL: Tensor, *, causal: bool) -> Tensor:
    """Which event may look at which [B, L, L]; padding looks at itself: a softmax needs one."""
    length = mask_BL.shape[1]
    allowed = mask_BL[:, None, :].expand(-1, length, -1)
    if causal:
        allowed = (
            allowed & torch.ones(length, length, dtype=torch.bool, device=mask_BL.device).tril()
        )
    return allowed | torch.eye(length, dtype=torch.bool, device=mask_BL.device)
