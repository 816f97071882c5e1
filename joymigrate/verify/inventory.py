"""The modules of a program and the identity of its weights: classes, settings, hashes."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Iterable
from types import FunctionType
from typing import Any

import torch

from joymigrate.verify.graphs import class_name
from joymigrate.verify.identity import FLAT_TENSOR
from joymigrate.verify.identity_map import IdentityMap
from joymigrate.verify.isolated_pass import raw_bytes
from joymigrate.verify.module_names import ModuleNames, plain, unwrap

SETTINGS = (bool, int, float, str)
# What turns a rounding error into another choice: routers, quantisers, samplers.
CHOOSING = re.compile(
    r"\b(topk|argmax|argmin|sort|argsort|kthvalue|multinomial|searchsorted|bucketize|round|floor)\b"
)


def tensor_hash(tensor: torch.Tensor) -> dict[str, Any]:
    """sha256 of the bytes, with dtype and shape."""
    return {
        "sha256": hashlib.sha256(raw_bytes(tensor)).hexdigest(),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
    }


class ModuleInventory:
    """What is written once: modules by root, weights by name, and the scalars of first calls."""

    def __init__(self) -> None:
        self.weights: dict[str, dict[str, Any]] = {}
        self.modules: dict[str, list[dict[str, Any]]] = {}
        self.scalars: dict[str, dict[str, Any]] = {}
        self.names: IdentityMap[str] = IdentityMap()
        self.walked = False
        self.absent: IdentityMap[bool] = IdentityMap()  # no module held them at the last walk
        self.hashed: IdentityMap[tuple[str, str]] = IdentityMap()  # root and name of first calls
        self.shared: dict[str, str] = {}  # a later model's tensor → the same one's name before
        self.ties: dict[str, str] = {}  # a name of a tensor → its first name in the same model
        # storage → offset → the first parameter there; and those that others in a model lie upon
        self.placed: IdentityMap[dict[int, str]] = IdentityMap()
        self.memory: dict[str, str] = {}
        self.sizes: dict[str, int] = {}  # modules of a root when it was noted
        self.since: dict[str, int] = {}  # root → step of its first recorded call

    def see(self, roots: ModuleNames, root: str, step: int) -> None:
        """Note a root's modules and hash its weights, at its first recorded call; later those that
        it got since (a constructor that calls a part of itself, adapters)."""
        self.since.setdefault(root, step)
        module = roots.modules[root]
        self.sizes[root] = size_of(module)
        noted = self.modules.setdefault(root, [])
        paths = {facts["path"] for facts in noted}
        members = [(plain(path), m) for path, m in module.named_modules() if unwrap(m) is m]
        members = [(path, m) for path, m in members if path not in paths]
        fresh = [describe(path, m) for path, m in members]
        noted += fresh
        spread = set()
        for (path, member), facts in zip(members, fresh, strict=True):
            held = {n: one.shape for (key, n), one in roots.flat.items() if key == id(member)}
            facts["params"] |= {name: list(shape) for name, shape in held.items()}
            spread |= {f"{path}.{name}".lstrip(".") for name in held}
        for kind, named in (
            ("parameter", module.named_parameters(remove_duplicate=False)),
            ("buffer", module.named_buffers(remove_duplicate=False)),
        ):
            for name, tensor in named:
                if plain(name) in spread or name.endswith(FLAT_TENSOR):
                    continue  # no process holds it whole
                place = f"{root}:{plain(name)}"
                if plain(name).rpartition(".")[0] in paths:
                    continue  # noted before training
                first, source = self.hashed.setdefault(tensor, (root, place))
                if first == root and source != place:
                    self.ties[place] = source
                if first != root:  # training may have changed it by now
                    self.shared[place] = source
                elif hashable(tensor):
                    self.weights[place] = {"kind": kind, **tensor_hash(tensor)}
                    if kind == "parameter" and source == place and tensor.numel():
                        self.note_memory(place, tensor)

    def note_memory(self, place: str, parameter: torch.Tensor) -> None:
        """Where a parameter lies, and which other tensor of its model lies there as well."""
        known = self.placed.setdefault(parameter.untyped_storage(), {})
        source = known.setdefault(int(parameter.storage_offset()), place)
        if source != place and source.partition(":")[0] == place.partition(":")[0]:
            self.memory[place] = source

    def is_complete(self, roots: ModuleNames, root: str) -> bool:
        """Whether a root was noted, and has as many modules as then."""
        return root in self.since and self.sizes[root] == size_of(roots.modules[root])

    def parameter_names(
        self, roots: ModuleNames, wanted: Iterable[torch.Tensor] = ()
    ) -> IdentityMap[str]:
        """`root:path.leaf` of every parameter. The modules are walked once between two calls of
        `changed`, and again for one of `wanted` that has no name: FSDP's modules hold other
        parameters inside of a call than outside."""
        new = [one for one in wanted if self.names.get(one) is None and not self.absent.get(one)]
        if new or not self.walked:
            for root, module in roots.modules.items():
                for name, parameter in module.named_parameters():
                    where = plain(name)
                    place, _, leaf = where.rpartition(".")
                    self.names.setdefault(parameter, f"{root}:{place}.{leaf}")
            self.walked = True
            for one in new:
                if self.names.get(one) is None:
                    self.absent.put(one, True)
        return self.names

    def changed(self) -> None:
        """A model is called: its modules may be others by then."""
        self.walked = False
        self.absent = IdentityMap()

    def to_json(self, roots: ModuleNames) -> dict[str, Any]:
        """For `program.json`."""
        return {
            "roots": [
                {
                    "name": root,
                    "class": class_name(module),
                    "parameters": sum(1 for _ in module.parameters()),
                    "sharded": bool(roots.flat)
                    or any(type(p).__name__ == "DTensor" for p in module.parameters()),
                }
                for root, module in roots.modules.items()
            ],
            "modules": self.modules,
            "graphs": roots.graphs,
            "weights": self.weights,
            "shared": self.shared,
            "ties": self.ties,
            "memory": self.memory,
            "since": self.since,
            "scalars": self.scalars,
        }


def size_of(module: torch.nn.Module) -> int:
    """How many modules it has, itself among them."""
    return sum(1 for _ in module.modules())


def hashable(tensor: Any) -> bool:
    """Whether the tensor's bytes lie in this process."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and not tensor.is_meta
        and tensor.layout is torch.strided
    )


