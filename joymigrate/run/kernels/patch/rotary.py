"""Rotary embeddings: the function that attention modules of a model file share.

Only the patched modules see another one: their forward gets a copy of the file's globals.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.run.kernels.patch.site import ROWS, PatchSite, is_patched, new_forward, same
from joymigrate.run.kernels.registry import op

OP = "rotary"
FUNCTION = "apply_rotary_pos_emb"
HEAD, POSITIONS = 8, 5  # of the trial
Angles = Callable[[Tensor], Tensor]


def sites(model: nn.Module, request: str | None) -> Iterator[PatchSite]:
    """Every module whose forward calls the file's rotary function."""
    tried: dict[Any, str] = {}
    for name, module in model.named_modules():
        forward = type(module).forward
        plain = inspect.unwrap(forward)
        if FUNCTION not in getattr(getattr(plain, "__code__", None), "co_names", ()):
            continue
        function = plain.__globals__.get(FUNCTION)
        if plain is not forward:
            yield PatchSite(name, OP, reason="its forward is decorated")
            continue
        if is_patched(module) or plain.__closure__:
            yield PatchSite(name, OP, reason="has a forward of its own already")
            continue
        if function not in tried:
            tried[function] = form_of(function)
        form = tried[function]
        if form not in FORMS:
            yield PatchSite(name, OP, reason=form)
            continue
        size = int(getattr(module, "head_dim", 0) or 64)
        heads = int(getattr(getattr(module, "config", None), "num_attention_heads", 0) or 8)
        replace = functools.partial(new_forward, module, forward_of(plain, form, request))
        variant = "half" if form == "half" else "interleaved"
        yield PatchSite(name, OP, replace, shape=(ROWS * heads, size, size), variant=variant)


def spread(angles: Tensor) -> Tensor:
    """Angles given in two halves, side by side."""
    return angles[..., : angles.shape[-1] // 2].repeat_interleave(2, -1)


# What a model's function may do with the cos and sin that it is given.
FORMS: dict[str, tuple[bool, Angles]] = {
    "half": (False, lambda angles: angles),
    "interleaved": (True, lambda angles: angles),
    "interleaved, spread": (True, spread),
}


def form_of(function: Any) -> str:
    """Which of `FORMS` a function computes; else why it can't be replaced."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, POSITIONS, HEAD)
    q, k = (torch.randn(*s, generator=generator) for s in (shape, (2, 1, POSITIONS, HEAD)))
    half = torch.rand(2, POSITIONS, HEAD // 2, generator=generator)
    for name, (interleaved, prepare) in FORMS.items():
        pairs = (
            half.repeat_interleave(2, -1) if name == "interleaved" else torch.cat((half, half), -1)
        )
        cos, sin = pairs.cos(), pairs.sin()
        try:
            got = function(q, k, cos, sin)
        except Exception as error:  # another signature
            return f"its rotary function takes other arguments: {type(error).__name__}"
        angles = (prepare(t).unsqueeze(1) for t in (cos, sin))
        cos_1, sin_1 = angles
        want = [op(OP).reference(t, cos_1, sin_1, interleaved=interleaved) for t in (q, k)]
        if len(got) == 2 and same(got[0], want[0]) and same(got[1], want[1]):
            return name
    return "its rotary function computes something else"


def forward_of(forward: Any, form: str, request: str | None) -> Any:
    """The class's own forward with another rotary function in its globals."""
    names = {**forward.__globals__, FUNCTION: function_of(form, request)}
    made = types.FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__)
    made.__kwdefaults__ = forward.__kwdefaults__
    made.__doc__ = forward.__doc__
    return made


def function_of(form: str, request: str | None) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function with the model file's signature that calls the operator."""
    interleaved, prepare = FORMS[form]
    kernel = op(OP)

    def apply_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        cos, sin = (prepare(t).unsqueeze(unsqueeze_dim) for t in (cos, sin))
        turned = (kernel(t, cos, sin, interleaved=interleaved, request=request) for t in (q, k))
        return next(turned), next(turned)

    return apply_rotary_pos_emb
