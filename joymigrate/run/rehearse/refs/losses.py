"""Losses: cross entropy in its fused forms, and the backward operators of torch_npu's autograd.

The `aten::` twins of the loss backwards are what older formulas call; both names do the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import vjp, working

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
FORMULAS = "op-plugin derivatives.yaml"
REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
Maybe = Tensor | None


def _one(gradients: tuple[Maybe, ...]) -> Tensor:
    assert gradients[0] is not None
    return gradients[0]


@reference("l1_loss_backward", source=FORMULAS)
def l1_loss_backward(grad_output: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    target = working(target)
    return _one(
        vjp(lambda a: F.l1_loss(a, target, reduction=REDUCTIONS[reduction]), (x,), grad_output)
    )


def kl_div_of(x: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    terms = torch.xlogy(target, target) - target * x
    if log_target:
        terms = target.exp() * (target - x)
    return {0: terms, 1: terms.mean(), 2: terms.sum()}[reduction]


@reference("kl_div_backward", source=FORMULAS)
def kl_div_backward(
    grad_output: Tensor, x: Tensor, target: Tensor, reduction: int, log_target: bool
) -> Tensor:
    wide = working(target)
    return _one(vjp(lambda a: kl_div_of(a, wide, reduction, log_target), (x,), grad_output))


@reference("kl_div_target_backward", source=FORMULAS)
def kl_div_target_backward(
    grad_output: Tensor, x: Tensor, target: Tensor, reduction: int, log_target: bool
) -> Tensor:
    wide = working(x)
    return _one(vjp(lambda t: kl_div_of(wide, t, reduction, log_target), (target,), grad_output))


@reference("npu_binary_cross_entropy_with_logits_backward", source=FORMULAS)
def npu_binary_cross_entropy_with_logits_backward(
    grad_output: Tensor,
    x: Tensor,
    target: Tensor,
    weight_opt: Maybe,
    pos_weight_opt: Maybe,
    reduction: int,
) -> Tensor:
    weight = None if weight_opt is None else working(weight_opt)
    pos_weight = None if pos_weight_opt is None else working(pos_weight_opt)
    wide = working(target)

    def loss(a: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            a, wide, weight, pos_weight=pos_weight, reduction=REDUCTIONS[reduction]
        )

    return _one(vjp(loss, (x,), grad_output))


@reference(
    "npu_softmax_cross_entropy_with_logits",
    source="op-plugin （beta）torch_npu-npu_softmax_cross_entropy_with_logits.md",
)
def npu_softmax_cross_entropy_with_logits(x: Tensor, labels: Tensor) -> Tensor:
    """-Σ labels·log softmax(x), per row."""
    return -(working(labels) * working(x).log_softmax(-1)).sum(-1).to(x.dtype)


@reference("npu_softmax_cross_entropy_with_logits_backward", source=FORMULAS)
def npu_softmax_cross_entropy_with_logits_backward(
    grad: Tensor, x: Tensor, labels: Tensor
) -> Tensor:
    """(softmax(x) - labels)·grad: exact for labels that add up to one, as the kernel assumes."""
    rows = working(grad).unsqueeze(-1)
    return ((working(x).softmax(-1) - working(labels)) * rows).to(x.dtype)


def _smooth(
    x: Tensor, target: Tensor, weight: Maybe, reduction: str, ignore_index: int, smoothing: float
) -> Tensor:
    """torch's cross entropy; a negative ignore_index means that nothing is ignored."""
    index = ignore_index if ignore_index >= 0 else -100
    return F.cross_entropy(
        x,
        target.long(),
        None if weight is None else working(weight),
        ignore_index=index,
        reduction=reduction,
        label_smoothing=smoothing,
    )


