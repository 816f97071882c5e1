"""A model built empty, whose layers are filled and emptied one at a time.

Everything is computed in float32. The inputs of the layers beside the states (masks, rotary
embeddings, positions) are taken from the model's own forward pass, run once per sample with layers
that only listen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.tensors import TensorFolder


class LastLayerReached(Exception):
    """The last layer was called: nothing behind it needs to run."""


class InputRecorder(nn.Module):
    """Stands for a layer: keeps what it is called with."""

    def __init__(self, layer: nn.Module, heard: list[dict[str, Any]], *, last: bool) -> None:
        super().__init__()
        object.__setattr__(self, "layer", layer)  # not a child: it has no weights now
        self.heard = heard
        self.last = last

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(object.__getattribute__(self, "layer"), name)

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.heard.append({"hidden": hidden, "args": args, "kwargs": kwargs})
        if self.last:
            raise LastLayerReached
        return hidden


class Skeleton:
    """A causal language model without weights, and its parts."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.folder = folder
        self.device = torch.device(device)
        self.source = TensorFolder(folder)
        self.model = empty_model(folder)
        self.config = self.model.config
        self.base = self.model.base_model
        self.path, self.layers = layers_of(self.model)
        self.head: nn.Module = self.model.get_output_embeddings()
        self.head_name = name_of(self.model, self.head)
        self.embed_name = name_of(self.model, self.model.get_input_embeddings())
        self.dtype = self.source.raw(f"{self.embed_name}.weight").dtype
        remake_buffers(self.model, self.config)
        self.fill_outside()

    def fill_outside(self) -> None:
        """Weights of everything that is in no layer: embedding, last norm, head."""
        inside = f"{self.path}."
        wanted = dict(self.model.named_parameters(remove_duplicate=False))
        for name in wanted:
            if name.startswith(inside):
                continue
            tied = name == f"{self.head_name}.weight" and name not in self.source
            stored = f"{self.embed_name}.weight" if tied else name
            assign(self.model, name, self.tensor(stored))
        for module in self.outside():
            module.to(self.device)

    def outside(self) -> list[nn.Module]:
        """Modules that hold weights or buffers themselves and are in no layer."""
        found = []
        for name, module in self.model.named_modules():
            own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            if own and not name.startswith(f"{self.path}."):
                found.append(module)
        return found

    def tensor(self, name: str) -> Tensor:
        """A weight in float32."""
        return self.source.raw(name).to(self.device, torch.float32)

    def prefix(self, i: int) -> str:
        """The name of layer i."""
        return f"{self.path}.{i}"

    def filled(self, i: int) -> nn.Module:
        """Layer i with its weights."""
        layer = self.layers[i]
        for name, _ in list(layer.named_parameters()):
            assign(layer, name, self.tensor(f"{self.prefix(i)}.{name}"))
        return layer

    def emptied(self, i: int) -> None:
        """Give up the weights of layer i."""
        layer = self.layers[i]
        for name, parameter in list(layer.named_parameters()):
            assign(layer, name, torch.empty(parameter.shape, device="meta"))

    def listen(self, ids: tuple[int, ...]) -> tuple[Tensor, list[dict[str, Any]]]:
        """The states before the first layer, and what every layer is called with beside them."""
        heard: list[dict[str, Any]] = []
        whole = list(self.layers)
        last = len(whole) - 1
        for i, layer in enumerate(whole):
            self.layers[i] = InputRecorder(layer, heard, last=i == last)
        try:
            self.base(torch.tensor([list(ids)], device=self.device), use_cache=False)
        except LastLayerReached:
            pass
        finally:
            for i, layer in enumerate(whole):
                self.layers[i] = layer
        if len(heard) != len(whole):
            raise JoyError(
                f"{self.config.model_type}: {len(heard)} of {len(whole)} layers were called, so "
                "it cannot be quantised layer by layer",
                where=str(self.folder),
            )
        return heard[0]["hidden"], heard

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [T, V] from the states behind the last layer."""
        norm = last_norm(self.base)
        scores: Tensor = self.head(norm(hidden) if norm is not None else hidden)
        divisor = getattr(self.config, "logits_scaling", 1.0) or 1.0
        cap = getattr(self.config, "final_logit_softcapping", None)
        scores = scores[0].float() / divisor
        return scores if not cap else torch.tanh(scores / cap) * cap


def run_layer(layer: nn.Module, hidden: Tensor, call: Mapping[str, Any]) -> Tensor:
    """The states behind a layer."""
    out = layer(hidden, *call["args"], **call["kwargs"])
    states: Tensor = out[0] if isinstance(out, tuple) else out
    return states


def empty_model(folder: Path) -> Any:
    """The model on the meta device, in evaluation mode."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if getattr(config, "quantization_config", None) is not None:
            del config.quantization_config
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=torch.float32, attn_implementation="sdpa"
            )
    except Exception as error:  # transformers raises many types for models it does not have
        raise JoyError(
            f"transformers cannot build this model: {str(error).splitlines()[0]}",
            where=str(folder),
        ) from None
    return model.eval().requires_grad_(False)


def layers_of(model: Any) -> tuple[str, nn.ModuleList]:
    """The name and list of the decoder's layers: the longest list of modules of one class."""
    best: tuple[str, nn.ModuleList] | None = None
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len({type(m) for m in module}) != 1:
            continue
        if best is None or len(module) > len(best[1]):
            best = name, module
    if best is None:
        raise JoyError(f"{model.config.model_type}: no list of layers was found")
    return best


def name_of(model: nn.Module, wanted: nn.Module) -> str:
    """The name of a module."""
    return str(next(name for name, module in model.named_modules() if module is wanted))


def last_norm(base: nn.Module) -> nn.Module | None:
    """The norm behind the last layer: the base's own child of that kind."""
    found = [m for name, m in base.named_children() if "norm" in name or name == "ln_f"]
    return found[-1] if found else None


def assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Give a parameter its values."""
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    wanted = getattr(owner, last)
    if wanted.shape != tensor.shape:
        raise JoyError(
            f"'{name}' is {list(tensor.shape)} in the weights, {list(wanted.shape)} in the model",
            help="config.json and the weights must belong together",
        )
    setattr(owner, last, nn.Parameter(tensor, requires_grad=False))


def remake_buffers(model: nn.Module, config: Any) -> None:
    """Buffers that no file has (rotary frequencies), computed anew on the CPU."""
    for name, module in list(model.named_modules()):
        if not any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            continue
        try:
            made = type(module)(config=config)
        except TypeError:
            raise JoyError(
                f"{config.model_type}: the numbers of '{name}' are in no file, and cannot be "
                "computed anew"
            ) from None
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, made)
