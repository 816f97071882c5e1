"""Losses that the chip lacks, and what their autograd formulas call."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.fill.declare import fill

MEAN = 1  # torch's number of that `reduction`


def margins(x: Tensor, target: Tensor, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of scores, their targets, and margin - x_target + x_j with zeros at the target."""
    rows = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    labels = target.reshape(-1, 1)
    gap = margin - rows.gather(1, labels) + rows
    gap = gap.clamp(min=0).scatter(1, labels, 0.0)
    return rows, labels, gap


@fill("multi_margin_loss_backward multi_margin_loss_backward.grad_input")
def multi_margin_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """The gradient: each violated margin pushes its class down and the target up."""
    rows, labels, gap = margins(x, target, margin)
    slope = (2 * gap if p == 2 else (gap > 0).to(rows.dtype)) / rows.shape[1]
    if weight is not None:
        slope = slope * weight.index_select(0, labels.flatten()).reshape(-1, 1)
    slope = slope.scatter_add(1, labels, -slope.sum(1, keepdim=True))
    scale = grad / rows.shape[0] if reduction == MEAN else grad.reshape(-1, 1)
    return (slope * scale).reshape(x.shape)


@fill("multilabel_margin_loss_backward multilabel_margin_loss_backward.grad_input")
def multilabel_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """The gradient over pairs of a listed class and one that is not listed.

    The list of classes in `target` ends with the first negative number. Memory: rows x classes^2.
    """
    rows = x.reshape(-1, x.shape[-1])
    labels = target.reshape(rows.shape)
    others = 1 - is_target.reshape(rows.shape).to(rows.dtype)
    listed = ((labels < 0).to(torch.int32).cumsum(1) == 0).to(rows.dtype)
    places = labels.clamp(min=0)
    gap = 1 - rows.gather(1, places)[:, :, None] + rows[:, None, :]
    hit = (gap > 0).to(rows.dtype) * listed[:, :, None] * others[:, None, :]
    slope = hit.sum(1).scatter_add(1, places, -hit.sum(2)) / rows.shape[1]
    scale = grad / rows.shape[0] if reduction == MEAN else grad.reshape(-1, 1)
    return (slope * scale).reshape(x.shape)


@fill("_pdist_backward", rtol=5e-6, atol=2e-6)
def pdist_backward(grad: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    """The gradient of the distances between all pairs of rows. Memory: pairs x columns."""
    rows = x.shape[0]
    first, second = torch.ones(rows, rows, device=x.device).triu(1).nonzero().unbind(1)
    difference = x.index_select(0, first) - x.index_select(0, second)
    length = distances.reshape(-1, 1)
    safe = torch.where(length == 0, 1, length)
    size = torch.abs(difference)
    if p == 0:
        return torch.zeros_like(x)
    if p == 1:
        slope = torch.sign(difference)
    elif p == float("inf"):
        slope = torch.sign(difference) * (size == length).to(x.dtype)
    else:
        power = torch.where(size > 0, torch.pow(torch.where(size > 0, size, 1) / safe, p - 1), 0)
        slope = torch.sign(difference) * power
    slope = torch.where(length == 0, 0, slope * grad.reshape(-1, 1))
    result = torch.zeros_like(x).index_add(0, first, slope)
    return result.index_add(0, second, -slope)


@fill("_masked_softmax_backward")
def masked_softmax_backward(
    grad: Tensor, output: Tensor, mask: Tensor, dim: int | None = None
) -> Tensor:
    """Softmax's gradient where the mask lets values through; 0 where it hides them."""
    dim = output.dim() - 1 if dim is None else dim
    shown = ~mask.to(torch.bool)
    kept = torch.where(shown, grad * output, 0)
    return torch.where(shown, kept - output * kept.sum(dim, keepdim=True), 0)
