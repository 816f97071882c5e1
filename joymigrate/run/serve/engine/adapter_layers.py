"""Puts LoRA adapters into the layers of a loaded model, and refuses those that do not fit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.adapters import (
    Adapted,
    AdapterPair,
    Adapters,
    Selection,
    add,
    read,
)


def attach(model: Any, wanted: Sequence[tuple[str, str]]) -> Adapters:
    """Load adapters (name, folder), and put them into a model's layers. Raises `JoyError`."""
    numbers: dict[str, int] = {}
    parts: dict[int, dict[str, AdapterPair]] = {}
    for name, folder in wanted:
        if not name or name in numbers:
            raise JoyError(f"two adapters are called '{name}'" if name else "an adapter's name is "
                           "empty", help="--lora NAME=FOLDER")  # fmt: skip
        numbers[name] = len(numbers) + 1
        parts[numbers[name]] = read(name, Path(folder))
    names = {number: name for name, number in numbers.items()}
    taken = (
        attach_decoder(model, parts) if model.path == "decoder" else attach_library(model, parts)
    )
    for number, pairs in parts.items():
        left = sorted(set(pairs) - taken)
        if left:
            raise JoyError(
                f"the adapter '{names[number]}' changes {left[0]}"
                + (f" and {len(left) - 1} more" if len(left) > 1 else "")
                + f", which {model.family} has not, or not as a linear layer of its own",
                help="an adapter of this very model, or merge it into the model",
            )
    return Adapters(numbers)


def attach_decoder(model: Any, parts: Mapping[int, Mapping[str, AdapterPair]]) -> set[str]:
    """Wrap the linears of our own decoder; returns the modules that were used."""
    spec, taken = model.spec, set()
    q, kv = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    for i, layer in enumerate(model.layers):
        for part, modules, inputs, sizes in (
            ("qkv", model.qkv_names(i), spec.hidden, (q, kv, kv)),
            ("output", [model.name("output", i)], q, (spec.hidden,)),
            ("gate_up", model.mlp_names(i), spec.hidden, (spec.intermediate,) * 2),
            ("down", [model.name("down", i)], spec.intermediate, (spec.hidden,)),
        ):
            whole = sizes if len(modules) == len(sizes) else (sum(sizes),)
            shapes = {name: (size, inputs) for name, size in zip(modules, whole, strict=True)}
            wrap(model, layer, part, shapes, parts)
            taken |= {name for name in modules if any(name in found for found in parts.values())}
    return taken


def wrap(
    model: Any,
    layer: Any,
    part: str,
    shapes: Mapping[str, tuple[int, int]],
    adapters: Mapping[int, Mapping[str, AdapterPair]],
) -> None:
    """Wrap one linear that stands for several modules, of the given [outputs, inputs]."""
    pairs: dict[int, AdapterPair] = {}
    rows = model.qkv_rows() if part == "qkv" else None
    for number, found in adapters.items():
        if not any(module in found for module in shapes):
            continue
        made = stack_parts(found, shapes)
        up = made.up if rows is None else made.up[rows]
        pairs[number] = place_pair(AdapterPair(made.down, up), model)
    if pairs:
        setattr(layer, part, Adapted(getattr(layer, part), pairs, model.selection))


def stack_parts(
    found: Mapping[str, AdapterPair], shapes: Mapping[str, tuple[int, int]]
) -> AdapterPair:
    """Several modules' parts as one: A one below the other, B on the diagonal."""
    downs, row, column = [], 0, 0
    ranks = sum(found[module].down.shape[0] for module in shapes if module in found)
    up = torch.zeros(sum(outputs for outputs, _ in shapes.values()), ranks)
    for module, (outputs, inputs) in shapes.items():
        pair = found.get(module)
        if pair is not None:
            check(pair, module, outputs, inputs)
            rank = pair.down.shape[0]
            up[row : row + outputs, column : column + rank] = pair.up
            downs.append(pair.down)
            column += rank
        row += outputs
    return AdapterPair(torch.cat(downs), up)


def place_pair(pair: AdapterPair, model: Any) -> AdapterPair:
    """A part in the model's dtype, on its device."""
    return AdapterPair(
        pair.down.to(model.device, model.dtype), pair.up.to(model.device, model.dtype)
    )


def check(pair: AdapterPair, module: str, outputs: int, inputs: int) -> None:
    """Raise `JoyError` for an adapter of a model of another size."""
    if (pair.up.shape[0], pair.down.shape[1]) != (outputs, inputs):
        raise JoyError(
            f"an adapter's {module} is {pair.up.shape[0]} x {pair.down.shape[1]}, the model's is "
            f"{outputs} x {inputs}",
            help="an adapter of this very model",
        )


def attach_library(model: Any, parts: Mapping[int, Mapping[str, AdapterPair]]) -> set[str]:
    """Hook the linear layers of a model of transformers; returns the modules that were used."""
    taken: set[str] = set()
    for name, module in model.model.named_modules():
        wanted = {number: found[name] for number, found in parts.items() if name in found}
        if not wanted or not may_hook(name, module):
            continue
        for pair in wanted.values():
            check(pair, name, module.out_features, module.in_features)
        pairs = {number: place_pair(pair, model) for number, pair in wanted.items()}
        module.register_forward_hook(hook(name, pairs, model.selection))
        taken.add(name)
    return taken


def may_hook(name: str, module: Any) -> bool:
    """Whether a module is a linear layer that sees every row of a step, in order: experts and the
    head do not, and the parts that look at images run outside of steps."""
    sees_all = not any(word in name for word in ("expert", "lm_head", "visual", "vision"))
    return sees_all and isinstance(module, torch.nn.Linear)


def hook(name: str, pairs: Mapping[int, AdapterPair], selection: Selection) -> Any:
    """A forward hook that adds what the rows' adapters add."""

    def after(module: Any, inputs: Any, y: Tensor) -> Tensor:
        if not selection.groups:
            return y
        x = inputs[0]
        if x.dim() != 3 or x.shape[0] != 1:
            raise RuntimeError(f"{name} does not see the step's tokens as one row")
        return add(y[0], x[0], pairs, selection)[None]

    return after
