"""Which linears of a layer share an input, and where a scale of that input can move to.

Found by running the layer: linears that get the same tensor are a group; the norm that made the
tensor, or the linear before it (values before the attention's output, up before down), can take the
inverse of the scale. Each such fold is tried once, and only used when the layer still computes the
same: no family's name is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.run.train.quantise.skeleton import run_layer

SAME = 1e-4  # of the output, in float32: a fold that changes more is none
# The linear whose outputs are the inputs of another, but for a product or an average of rows.
BEFORE = {"o_proj": "v_proj", "out_proj": "v_proj", "down_proj": "up_proj", "w2": "w3"}


@dataclass(slots=True)
class LinearGroup:
    """Linears of one input. `fold` is None where no scale can move, for the `reason`."""

    linears: tuple[str, ...]
    fold: ScaleFold | None = None
    reason: str = ""


@dataclass(slots=True)
class ScaleFold:
    """Where the inverse of a scale of the inputs goes."""

    kind: str  # norm or linear
    source: str
    offset: float = 0.0  # norms that add it to their weight
    heads: tuple[int, int, int] | None = None  # key heads, queries per key head, size
    linears: tuple[str, ...] = ()
    inputs: int = 0

    def admissible(self, layer: nn.Module, s: Tensor, dtype: torch.dtype) -> Tensor:
        """The nearest scale that can be folded: equal for the queries of a key head, and such that
        a norm's weight is a number of `dtype`."""
        if self.heads is not None:
            keys, each, size = self.heads
            largest = s.view(keys, each, size).amax(1, keepdim=True)
            return largest.expand(keys, each, size).reshape(-1)
        if self.kind == "linear":
            return s
        weight = layer.get_submodule(self.source).weight.detach() + self.offset  # type: ignore[operator]
        rounded = (weight / s - self.offset).to(dtype).float() + self.offset
        exact = weight / torch.where(rounded == 0, torch.ones_like(rounded), rounded)
        usable = (rounded != 0) & (weight != 0) & (exact > 0)
        return torch.where(usable, exact, torch.ones_like(s))

    def apply(self, layer: nn.Module, s: Tensor) -> None:
        """Divide the source by s and multiply the inputs of the linears by it, in place."""
        source = layer.get_submodule(self.source)
        bias = getattr(source, "bias", None)
        weight: Any = source.weight
        if self.kind == "norm":
            weight.copy_((weight + self.offset) / s - self.offset)
            if bias is not None:
                bias.div_(s)
        else:
            outputs = s
            if self.heads is not None:
                keys, each, size = self.heads
                outputs = s.view(keys, each, size)[:, 0].reshape(-1)
            weight.div_(outputs.unsqueeze(1))
            if bias is not None:
                bias.div_(outputs)
        for name in self.linears:
            linear: Any = layer.get_submodule(name)
            linear.weight.mul_(s)


@dataclass(slots=True)
class ObservedLayer:
    """What flowed through a layer once. Tensors are kept so that identities stay their own."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)


def find_groups(
    layer: nn.Module, hidden: Tensor, call: dict[str, Any], config: Any, dtype: torch.dtype
) -> list[LinearGroup]:
    """The groups of a layer, each with a fold that was tried; those that change others first."""
    seen = watch(layer, hidden, call)
    by_input: dict[int, list[str]] = {}
    for name, tensor in seen.inputs.items():
        by_input.setdefault(id(tensor), []).append(name)
    groups = []
    for names in by_input.values():
        group = LinearGroup(tuple(names))
        candidates = folds(layer, group.linears, seen, config)
        for fold in candidates:
            if harmless(layer, fold, hidden, call, dtype):
                group.fold = fold
                break
        if group.fold is None:
            tried = candidates[0].source if candidates else None
            group.reason = (
                f"a scale folded into {tried} changes what the layer computes"
                if tried
                else "neither a norm nor a linear is known to make this input"
            )
        groups.append(group)
    # A linear that another's scale is folded into must not be rounded before that.
    return sorted(groups, key=lambda g: g.fold is None or g.fold.kind != "linear")


def watch(layer: nn.Module, hidden: Tensor, call: dict[str, Any]) -> ObservedLayer:
    """Run a layer and note the inputs of its linears and the outputs of its norms."""
    seen = ObservedLayer()
    hooks = []
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear):
            hooks.append(module.register_forward_pre_hook(noting(seen.inputs, name)))
        elif is_norm(module):
            hooks.append(module.register_forward_hook(noting_output(seen.norms, name)))
    try:
        run_layer(layer, hidden, call)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def noting(where: dict[str, Tensor], name: str) -> Callable[..., None]:
    """A hook that keeps the input."""

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        where[name] = args[0]

    return hook


def noting_output(where: dict[str, Tensor], name: str) -> Callable[..., None]:
    """A hook that keeps the output."""

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        where[name] = output

    return hook


def is_norm(module: nn.Module) -> bool:
    """Whether a module is nothing but a weight per channel, and perhaps a bias."""
    own = dict(module.named_parameters())
    return "weight" in own and own["weight"].dim() == 1 and not own.keys() - {"weight", "bias"}


def folds(
    layer: nn.Module, names: tuple[str, ...], seen: ObservedLayer, config: Any
) -> list[ScaleFold]:
    """Candidates for the inverse of these linears' input scale."""
    tensor = seen.inputs[names[0]]
    inputs = tensor.shape[-1]
    made = [name for name, output in seen.norms.items() if output is tensor]
    if made:
        return [ScaleFold("norm", made[0], shift, None, names, inputs) for shift in (0.0, 1.0)]
    path, _, last = names[0].rpartition(".")
    before = BEFORE.get(last)
    sibling = f"{path}.{before}".lstrip(".")
    known = dict(layer.named_modules())
    if len(names) != 1 or before is None or not isinstance(known.get(sibling), nn.Linear):
        return []
    outputs = known[sibling].out_features
    if outputs == inputs:
        return [ScaleFold("linear", sibling, 0.0, None, names, inputs)]
    heads = getattr(config, "num_attention_heads", 0) or 1
    keys = getattr(config, "num_key_value_heads", None) or heads
    size = inputs // heads
    if keys * size != outputs or heads % keys:
        return []
    return [ScaleFold("linear", sibling, 0.0, (keys, heads // keys, size), names, inputs)]


def harmless(
    layer: nn.Module, fold: ScaleFold, hidden: Tensor, call: dict[str, Any], dtype: torch.dtype
) -> bool:
    """Whether the layer computes the same with a scale folded. Its weights come back as they
    were."""
    s = 1.0 + 0.5 * (torch.arange(fold.inputs, device=hidden.device) % 4)
    touched: list[Tensor] = []
    for name in (fold.source, *fold.linears):
        touched += list(layer.get_submodule(name).parameters())
    kept = [tensor.clone() for tensor in touched]
    want = run_layer(layer, hidden, call)
    fold.apply(layer, fold.admissible(layer, s, torch.float32))
    got = run_layer(layer, hidden, call)
    for tensor, old in zip(touched, kept, strict=True):
        tensor.copy_(old)
    # The residual would hide a change of what the layer adds to it.
    added = torch.linalg.vector_norm(want - hidden)
    return bool(torch.linalg.vector_norm(got - want) <= SAME * added)