@reference(
    "npu_cross_entropy_loss",
    source=DOCS.format("npu_cross_entropy_loss"),
    without="lse_square_scale_for_zloss return_zloss",
)
def npu_cross_entropy_loss(
    x: Tensor,
    target: Tensor,
    weight: Maybe,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss ([1], or [N] unreduced), log probabilities, and two outputs that are not in use yet."""
    wide = working(x)
    loss = _smooth(wide, target, weight, reduction, ignore_index, label_smoothing)
    loss = loss.reshape(-1).to(x.dtype)
    return loss, wide.log_softmax(-1).to(x.dtype), torch.zeros_like(loss), x.new_zeros(len(x))


@reference("npu_cross_entropy_loss_backward", source=DOCS.format("npu_cross_entropy_loss"))
def npu_cross_entropy_loss_backward(
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Maybe,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """Gradient of the logits, from the log probabilities (whose log softmax is itself)."""

    def loss(log_probs: Tensor) -> Tensor:
        found = _smooth(log_probs, target, weight, reduction, ignore_index, label_smoothing)
        return found.reshape(-1)

    return _one(vjp(loss, (log_prob,), grad_loss.reshape(-1)))


@reference("npu_fused_linear_online_max_sum", source=DOCS.format("npu_fused_linear_online_max_sum"))
def npu_fused_linear_online_max_sum(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One rank's part of a vocabulary-parallel loss: row maximum, sum of exponentials, target's
    logit, packed mask of targets of other ranks, targets counted from here, and the logits."""
    logits = working(x) @ working(weight).T
    maximum = logits.amax(-1)
    shifted = logits - maximum.unsqueeze(-1)
    outside = (target < vocab_start_index) | (target > vocab_end_index)
    masked = torch.where(outside, 0, target - vocab_start_index)
    chosen = shifted.gather(-1, masked.long().unsqueeze(-1)).squeeze(-1)
    predicted = torch.where(outside, torch.zeros_like(chosen), chosen)
    return (
        maximum.float(),
        shifted.exp().sum(-1).float(),
        predicted.float(),
        _bytes(outside),
        masked.to(target.dtype),
        logits.to(x.dtype) if return_logits else x.new_empty(0),
    )


def _bytes(mask: Tensor) -> Tensor:
    """Booleans in as few bytes as hold them, first element in the highest bit."""
    padded = F.pad(mask.to(torch.uint8), (0, -len(mask) % 8)).reshape(-1, 8)
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8)
    return (padded * weights).sum(1).to(torch.uint8)


def _from_bytes(packed: Tensor, count: int) -> Tensor:
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8)
    return ((packed.reshape(-1, 1) >> shifts) & 1).reshape(-1)[:count].bool()


@reference(
    "npu_fused_cross_entropy_loss_with_max_sum",
    source=DOCS.format("npu_fused_cross_entropy_loss_with_max_sum"),
)
def npu_fused_cross_entropy_loss_with_max_sum(
    logits_max: Tensor,
    sum_exp_logits: Tensor,
    predicted_logits: Tensor,
    vocab_parallel_logits: Maybe,
) -> tuple[Tensor, Tensor]:
    """Loss per row, and this rank's softmax when its logits are given."""
    loss = sum_exp_logits.log() - predicted_logits
    if vocab_parallel_logits is None:
        return loss, torch.empty(0)
    weights = (working(vocab_parallel_logits) - logits_max.unsqueeze(-1)).exp()
    return loss, (weights / sum_exp_logits.unsqueeze(-1)).float()


@reference(
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
    source=DOCS.format("npu_fused_linear_cross_entropy_loss_with_max_sum_backward"),
)
def npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor]:
    """Gradients of the input and of this rank's weight."""
    if given.softmax is None:
        if given.logits_max is None or given.sum_exp_logits is None:
            raise RuntimeError("either softmax or logits_max and sum_exp_logits must be given")
        logits = working(given.x) @ working(given.weight).T
        wide = (logits - given.logits_max.unsqueeze(-1)).exp() / given.sum_exp_logits.unsqueeze(-1)
    else:
        wide = working(given.softmax).clone()
    mine = ~_from_bytes(given.target_mask, len(given.x))
    wide[torch.arange(len(given.x)), given.masked_target.long()] -= mine.to(wide.dtype)
    scaled = wide * working(given.grad).unsqueeze(-1)
    dx = (scaled @ working(given.weight)).to(given.x.dtype)
    return dx, (scaled.T @ working(given.x)).to(given.weight.dtype)
