"""Several processes and cards: NCCL's calls over gloo, DDP and DataParallel on this CPU."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from joymigrate import attach
from joymigrate.run.door.cards import cards
from joymigrate.run.door.frames import DoorFrameOwner, asker
from joymigrate.run.door.marks import HOST, card_of
from joymigrate.run.door.mode import Door, move, shut_in_checkpoints

SHARDS = "torch.distributed.fsdp._fully_shard._fsdp_init"
FLAT_SHARDS = "torch.distributed.fsdp._init_utils"
BACKEND, HERE = "nccl", "gloo"
requested_backends: dict[Any, str] = {}  # by group; None is the default one


def install() -> None:
    """Replace what names the card or its backend."""
    enter_in_threads(Door)
    enter_in_backward(Door)
    shut_in_checkpoints()
    wrap_data_parallel(torch.nn.DataParallel)
    if not dist.is_available():
        return
    c10d = dist.distributed_c10d
    for name, wrap in (
        ("init_process_group", start_group),
        ("new_group", start_group),
        ("barrier", wait),
        ("all_reduce", average),
        ("get_backend", name_backend),
    ):
        made = wrap(getattr(c10d, name))
        for owner in (c10d, dist):
            setattr(owner, name, made)
    for owner in (c10d, dist):
        owner.is_nccl_available = lambda: True  # type: ignore[attr-defined]
    wrap_mesh()
    attach.after_import(SHARDS, name_shards, who="door and sharded modules")
    attach.after_import(FLAT_SHARDS, name_flat_shards, who="door and flat shards")
    wrap_ddp(torch.nn.parallel.DistributedDataParallel)


def enter_in_threads(make: Callable[[], Any]) -> None:
    """Function modes belong to one thread: those that the program starts get a door, too."""
    real = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    @functools.wraps(real)
    def bootstrap(self: Any) -> None:
        with make():
            real(self)

    threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined]


def enter_in_backward(make: Callable[[], Any]) -> None:
    """A backward pass runs with the door shut, as the call that began it is inside of it: hooks and
    functions of the program's get one of their own."""
    graph = torch.autograd.graph
    real = getattr(graph, "_engine_run_backward", None)
    if real is None:
        return

    @functools.wraps(real)
    def run(*args: Any, **kwargs: Any) -> Any:
        with make():
            return real(*args, **kwargs)

    graph._engine_run_backward = run
    torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]


def start_group(real: Any) -> Any:
    """A group of processes that names the card's backend, or none, is one of gloo."""

    @functools.wraps(real)
    def start(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        place = 0 if real.__name__ == "init_process_group" else 2
        value = args[place] if len(args) > place else kwargs.get("backend")
        named = str(value) if value is not None else ""
        other = HERE if BACKEND in named or not named else value
        if len(args) > place:
            args = (*args[:place], other, *args[place + 1 :])
        elif named or place == 0:
            kwargs["backend"] = other
        made = real(*args, **kwargs)
        if BACKEND in named:
            requested_backends[made] = BACKEND
        return made

    return start


def name_backend(real: Any) -> Any:
    """The program hears the backend that it asked for."""

    @functools.wraps(real)
    def get_backend(group: Any = None) -> Any:
        found = real(group)
        return requested_backends.get(group, found) if asker() is DoorFrameOwner.PROGRAM else found

    return get_backend


def wait(real: Any) -> Any:
    """A barrier without the card."""

    @functools.wraps(real)
    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return real(group, async_op)

    return barrier


def average(real: Any) -> Any:
    """gloo sums, and doesn't average."""

    @functools.wraps(real)
    def all_reduce(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if op != dist.ReduceOp.AVG:
            return real(tensor, op, group, async_op)
        work = real(tensor, dist.ReduceOp.SUM, group, async_op)
        if async_op:
            work.wait()
        with torch._C.DisableTorchFunction():  # ours: a recorder sees no call of the program's
            tensor.div_(dist.get_world_size(group))
        return work

    return all_reduce


def wrap_mesh() -> None:
    """Meshes of cards are meshes of processes on the CPU."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    begin = DeviceMesh.__init__

    @functools.wraps(begin)
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device_type == cards.word else device_type, *args, **kwargs)

    DeviceMesh.__init__ = init  # type: ignore[method-assign]

    owner: Any = dist

    @functools.wraps(init_device_mesh)
    def mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        named = "cpu" if device_type == cards.word else device_type
        return init_device_mesh(named, *args, **kwargs)

    owner.init_device_mesh = owner.device_mesh.init_device_mesh = mesh


def name_shards() -> None:
    """What sharding gathers lies on this process's card: the mesh here is one of the CPU."""
    module = sys.modules[SHARDS]
    real = module._get_device_from_mesh

    @functools.wraps(real)
    def device_of(mesh: Any) -> torch.device:
        return cards.inner(cards.current) if mesh.device_type == "cpu" else real(mesh)

    module._get_device_from_mesh = device_of  # type: ignore[attr-defined]


def name_flat_shards() -> None:
    """What FullyShardedDataParallel compares its parameters' device with, in the words that torch's
    own lines hear of a card."""
    module: Any = sys.modules[FLAT_SHARDS]
    real = module._get_compute_device

    @functools.wraps(real)
    def device_of(*args: Any, **kwargs: Any) -> torch.device:
        found: torch.device = real(*args, **kwargs)
        card = cards.read(found)
        return found if card is None or card == HOST else cards.inner(card)

    module._get_compute_device = device_of


def wrap_ddp(kind: Any) -> None:
    """One process, one card: the module's own."""
    begin, forward = kind.__init__, kind.forward

    @functools.wraps(begin)
    def init(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *a: Any, **k: Any
    ) -> None:
        begin(self, module, None, None, *a, **k)

    kind.__init__ = init
    kind.forward = from_host(forward)


def wrap_data_parallel(kind: Any) -> None:
    """The batch in one piece: the sum of gradients is that of its parts."""

    @functools.wraps(kind.__init__)
    def init(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        torch.nn.Module.__init__(self)
        self.module, self.device_ids, self.dim = module, [], dim
        self.output_device = cards.current

    kind.__init__ = init
    kind.forward = from_host(kind.forward)


def from_host(forward: Any) -> Any:
    """Such wrappers bring their inputs to the module's card."""

    @functools.wraps(forward)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = next(self.module.parameters(), None)
        card = HOST if first is None else card_of(first)
        if card != HOST:
            args, kwargs = bring_to_card((args, kwargs), card)
        return forward(self, *args, **kwargs)

    return call


def bring_to_card(value: Any, card: int) -> Any:
    """Nested tensors on a card."""
    if isinstance(value, torch.Tensor):
        return move(value, card, clone=True)
    if isinstance(value, list | tuple):
        made = [bring_to_card(one, card) for one in value]
        if hasattr(value, "_fields"):
            return type(value)(*made)
        return type(value)(made)
    if isinstance(value, dict):
        return {name: bring_to_card(one, card) for name, one in value.items()}
    return value
