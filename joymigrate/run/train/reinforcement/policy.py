"""GRPO: how much better than its group an answer is, and the loss that follows from it.

Shao et al., DeepSeekMath, 2024, eq. 3 and 4 (arXiv 2402.03300). N answers in groups of G to one
prompt each, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def advantages(rewards_N: Tensor, group: int, *, scale: bool = True) -> Tensor:
    """Each reward against its group's mean [N]; with `scale` over the group's deviation.

    The deviation is that of a sample (G - 1), plus 1e-4, as TRL has it.
    """
    by_group = rewards_N.view(-1, group)
    found = by_group - by_group.mean(1, keepdim=True)
    if scale:
        spread = by_group.std(1, keepdim=True) if group > 1 else torch.zeros_like(found)
        found = found / (spread + 1e-4)
    return found.flatten()


def answer_losses(
    logs_NT: Tensor,
    before_NT: Tensor,
    advantages_N: Tensor,
    mask_NT: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    beta: float = 0.0,
    reference_NT: Tensor | None = None,
) -> Tensor:
    """The loss of each answer [N]: the mean over its tokens of the clipped objective.

    `logs` are the policy's log-probabilities, `before` those of who wrote the answers; ratios are
    clipped to 1 - `low` and 1 + `high`. With `beta`, the estimate exp(d) - d - 1 of the divergence
    from a reference is added, d its log-probability less the policy's.
    """
    ratio = (logs_NT - before_NT).exp()
    gain = advantages_N[:, None]
    losses = -torch.minimum(ratio * gain, ratio.clamp(1 - low, 1 + high) * gain)
    if beta and reference_NT is not None:
        apart = reference_NT - logs_NT
        losses = losses + beta * (apart.exp() - apart - 1)
    return (losses * mask_NT).sum(1) / mask_NT.sum(1).clamp(min=1)


def pair_losses(margin_B: Tensor, kind: str, beta: float, smoothing: float = 0.0) -> Tensor:
    """DPO's loss of each pair [B]: sigmoid (Rafailov et al., 2023), ipo or hinge.

    `margin` is by how much more the better answer's log-probability gained against the reference
    than the worse one's; `smoothing` is the share of pairs that are taken to be the wrong way.
    """
    if kind == "ipo":
        return (margin_B - 1 / (2 * beta)).square()
    if kind == "hinge":
        return torch.relu(1 - beta * margin_B)
    log = torch.nn.functional.logsigmoid
    return -(log(beta * margin_B) * (1 - smoothing) + log(-beta * margin_B) * smoothing)
