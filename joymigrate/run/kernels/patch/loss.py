"""The loss of language models, fused with the last layer: the logits are never all in memory.

While a model in training mode computes with labels, its head returns a promise of the logits. The
model's own forward hands that to the loss, which is the one reader that needs no logits; any other
reader (a soft cap, a metric) gets real ones, computed then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joymigrate.run.kernels.patch.site import ROWS, PatchSite, Undo, is_patched, new_forward
from joymigrate.run.kernels.registry import op

OP = "fused_linear_cross_entropy"
IGNORED = -100
STANDARD = "ForCausalLMLoss"


class LazyLogits:
    """Logits that nobody has computed yet: `hidden weightᵀ + bias`, on first use a tensor."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.hidden, self.weight, self.bias = hidden, weight, bias
        self.made: Tensor | None = None

    def tensor(self) -> Tensor:
        """The logits."""
        if self.made is None:
            self.made = F.linear(self.hidden, self.weight, self.bias)
        return self.made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kept = {name: real(value) for name, value in (kwargs or {}).items()}
        return function(*(real(value) for value in args), **kept)


def real(value: Any) -> Any:
    """A promise kept; anything else as it is."""
    if isinstance(value, LazyLogits):
        return value.tensor()
    return type(value)(real(v) for v in value) if isinstance(value, (list, tuple)) else value


def forward_to_tensor(name: str) -> Callable[..., Any]:
    """An operator of Python that the promise passes on to its tensor."""

    def method(self: LazyLogits, *args: Any) -> Any:
        return getattr(self.tensor(), name)(*(real(value) for value in args))

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "matmul", "neg", "getitem",
              "len", "iter", "lt", "gt", "le", "ge"):  # fmt: skip
    setattr(LazyLogits, f"__{_name}__", forward_to_tensor(f"__{_name}__"))


def sites(model: nn.Module, request: str | None) -> Iterator[PatchSite]:
    """Every part of the model with a head and the standard loss."""
    for name, module in model.named_modules():
        head = getattr(module, "lm_head", None)
        if head is None or not hasattr(module, "loss_function"):
            continue
        place = f"{name}.lm_head" if name else "lm_head"
        if is_patched(head):
            yield PatchSite(place, OP, reason="has a forward of its own already")
        elif type(head) is not nn.Linear:
            yield PatchSite(place, OP, reason=f"its head is a {type(head).__name__}")
        elif getattr(module.loss_function, "__name__", "") != STANDARD:
            yield PatchSite(place, OP, reason="its loss is not the standard one of causal models")
        else:
            shape = (ROWS, head.in_features, head.out_features)
            variant = "mean" if head.bias is None else "mean bias"
            replace = functools.partial(fuse, module, head, request)
            yield PatchSite(place, OP, replace, shape=shape, variant=variant)


def fuse(module: nn.Module, head: nn.Linear, request: str | None) -> Undo:
    """Put promise and loss in place; returns how to take them out."""
    state = {"labels": False}
    before = module.__dict__.get("_loss_function")
    standard: Callable[..., Tensor] = getattr(module, "loss_function")  # noqa: B009

    def arm(_: nn.Module, args: Any, kwargs: Any) -> None:
        state["labels"] = module.training and kwargs.get("labels") is not None

    def disarm(_: nn.Module, args: Any, output: Any) -> None:
        state["labels"] = False

    def promise(self: nn.Linear, hidden: Tensor) -> Any:
        # A sharded head needs its own hooks around the product.
        if state["labels"] and type(self.weight.data) is Tensor:
            return LazyLogits(hidden, self.weight, self.bias)
        return F.linear(hidden, self.weight, self.bias)

    def loss(logits: Any, labels: Tensor, vocab_size: int, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(logits, LazyLogits) and logits.made is None and not args:
            fused = fused_loss(logits, labels, vocab_size, request, **kwargs)
            if fused is not None:
                return fused
        return standard(real(logits), labels, vocab_size, *args, **kwargs)

    restore = new_forward(head, promise)
    hooks = [
        module.register_forward_pre_hook(arm, with_kwargs=True),
        module.register_forward_hook(disarm, always_call=True),
    ]
    object.__setattr__(module, "_loss_function", loss)

    def undo() -> None:
        restore()
        for hook in hooks:
            hook.remove()
        module.__dict__.pop("_loss_function", None)
        if before is not None:
            object.__setattr__(module, "_loss_function", before)

    return undo


def fused_loss(
    logits: LazyLogits,
    labels: Tensor,
    vocab_size: int,
    request: str | None,
    num_items_in_batch: Any = None,
    ignore_index: int = IGNORED,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """The standard loss of causal models; None where it was asked for something special."""
    if kwargs.get("weight") is not None or vocab_size != logits.weight.shape[0]:
        return None
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    hidden = logits.hidden.reshape(-1, logits.hidden.shape[-1])
    loss: Tensor = op(OP)(
        hidden,
        logits.weight,
        shift_labels.reshape(-1).to(hidden.device),
        logits.bias,
        ignore_index=ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum",
        request=request,
    )
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    shared: Tensor = loss / num_items_in_batch
    return shared
