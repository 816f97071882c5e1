"""Tensor parallel: every process computes its heads and its part of the mlp; sums join them.

One process decides and samples; the others are told each step's batch and compute the same layers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from joymigrate.device import leave_group
from joymigrate.run.serve.engine.devices import card_of, device_of, dtype_of
from joymigrate.run.serve.engine.launch import free_port
from joymigrate.run.serve.engine.models.open import load_model
from joymigrate.run.serve.engine.share import ProcessShare

if TYPE_CHECKING:
    from joymigrate.run.serve.engine.batch import Batch
    from joymigrate.run.serve.engine.cache import Cache
    from joymigrate.run.serve.engine.types import EngineOptions

TOLD = ("ids", "positions", "slots", "table", "starts", "lengths", "rows", "spans")
START_SECONDS = 300.0


class Team:
    """The other processes of an engine, seen from the first one."""

    def __init__(self, folder: Path, options: EngineOptions) -> None:
        """Start `options.tensor_parallel` - 1 processes, which load their shares meanwhile."""
        import torch.multiprocessing as mp

        self.world = options.tensor_parallel
        self.address = f"tcp://127.0.0.1:{free_port()}"
        context = mp.get_context("spawn")
        self.processes = [
            context.Process(
                target=work,
                args=(rank, self.world, self.address, str(folder), options),
                name=f"engine-{rank}",
                daemon=True,
            )
            for rank in range(1, self.world)
        ]
        for process in self.processes:
            process.start()
        self.share = join(0, self.world, self.address, options.device)

    def ready(self, cache: Cache) -> None:
        """Tell the others how many blocks there are; returns when all have theirs."""
        tell({"blocks": cache.blocks, "size": cache.size}, self.share)

    def forward(self, model: Any, cache: Cache) -> Any:
        """A function that computes a batch in all processes."""

        def run(batch: Batch) -> Tensor:
            if dead := [p.name for p in self.processes if not p.is_alive()]:
                raise RuntimeError(f"{dead[0]} ended; its share of the model is gone")
            tell({name: plain(getattr(batch, name)) for name in TOLD}, self.share)
            hidden: Tensor = model.hidden(batch, cache)
            return hidden

        return run

    def close(self, *, broken: bool = False) -> None:
        """End the other processes; those of a `broken` engine, which hear nothing, are killed."""
        if broken:
            for process in self.processes:
                process.kill()
        elif any(process.is_alive() for process in self.processes):
            tell(None, self.share)
        for process in self.processes:
            process.join(timeout=10)
        leave_group()


def work(rank: int, world: int, address: str, folder: str, options: EngineOptions) -> None:
    """One of the other processes: its share of the model, computed whenever it is told to."""
    import torch

    from joymigrate.run.serve.engine.batch import Batch
    from joymigrate.run.serve.engine.cache import Cache
    from joymigrate.run.serve.engine.models.spec import read_config

    torch.set_num_threads(options.threads or 1)
    kind = options.device.partition(":")[0]
    mine = replace(options, device=kind if kind == "cpu" else f"{kind}:{rank}")
    device = device_of(mine.device)
    share = join(rank, world, address, mine.device)
    raw = read_config(Path(folder))
    with torch.inference_mode():
        card = card_of(device, mine.device)
        dtype = dtype_of(options.dtype, raw, device)
        model = load_model(Path(folder), raw, dtype, card, mine, share)
        told: Any = hear(share)
        cache = Cache(model.shapes, told["blocks"], told["size"], dtype, card, options.attention,
                      pretouch=options.pretouch)  # fmt: skip
        while (told := hear(share)) is not None:
            batch = Batch(**{name: back(value, card) for name, value in told.items()}, ranges=[])
            model.hidden(batch, cache)
    leave_group()


def join(rank: int, world: int, address: str, device: str) -> ProcessShare:
    """Meet the other processes. Sums go through the device's own library, words through gloo."""
    from datetime import timedelta

    import torch.distributed as dist

    backend = device_of(device).backend
    dist.init_process_group(
        backend if backend == "gloo" else f"cpu:gloo,{device.partition(':')[0]}:{backend}",
        init_method=address,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=START_SECONDS),
    )
    words = dist.new_group(backend="gloo", timeout=timedelta(days=30))  # idle engines wait long
    return ProcessShare(rank, world, None, words)


def tell(message: Any, share: ProcessShare) -> None:
    """Send something to all other processes."""
    import torch.distributed as dist

    dist.broadcast_object_list([message], src=0, group=share.words)


def hear(share: ProcessShare) -> Any:
    """What the first process tells."""
    import torch.distributed as dist

    box = [None]
    dist.broadcast_object_list(box, src=0, group=share.words)
    return box[0]


def plain(value: Any) -> Any:
    """A part of a batch that travels: tensors on the CPU."""
    return value.cpu() if isinstance(value, Tensor) else value


def back(value: Any, device: Any) -> Any:
    """A part of a batch that arrived, on this process's device."""
    return value.to(device) if isinstance(value, Tensor) else value
