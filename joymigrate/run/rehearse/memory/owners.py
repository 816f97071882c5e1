"""Where a program's parameters, gradients and optimiser states lie on its device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any


class Owners:
    """What is known of a process's modules and optimisers. `index` is the device they are on."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.index: int | None = None
        self.modules: dict[int, weakref.ref[Any]] = {}
        self.optimisers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.searched = False

    def hear(self) -> Callable[[], object]:
        """Learn of every module that gets a parameter or a buffer; returns what ends that."""
        from torch.nn.modules import module

        def registered(owner: Any, name: str, value: Any) -> None:
            self.add(owner)

        hooks = [
            module.register_module_parameter_registration_hook(registered),
            module.register_module_buffer_registration_hook(registered),
        ]

        def end() -> None:
            for hook in hooks:
                hook.remove()

        return end

    def add(self, owner: Any) -> None:
        """One module; it may go when the program lets it go."""
        if id(owner) not in self.modules:
            key, known = id(owner), self.modules
            self.modules[key] = weakref.ref(owner, lambda _: known.pop(key, None))

    def find_modules(self) -> None:
        """Once: modules that registered nothing, because they were copied or unpickled."""
        if self.searched:
            return
        self.searched = True
        from torch.nn import Module

        for one in gc.get_objects():
            if issubclass(type(one), Module):
                self.add(one)

    def look(self) -> None:
        """Find out which device the program is on."""
        if self.index is None:
            for tensor in self.weights():
                found = place(tensor, self.device)
                if found is not None:
                    self.index = found[0]
                    return

    def addresses(self, *, gradients: bool) -> dict[str, list[int]]:
        """Where the tensors of each known category begin, on the device in question."""
        self.look()
        sources: dict[str, Iterator[Any]] = {
            "weights": self.weights(),
            "gradients": self.gradients() if gradients else iter(()),
            "optimiser": self.states(),
        }
        found: dict[str, list[int]] = {}
        for name, tensors in sources.items():
            places = (place(tensor, self.device) for tensor in tensors)
            found[name] = [one[1] for one in places if one is not None and one[0] == self.index]
        return found

    def weights(self) -> Iterator[Any]:
        """Parameters and buffers."""
        for known in list(self.modules.values()):
            owner = known()
            if owner is not None:
                yield from list(owner._parameters.values())
                yield from list(owner._buffers.values())
        yield from self.optimised()

    def optimised(self) -> Iterator[Any]:
        """Parameters of optimisers."""
        for one in list(self.optimisers):
            for group in one.param_groups:
                yield from group["params"]

    def gradients(self) -> Iterator[Any]:
        """What is in `.grad` of leaves: of other tensors, asking for it warns."""
        for one in self.weights():
            if one is not None and one.is_leaf and one.grad is not None:
                yield one.grad

    def states(self) -> Iterator[Any]:
        """Tensors in the states of optimisers."""
        for one in list(self.optimisers):
            for state in list(one.state.values()):
                yield from tensors_in(state)


def tensors_in(value: Any) -> Iterator[Any]:
    """Tensors in dictionaries, lists and tuples."""
    from torch import Tensor

    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in list(value.values()):
            yield from tensors_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def place(tensor: Any, device: str) -> tuple[int, int] | None:
    """(device's index, address) of a tensor's storage; None where it lies elsewhere.

    Of a tensor that is spread over processes, the part of this one.
    """
    local = getattr(tensor, "_local_tensor", tensor)
    if local is None or local.device.type != device:
        return None
    try:
        address = int(local.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return None  # a tensor without a storage
    return (int(local.device.index or 0), address) if address else None
