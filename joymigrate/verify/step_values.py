"""The values of one step: what modules are given and make, gradients, weights, optimiser state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec

import torch

from joymigrate.verify import pytree
from joymigrate.verify.flat_weights import FlatWeight, is_flat_wrapper
from joymigrate.verify.identity_map import IdentityMap
from joymigrate.verify.inventory import ModuleInventory, hashable
from joymigrate.verify.log import StepLog
from joymigrate.verify.modes import is_training
from joymigrate.verify.module_names import plain
from joymigrate.verify.noise import keep_noise
from joymigrate.verify.optimisers import probe, settings_of
from joymigrate.verify.own_update import OwnUpdate
from joymigrate.verify.shard_map import ShardMap, Spread
from joymigrate.verify.sketch import ShardPlace

Given = ParamSpec("Given")
Piece = tuple[str, FlatWeight, int]  # a weight's name, what is known of it, where it begins
Work = Callable[Concatenate["StepValues", Given], None]


def own(method: Work[Given]) -> Work[Given]:
    """Calls of torch in this method are ours. The tape can't always be taken off: a mode that the
    program entered after it lies above."""

    @functools.wraps(method)
    def work(self: StepValues, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        with self.recorder.own_work():
            method(self, *args, **kwargs)

    return work


class StepValues:
    """What is recorded of the step that runs, until it is written."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.log = StepLog()
        self.shard_map = ShardMap()
        self.pieces: IdentityMap[list[Piece]] = IdentityMap()  # of what FSDP1's optimiser gets
        self.probed: IdentityMap[set[str]] = IdentityMap()  # settings by optimiser
        self.elementwise: IdentityMap[dict[str, bool]] = IdentityMap()  # by settings
        self.spread: tuple[int, int, int] | None = None  # rank, world, rows of the local batch
        self.clear()

    def clear(self) -> None:
        """Begin a step."""
        self.facts: dict[str, Any] = {}
        self.inputs: list[tuple[str, int, str, torch.Tensor, bool]] = []
        self.own_updates: IdentityMap[tuple[dict[str, Any], OwnUpdate]] = IdentityMap()
        self.copies_done = False  # gradients beside copies of parameters are in this step

    @own
    def arguments_of(self, place: str, number: int, module: Any, given: dict[str, Any]) -> None:
        """Record what a call was given."""
        if not self.recorder.stack:
            self.keep_inputs(place, number, given)
        if self.recorder.settings.inputs or not self.recorder.stack:
            for leaf, tensor in pytree.tensors(given):
                self.add(place, number, "in", leaf, tensor)
        if self.recorder.step == self.recorder.settings.first and number == 0:
            self.recorder.inventory.scalars[place] = pytree.scalars(given)
        self.facts.setdefault("training", {}).setdefault(place, []).append(int(is_training(module)))

    @own
    def outputs(self, place: str, number: int, made: Any) -> None:
        """Record what a call made, and the gradients that will come back to it."""
        for leaf, tensor in pytree.tensors(made):
            self.add(place, number, "out", leaf, tensor)
            if not (self.recorder.settings.gradients and tensor.requires_grad and tensor.grad_fn):
                continue
            hook = self.coming_back(place, number, leaf, self.shard_map.of(tensor))
            tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def coming_back(
        self, place: str, number: int, leaf: str, spread: Spread | None
    ) -> Callable[[torch.Tensor | None], None]:
        """A hook that records the gradient of one output, if it comes within the step.

        torch gives None for an output of a function that another output's gradient alone reaches.
        """
        step = self.recorder.step

        def hook(gradient: torch.Tensor | None) -> None:
            if gradient is not None and self.recorder.step == step and not self.recorder.over:
                with torch._C.DisableTorchFunction():
                    self.add(place, number, "gout", leaf, gradient, spread)

        return hook

    def add(
        self,
        place: str,
        number: int,
        kind: str,
        leaf: str,
        tensor: torch.Tensor,
        spread: Spread | None = None,
    ) -> None:
        """Record one tensor of the step."""
        spread = spread or self.shard_map.of(tensor)
        if self.spread and tensor.dim() and kind in ("in", "out", "gout"):
            rank, world, rows = self.spread
            if rows and tensor.shape[0] % rows == 0:
                offset = (rank * tensor.shape[0], *([0] * (tensor.dim() - 1)))
                shape = (world * tensor.shape[0], *tensor.shape[1:])
                spread = (f"batch {rank}", ShardPlace(offset, shape))
                # The processes' gradients are averaged: theirs of a mean loss is `world` times one
                # process's share.
                tensor = tensor.detach() / world if kind == "gout" else tensor
        self.log.add(place, number, kind, leaf, tensor, spread)

    def keep_inputs(self, place: str, number: int, given: dict[str, Any]) -> None:
        """Copies of a top-level call's inputs: the batch, whose bytes identify it."""
        for leaf, tensor in pytree.tensors(given, objects=True):
            if type(tensor) is torch.Tensor and hashable(tensor):
                kept = tensor.detach().clone()
                self.inputs.append((place, number, leaf, kept, self.recorder.is_derived(tensor)))

    def note_flat(self, module: torch.nn.Module) -> None:
        """Which weights an optimiser's parameters are parts of, where FSDP1 holds them."""
        if not is_flat_wrapper(module) or not self.recorder.watches():
            return
        roots = self.recorder.module_names
        for member in module.modules():
            flat: Any = getattr(getattr(member, "_handle", None), "flat_param", None)
            if flat is None or self.pieces.get(flat) is not None:
                continue
            made = []
            for info in flat._param_infos:
                root, path = roots.names.get(info.module) or ("?", "")
                known = roots.flat[id(info.module), info.param_name]
                made.append((f"{root}:{path}.{info.param_name}", known))
            self.pieces.put(flat, [(name, one, one.at) for name, one in made])
            for parameter, (name, one) in zip(flat._params or (), made, strict=False):
                self.pieces.put(parameter, [(name, one, 0)])

    def add_weight(self, name: str, parameter: Any, kind: str, tail: str, tensor: Any) -> None:
        """Record a weight, its gradient or its state: by parts where FSDP1 holds it."""
        parts = self.pieces.get(parameter)
        if parts is None or tensor.shape != parameter.shape:
            place, _, leaf = name.rpartition(".")
            self.log.add(place, 0, kind, f"{leaf}{tail}", tensor)
            return
        for whole, one, at in parts:
            place, _, leaf = whole.rpartition(".")
            part = tensor.detach().reshape(-1)[at : at + one.size]
            spread = (f"shard {one.start},{one.size}", one.shard)
            self.log.add(place, 0, kind, f"{leaf}{tail}", part, spread)

    def names_of(self, optimiser: Any) -> IdentityMap[str]:
        """The names of parameters, all of this optimiser's among them."""
        mine = [p for group in optimiser.param_groups for p in group["params"]]
        inventory: ModuleInventory = self.recorder.inventory
        return inventory.parameter_names(self.recorder.module_names, mine)

    @own
    def gradients_of(self, optimiser: Any) -> None:
        """The gradients of an optimiser's weights, its settings, and what its code does."""
        names = self.names_of(optimiser)
        groups: list[dict[str, Any]] = []
        for group in optimiser.param_groups:
            held = [names.get(p) or f"?:{i}" for i, p in enumerate(group["params"])]
            groups.append({"settings": settings_of(group), "params": held})
            for name, parameter in zip(held, group["params"], strict=True):
                if parameter.grad is not None and self.recorder.settings.gradients:
                    self.add_weight(name, parameter, "grad", "", parameter.grad)
        if not any(names.get(p) is not None for g in optimiser.param_groups for p in g["params"]):
            self.copied_gradients()
        # The learning rate changes at every step of a schedule; the code does not.
        kind = [{**g["settings"], "lr": None, "initial_lr": None} for g in groups]
        probed = self.probed.setdefault(optimiser, set())
        results: list[dict[str, Any]] = []
        if str(kind) not in probed:
            probed.add(str(kind))
            results = probe(optimiser)
        entry: dict[str, Any] = {"class": type(optimiser).__name__, "groups": groups}
        entry |= {"module": type(optimiser).__module__, "probe": results}
        settings = self.recorder.settings
        # A baseline's own arithmetic is looked at once: whether its rule can be made again.
        if settings.gradients and (settings.baseline or self.recorder.step == settings.first):
            own, known = OwnUpdate(), self.elementwise.setdefault(optimiser, {})
            with keep_noise():
                own.begin(optimiser, names, known)
            self.own_updates.put(optimiser, (entry, own))
        self.facts.setdefault("optimisers", []).append(entry)

    def copied_gradients(self) -> None:
        """Gradients of models whose optimiser works on copies of their parameters."""
        if not self.recorder.settings.gradients or self.copies_done:
            return
        self.copies_done = True
        for place, leaf, parameter in self.trained_parameters():
            if parameter.grad is not None:
                self.log.add(place, 0, "grad", leaf, parameter.grad)

    def trained_parameters(self) -> Iterator[tuple[str, str, torch.nn.Parameter]]:
        """(place, leaf, parameter) of the models that were trained in this step."""
        for root in sorted(self.recorder.trained):
            for name, parameter in self.recorder.module_names.modules[root].named_parameters():
                yield *place_and_leaf(root, name), parameter

    @own
    def results_of(self, optimiser: Any) -> None:
        """The weights and the state of an optimiser, and whether they follow from what it had."""
        begun = self.own_updates.get(optimiser)
        if begun is not None:
            entry, own = begun
            with keep_noise():
                entry["own"] = own.end(optimiser)
        names = self.names_of(optimiser)
        for group in optimiser.param_groups:
            for index, parameter in enumerate(group["params"]):
                name = names.get(parameter) or f"?:{index}"
                self.add_weight(name, parameter, "param", "", parameter)
                for key, value in optimiser.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor) and value.dim():
                        self.add_weight(name, parameter, "state", f".{key}", value)

    def add_loss(self, number: int, value: torch.Tensor) -> None:
        """Record a loss of one element."""
        if self.spread and self.spread[1] > 1:  # each process has its own mean
            value, part = value / self.spread[1], f"partial {self.spread[0]}"
            self.log.add("loss:", number, "loss", "", value, (part, ShardPlace((0,), (1,))))
        else:
            self.log.add("loss:", number, "loss", "", value)

    @own
    def buffers(self) -> None:
        """Buffers of trained models as a step ends, also those that nothing reads."""
        for root in sorted(self.recorder.trained):
            for name, buffer in self.recorder.module_names.modules[root].named_buffers():
                place, leaf = place_and_leaf(root, plain(name))
                self.log.add(place, 0, "buffer", leaf, buffer)

    @own
    def own_update(self) -> None:
        """Parameters of a program that updates them without an optimiser of torch."""
        for place, leaf, parameter in self.trained_parameters():
            if parameter.grad is not None and self.recorder.settings.gradients:
                self.log.add(place, 0, "grad", leaf, parameter.grad)
            self.log.add(place, 0, "param", leaf, parameter)


def place_and_leaf(root: str, name: str) -> tuple[str, str]:
    """The module of a weight's name below a root, and what it is called there."""
    place, _, leaf = f"{root}:{name}".rpartition(".")
    return (place, leaf) if place else (f"{root}:", name)
