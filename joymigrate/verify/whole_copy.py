"""A module whose weights are spread over processes (FSDP, tensor parallel), as one process would
have it: whole weights, and without the hooks that gather, scatter and place.

How each process computes its part is no part of such a copy: free steps are compared for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from joymigrate.verify.flat_weights import (
    FlatWeight,
    Place,
    bring_together,
    flat_weights,
    is_flat_wrapper,
)
from joymigrate.verify.module_names import plain, unwrap

STATE = "__composable_api"  # what torch.distributed keeps in a module
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)


def spread_names(module: nn.Module) -> frozenset[str]:
    """The weights of a module that lie in several processes, by plain names below the module that
    is no wrapper."""
    named = module.named_parameters(remove_duplicate=False)
    found = {plain(name) for name, p in named if type(p).__name__ == "DTensor"}
    return frozenset(found | flat_names(module))


def flat_names(module: nn.Module) -> set[str]:
    """The same of FSDP1's alone."""
    flat = flat_weights(module)
    paths = {id(m): plain(path) for path, m in unwrap(module).named_modules()} if flat else {}
    return {".".join(filter(None, (paths[key], name))) for key, name in flat if key in paths}


def is_fully_sharded(module: nn.Module) -> bool:
    """Whether FSDP shards it: each process computes the whole from its part of the batch."""
    return is_flat_wrapper(module) or any(k.__name__ == "FSDPModule" for k in type(module).__mro__)


def whole_size(module: nn.Module) -> int:
    """Bytes of its whole weights."""
    flat = flat_weights(module).values()
    flat_bytes = sum(math.prod(one.shape) * one.dtype.itemsize for one in flat)
    if flat_bytes:
        return flat_bytes
    return sum(p.numel() * p.element_size() for p in module.parameters())


def whole_copy(module: nn.Module, *, gather: bool) -> nn.Module:
    """The copy. It shares with `module` what is not spread. `gather` brings the weights together,
    in all processes at once; without it they hold no values. Raises what torch's collectives do."""
    flat = flat_weights(module)
    if not (flat and gather):
        return Copier(gather, flat).copy(module)
    with bring_together(module):
        return Copier(gather, flat).copy(module)


class Copier:
    """Makes one copy of a tree of modules."""

    def __init__(self, gather: bool, flat: Mapping[Place, FlatWeight]) -> None:
        self.gather = gather
        self.flat = flat
        self.made: dict[Any, Any] = {}
        self.copies: dict[int, nn.Module] = {}

    def copy(self, module: nn.Module) -> nn.Module:
        """The copy of the module below the wrappers."""
        members = [m for m in module.modules() if unwrap(m) is m]
        for member in members:
            kind = type(member)
            kind = kind.__mro__[2] if is_fully_sharded(member) else kind
            self.copies[id(member)] = object.__new__(kind)
        for wrapper in module.modules():
            self.copies[id(wrapper)] = self.copies[id(unwrap(wrapper))]
        for member in members:
            self.copies[id(member)].__dict__.update(self.facts_of(member))
        return self.copies[id(module)]

    def whole(self, tensor: Any) -> Any:
        """One weight or buffer of the copy."""
        if type(tensor).__name__ != "DTensor":
            return tensor
        if id(tensor) not in self.made:
            with torch.no_grad():
                local = tensor._local_tensor
                value = (
                    tensor.full_tensor().detach().clone()
                    if self.gather
                    else torch.empty(tensor.shape, dtype=tensor.dtype, device=local.device)
                )
            held = isinstance(tensor, nn.Parameter)
            self.made[id(tensor)] = nn.Parameter(value, tensor.requires_grad) if held else value
        return self.made[id(tensor)]

    def whole_of_flat(self, member: nn.Module, name: str) -> nn.Parameter:
        """One of FSDP1's."""
        known = self.flat[id(member), name]
        if known.first not in self.made:
            value = (
                getattr(member, name).detach().clone()
                if self.gather
                else torch.empty(known.shape, dtype=known.dtype)
            )
            self.made[known.first] = nn.Parameter(value, known.requires_grad)
        made: nn.Parameter = self.made[known.first]
        return made

    def facts_of(self, member: nn.Module) -> Iterator[tuple[str, Any]]:
        """The attributes of one module's copy."""
        names = [name for key, name in self.flat if key == id(member)]
        for key, value in vars(member).items():
            if key.startswith(STATE) or key in names:
                continue
            if key in ("_parameters", "_buffers"):
                held = {n: self.whole(t) for n, t in value.items() if n not in names}
                if key == "_parameters":
                    held |= {name: self.whole_of_flat(member, name) for name in names}
                yield key, type(value)(held)
            elif key in HOOKS:
                kept = [(number, hook) for number, hook in value.items() if not of_torch(hook)]
                yield key, type(value)(kept)
            else:
                yield key, place_copies(value, self.copies)


def place_copies(value: Any, copies: dict[int, nn.Module]) -> Any:
    """A value with the copies of the modules in it."""
    if isinstance(value, nn.Module):
        return copies.get(id(value), value)
    if type(value) in (list, tuple):
        return type(value)(place_copies(one, copies) for one in value)
    if type(value).__name__ in ("dict", "OrderedDict"):
        return type(value)((key, place_copies(one, copies)) for key, one in value.items())
    return value


def of_torch(hook: Any) -> bool:
    """Whether a hook was put there by torch.distributed."""
    while hasattr(hook, "func"):
        hook = hook.func
    hook = getattr(hook, "__func__", getattr(hook, "hook", hook))
    place = getattr(hook, "__module__", None) or ""
    return str(place).startswith("torch.distributed")
