"""Weights of a copy in another type: cast when a module's own code asks for them, and given back
when its call is over. A pass needs the program and its largest module, not the program once more.

    lender = Lender(torch.float64, "cpu")
    copied = lender.clone(module)
    with lender.call() as weights:  # what this call borrows, by the tensor that it is cast from
        copied(...)
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from joymigrate.verify import layout
from joymigrate.verify.cloning import cast_type, clone_module

PROBE = -1  # no object's id
Borrowed = dict[int, nn.Parameter]  # by id of the `WeightSource`


@dataclass(frozen=True, slots=True, eq=False)
class WeightSource:
    """A parameter of the program, or the baseline's in its place."""

    tensor: torch.Tensor  # the program's
    name: str
    values: Mapping[str, torch.Tensor] | None  # where the baseline's is read

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        return self.tensor.requires_grad

    def read(self) -> torch.Tensor:
        """The values that are cast."""
        return (self.tensor if self.values is None else self.values[self.name]).detach()


class LentWeights(MutableMapping[str, Any]):
    """`_parameters` of a copied module. Not a `dict`: `dict(weights)` has to ask for each."""

    def __init__(self, held: dict[str, Any], lender: Lender) -> None:
        self.held = held
        self.lender = lender

    def __getitem__(self, name: str) -> Any:
        value = self.held[name]
        return self.lender.lend(value) if isinstance(value, WeightSource) else value

    def __setitem__(self, name: str, value: Any) -> None:
        self.held[name] = value

    def __delitem__(self, name: str) -> None:
        del self.held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def __contains__(self, name: object) -> bool:
        return name in self.held

    def copy(self) -> dict[str, Any]:
        """As a dictionary has it."""
        return dict(self)


class Lender:
    """Casts weights for one pass over a copy; `dtype` None leaves them as they are."""

    def __init__(self, dtype: torch.dtype | None, device: Any = None) -> None:
        self.dtype = dtype
        self.device = device
        self.calls: list[Borrowed] = []

    @contextmanager
    def call(self) -> Iterator[Borrowed]:
        """One module call: what it borrows stays the same tensor till its end."""
        weights: Borrowed = {}
        self.calls.append(weights)
        try:
            yield weights
        finally:
            self.calls.pop()

    def lend(self, source: WeightSource) -> nn.Parameter:
        """The weight in this pass's type. The cast is our own work: no mode of a pass sees it."""
        known = self.calls[-1].get(id(source)) if self.calls else None
        if known is not None:
            return known
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
            like, value = source.tensor, source.read()
            kind = self.dtype if self.dtype is not None else like.dtype
            wanted = cast_type(value, kind if like.is_floating_point() else None)
            made = layout.lay(value, like, wanted, self.device or like.device)
            lent = nn.Parameter(made, requires_grad=source.requires_grad)
        if self.calls:
            self.calls[-1][id(source)] = lent
        return lent

    def clone(
        self, module: nn.Module, values: Mapping[str, torch.Tensor] | None = None
    ) -> nn.Module:
        """A copy of a module as `clone_module` makes it, with lent weights where that is possible:
        not in scripts and graphs, nor for a tensor that something beside its module holds."""
        members = list(module.modules())
        if any(copies_itself(member) for member in members):
            return clone_module(module, self.dtype, self.device, values)
        sources = self.sources(module, values or {})
        eager: set[int] = set()
        while True:
            places = {PROBE: nn.Parameter(torch.empty(0, device="meta"))}
            for key, source in sources.items():
                if key not in eager:
                    places[key] = stand_in(source)
            memo: dict[int, Any] = dict(places)
            copied = clone_module(module, self.dtype, self.device, values, memo)
            twins: dict[int, Any] = {id(member): memo.get(id(member)) for member in members}
            if any(not isinstance(twin, nn.Module) for twin in twins.values()):
                return clone_module(module, self.dtype, self.device, values)
            more = find_held_elsewhere(places, twins.values())
            if not more:
                break
            eager |= more
        for member in members:
            twin = twins[id(member)]
            if any(id(p) in places for p in member._parameters.values()):
                held = {
                    name: sources[id(p)] if id(p) in places else twin._parameters[name]
                    for name, p in member._parameters.items()
                }
                twin.__dict__["_parameters"] = LentWeights(held, self)
        return copied

    def sources(
        self, module: nn.Module, values: Mapping[str, torch.Tensor]
    ) -> dict[int, WeightSource]:
        """What each parameter is cast from, by its id."""
        found: dict[int, WeightSource] = {}
        for name, tensor in module.named_parameters(remove_duplicate=False):
            given = name in values and values[name].shape == tensor.shape
            if id(tensor) not in found and type(tensor) is nn.Parameter:
                found[id(tensor)] = WeightSource(tensor, name, values if given else None)
        return found


def copies_itself(member: nn.Module) -> bool:
    """Whether a module's class has code of its own for copies (scripts, graphs), other than
    that of torch's parametrizations, which does as usual."""
    own = getattr(type(member), "__deepcopy__", None)
    return own is not None and getattr(own, "__module__", "") != "torch.nn.utils.parametrize"


def stand_in(source: WeightSource) -> nn.Parameter:
    """What stands in a copy while it is made: no values, and an error in any computation."""
    return nn.Parameter(torch.empty(0, device="meta"), requires_grad=source.requires_grad)


def parameters_of(module: Any) -> Any:
    """The dictionary that holds a module's parameters."""
    return module.__dict__["_parameters"]


def find_held_elsewhere(places: dict[int, nn.Parameter], twins: Iterable[Any]) -> set[int]:
    """Parameters that something beside their modules holds: the list of weights of a recurrent
    network, an object of the program. Told by how often each is referred to, against one that no
    module has (`PROBE`)."""
    counts = Counter(id(p) for twin in twins for p in parameters_of(twin).values())
    beside = {key: sys.getrefcount(p) - counts[id(p)] for key, p in places.items()}
    return {key for key, count in beside.items() if count > beside[PROBE]}


def weights_in(module: nn.Module, borrowed: Borrowed) -> Iterator[tuple[str, nn.Parameter | None]]:
    """(name, tensor) of the parameters below a module that are trained, its own before those of
    the modules in it; None where this call has not asked for a lent one."""
    seen: set[int] = set()
    for path, member in module.named_modules():
        held = member.__dict__.get("_parameters")
        lent = isinstance(held, LentWeights)
        for name, value in held.held.items() if lent else member.named_parameters(recurse=False):
            if value is None or id(value) in seen or not value.requires_grad:
                continue
            seen.add(id(value))
            weight = borrowed.get(id(value)) if isinstance(value, WeightSource) else value
            yield (f"{path}.{name}" if path else name), weight
