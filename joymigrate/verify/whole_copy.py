"""A module whose weights are spread over processes (FSDP2, tensor parallel), as one process would
have it: whole weights, and without the hooks that gather, scatter and place.

How each process computes its part is no part of such a copy: free steps are compared for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from joymigrate.verify.module_names import plain

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
    """The weights of a module that lie in several processes, by plain names."""
    named = module.named_parameters(remove_duplicate=False)
    return frozenset(plain(name) for name, p in named if type(p).__name__ == "DTensor")


def is_fully_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 shards it: each process computes the whole from its part of the batch."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def whole_size(module: nn.Module) -> int:
    """Bytes of its whole weights."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def whole_copy(module: nn.Module, *, gather: bool) -> nn.Module:
    """The copy. It shares with `module` what is not spread. `gather` brings the weights together,
    in all processes at once; without it they hold no values. Raises what torch's collectives do."""
    made: dict[int, Any] = {}

    def whole(tensor: Any) -> Any:
        if type(tensor).__name__ != "DTensor":
            return tensor
        if id(tensor) not in made:
            with torch.no_grad():
                local = tensor._local_tensor
                value = (
                    tensor.full_tensor().detach().clone()
                    if gather
                    else torch.empty(tensor.shape, dtype=tensor.dtype, device=local.device)
                )
            held = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(value, tensor.requires_grad) if held else value
        return made[id(tensor)]

    copies: dict[int, nn.Module] = {}
    for member in module.modules():
        kind = type(member)
        kind = kind.__mro__[2] if is_fully_sharded(member) else kind
        copies[id(member)] = object.__new__(kind)
    for member in module.modules():
        copies[id(member)].__dict__.update(facts_of(member, copies, whole))
    return copies[id(module)]


def facts_of(
    member: nn.Module, copies: dict[int, nn.Module], whole: Callable[[Any], Any]
) -> Iterator[tuple[str, Any]]:
    """The attributes of one module's copy."""
    for key, value in vars(member).items():
        if key.startswith(STATE):
            continue
        if key in ("_parameters", "_buffers"):
            yield key, type(value)((name, whole(tensor)) for name, tensor in value.items())
        elif key in HOOKS:
            kept = [(number, hook) for number, hook in value.items() if not of_torch(hook)]
            yield key, type(value)(kept)
        else:
            yield key, place_copies(value, copies)


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