def describe(path: str, module: torch.nn.Module) -> dict[str, Any]:
    """A module's class, its own parameters and its settings (eps, p, stride, …)."""
    kind: Any = type(module)
    settings = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, SETTINGS) and not key.startswith("_")
    }
    return {
        "path": path,
        "class": class_name(module),
        "params": {n: list(p.shape) for n, p in module.named_parameters(recurse=False)},
        "settings": settings,
        "heeds_mode": heeds_mode(module, settings),
        "chooses": chooses(kind),
    }


@functools.lru_cache(maxsize=4096)
def chooses(kind: type) -> bool:
    """Whether a module's class, or a function that its methods call by name, chooses by values: an
    error of rounding can become a large one there. Code that can't be read counts as choosing."""
    if kind.__module__.startswith("torch.nn.modules."):
        return False
    try:
        texts = [inspect.getsource(kind)]
        for method in vars(kind).values():
            if isinstance(method, FunctionType):
                named = (method.__globals__.get(name) for name in method.__code__.co_names)
                texts += [inspect.getsource(f) for f in named if isinstance(f, FunctionType)]
    except (OSError, TypeError, AttributeError):
        return True
    return any(CHOOSING.search(text) for text in texts)


def heeds_mode(module: torch.nn.Module, settings: dict[str, Any]) -> bool:
    """Whether a module computes otherwise in training: its forward asks, and it drops something or
    keeps statistics. Code that can't be read counts as asking."""
    drops = [v for k, v in settings.items() if k == "p" or "drop" in k]
    if drops and not any(drops):
        return False
    try:
        # Not `type(module).forward`: a descriptor of torch's own answers for instances alone.
        return "self.training" in inspect.getsource(inspect.getattr_static(module, "forward"))
    except (OSError, TypeError, AttributeError):
        return True
