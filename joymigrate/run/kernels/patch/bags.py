"""`nn.EmbeddingBag`: pooled rows whose gradient stays on the device."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.run.kernels.operator import CPU
from joymigrate.run.kernels.patch.site import ROWS, PatchSite, is_patched, new_forward
from joymigrate.run.kernels.registry import op

OP = "embedding_bag"
SPARSE_HERE = (CPU, "cuda")  # devices that add sparse gradients


def sites(model: nn.Module, request: str | None) -> Iterator[PatchSite]:
    """Every embedding bag of the model."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.EmbeddingBag):
            continue
        reason = reason_against(module)
        if reason is not None:
            yield PatchSite(name, OP, reason=reason)
            continue
        replace = functools.partial(new_forward, module, forward_of(request))
        shape = (ROWS, ROWS, module.embedding_dim)
        yield PatchSite(name, OP, replace, shape=shape, variant=module.mode)


def reason_against(module: nn.EmbeddingBag) -> str | None:
    """Why a module keeps its own forward."""
    if is_patched(module) or type(module).forward is not nn.EmbeddingBag.forward:
        return "has a forward of its own already"
    for what in ("max_norm", "padding_idx"):
        if getattr(module, what) is not None:
            return f"{what} is torch's alone"
    return "scale_grad_by_freq is torch's alone" if module.scale_grad_by_freq else None


def forward_of(request: str | None) -> Any:
    """The forward of a replaced bag. Sparse gradients stay sparse where the device can add them."""
    kernel = op(OP)

    def forward(
        self: nn.EmbeddingBag,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        if self.sparse and self.weight.device.type in SPARSE_HERE:
            return nn.EmbeddingBag.forward(self, input, offsets, per_sample_weights)
        if input.dim() == 2:
            count, length = input.shape
            offsets = torch.arange(count + 1, device=input.device) * length
            input = input.reshape(-1)
            if per_sample_weights is not None:
                per_sample_weights = per_sample_weights.reshape(-1)
        elif offsets is None:
            raise ValueError("offsets has to be a 1D Tensor but got None")  # as torch does
        elif not self.include_last_offset:
            offsets = torch.cat((offsets, offsets.new_full((1,), len(input))))
        found: Tensor = kernel(
            self.weight, input, offsets, per_sample_weights, mode=self.mode, request=request
        )
        return found

    return forward
