"""A copy of a module in another dtype, on another device, with given weights.

Tensors go into the copy by way of deepcopy's memo, so that nothing is copied on the device first.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from joymigrate.verify import layout


def cast_type(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The type of a copy: floating tensors in `dtype` (None: as they are), complex ones alike."""
    if dtype is not None and tensor.is_floating_point():
        return dtype
    return torch.complex128 if dtype is torch.float64 and tensor.is_complex() else tensor.dtype


def clone_module(
    module: nn.Module,
    dtype: torch.dtype | None,
    device: Any = None,
    values: Mapping[str, torch.Tensor] | None = None,
    memo: dict[int, Any] | None = None,
) -> nn.Module:
    """A copy that shares nothing with `module`; `values` replaces parameters and buffers by name.
    `memo` is deepcopy's: what it holds already stands in the copy as it is.

    Raises what deepcopy raises for a module that cannot be copied.
    """
    memo = {} if memo is None else memo
    originals: dict[str, torch.Tensor] = {}
    for kind, named in (
        (nn.Parameter, module.named_parameters(remove_duplicate=False)),
        (None, module.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            originals[name] = tensor
            if id(tensor) in memo:
                continue
            given = (values or {}).get(name)
            source = tensor if given is None or given.shape != tensor.shape else given
            floating = tensor.is_floating_point()
            wanted = cast_type(source, (dtype or tensor.dtype) if floating else None)
            made = layout.lay(source, tensor, wanted, device or tensor.device)
            memo[id(tensor)] = kind(made, requires_grad=tensor.requires_grad) if kind else made
            if tensor.grad is not None:
                memo[id(tensor.grad)] = None
    for member in module.modules():
        for value in vars(member).values():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()  # of its last call: deepcopy refuses it
    made_module: nn.Module = copy.deepcopy(module, memo)
    copies = [
        *made_module.named_parameters(remove_duplicate=False),
        *made_module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in copies:
        kept = memo.get(id(originals.get(name)))
        if kept is not None and kept is not tensor:  # copied by code of its own: a script
            tensor.data = kept.data
    for member in made_module.modules():
        for name, value in list(vars(member).items()):
            if isinstance(value, torch.Tensor):
                moved = value.detach().to(device or value.device, cast_type(value, dtype))
                object.__setattr__(member, name, moved)
    return made_module
