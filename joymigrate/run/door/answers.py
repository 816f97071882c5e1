"""Puts the answers of the table in the place of torch.cuda's own, and of torch.accelerator's."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from joymigrate import chips
from joymigrate.run.door import streams, typed_tensors
from joymigrate.run.door.cards import cards
from joymigrate.run.door.frames import DoorFrameOwner, asker, in_import_of_package
from joymigrate.run.door.marks import HOST, memory
from joymigrate.run.door.notes import StandIn, notes
from joymigrate.run.door.table import properties, table


def install() -> None:
    """Replace what programs ask, to the end of the process."""
    given, module = table(), torch.cuda
    for name, value in given.constants.items():
        set_below(module, name, functools.partial(constant, value))
    for name in given.silent:
        set_below(module, name, nothing)
    for name, when in given.memory.items():
        set_below(module, name, functools.partial(count_bytes, when))
    for name, reason in given.missing.items():
        set_below(module, name, missing(f"torch.{cards.word}.{name}", reason))
    for name, answer in live_answers().items():
        set_below(module, name, answer)
    for name, kind in typed_tensors.kinds(cards).items():
        setattr(module, name, kind)
    refuse_the_rest(module)
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    for name, other in given.accelerator.items():
        if hasattr(accelerator, name):
            real = getattr(accelerator, name)
            setattr(accelerator, name, outside(real, getattr(module, other)))
    if accelerator is not None:
        named = outside(accelerator.current_accelerator, lambda *a, **k: torch.device(cards.word))
        accelerator.current_accelerator = named
    if torch.version.cuda is None:
        del torch.version.cuda
        torch.version.__class__ = BuildVersions
    streams.install()


def set_below(module: Any, name: str, value: Any) -> None:
    """Set a name with dots below a module, where its parent is there."""
    *parents, last = name.split(".")
    for one in parents:
        module = getattr(module, one, None)
    if module is not None:
        setattr(module, last, value)


def constant(value: Any, *args: Any, **kwargs: Any) -> Any:
    """A fixed answer."""
    return list(value) if isinstance(value, list) else value


def nothing(*args: Any, **kwargs: Any) -> None:
    """A call that has nothing to do here."""


def count_bytes(when: str, device: Any = None) -> int:
    """Bytes on a card."""
    counts = memory.now if when == "now" else memory.peak
    return int(counts[cards.named(device)])


def missing(what: str, reason: str) -> Callable[..., Any]:
    """A name that ends the program with its reason when it is called, or made."""

    class Missing:
        """Nothing stands in for it."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            raise notes.refuse(what, reason)

    Missing.__name__ = what.rpartition(".")[2]
    return Missing


def refuse_the_rest(module: Any) -> None:
    """Functions that go to CUDA itself and that no row of the table names."""
    for name in module.__all__:
        found = getattr(module, name, None)
        if not isinstance(found, types.FunctionType) or not found.__module__.startswith("torch."):
            continue
        if any(one.startswith(("_cuda_", "_lazy_init")) for one in found.__code__.co_names):
            setattr(module, name, missing(f"torch.{cards.word}.{name}", "it asks CUDA itself"))


def outside(real: Any, answer: Callable[..., Any]) -> Callable[..., Any]:
    """`answer` for the program, `real` for torch's own lines, which work on the CPU."""

    @functools.wraps(real)
    def either(*args: Any, **kwargs: Any) -> Any:
        return (answer if asker() is DoorFrameOwner.PROGRAM else real)(*args, **kwargs)

    return either


def live_answers() -> dict[str, Any]:
    """The answers that have to be found out."""
    model = properties(cards.settings.model, chips.origin())
    seed = torch.default_generator.manual_seed

    def set_device(device: Any) -> None:
        named = cards.read(device)
        if named is not None and named != HOST:
            cards.current = named

    def manual_seed(number: int) -> None:
        """One generator draws for host and cards here: the program's own seed of torch stands."""
        if not cards.seeded:
            seed(int(number))

    def describe(device: Any = None) -> Any:
        shown = {name: value for name, value in model.items() if name != "capability"}
        major, minor = model["capability"]
        more = {"warp_size": 32, "is_integrated": False, "is_multi_gpu_board": False, "uuid": ""}
        more |= {"max_threads_per_multi_processor": 2048, "gcnArchName": "", "L2_cache_size": 0}
        more |= {"shared_memory_per_block": 49152, "shared_memory_per_block_optin": 166912}
        return Properties({**shown, **more, "major": major, "minor": minor})

    def free_and_total(device: Any = None) -> tuple[int, int]:
        total = model["total_memory"]
        return total - count_bytes("now", device), total

    def statistics(device: Any = None) -> dict[str, int]:
        kinds = {"current": "now", "peak": "peak"}
        of = ("allocated_bytes", "reserved_bytes", "active_bytes")
        return {f"{a}.all.{k}": count_bytes(when, device) for a in of for k, when in kinds.items()}

    def is_there() -> bool:
        """Also whether torch has begun to use one; joymigrate's own lines know better."""
        return cards.count() > 0 and asker() is not DoorFrameOwner.OURS

    return {
        "is_available": is_there,
        "is_initialized": is_there,
        "device_count": cards.count,
        "_device_count_nvml": cards.count,
        "current_device": lambda: cards.current,
        "set_device": set_device,
        "get_device_name": lambda device=None: model["name"],
        "get_device_properties": describe,
        "get_device_capability": lambda device=None: model["capability"],
        "mem_get_info": free_and_total,
        "memory.mem_get_info": free_and_total,
        "memory_stats": statistics,
        "memory_stats_as_nested_dict": statistics,
        "memory_summary": lambda *a, **k: f"allocated: {count_bytes('now')} bytes (stand-in)",
        "reset_peak_memory_stats": lambda device=None: memory.reset_peak(cards.named(device)),
        "reset_max_memory_allocated": lambda device=None: memory.reset_peak(cards.named(device)),
        "reset_max_memory_cached": lambda device=None: memory.reset_peak(cards.named(device)),
        "device": at_card,
        "device_of": lambda tensor: at_card(None),
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "seed": torch.seed,
        "seed_all": torch.seed,
        "initial_seed": torch.initial_seed,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state() for _ in range(cards.count())],
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "set_rng_state_all": lambda states: torch.set_rng_state(next(iter(states))),
    }


class BuildVersions(types.ModuleType):
    """`torch.version` of a torch without CUDA. A package that is being imported hears so, as it
    would hold another release against that of its own build (torchvision, torchaudio, PyTorch
    Geometric's extensions: each asks whether it is None first)."""

    def __getattr__(self, name: str) -> str | None:
        """The release of CUDA; None for torch, for us, and in an import of a package."""
        if name != "cuda":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if asker() is not DoorFrameOwner.PROGRAM or in_import_of_package(sys._getframe(1)):
            return None
        return table().version


class Properties(StandIn):
    """What `torch.cuda.get_device_properties` gives."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self.__dict__.update(shown)

    def __repr__(self) -> str:
        return f"_CudaDeviceProperties({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class at_card:
    """`torch.cuda.device(card)`: another current card for a while."""

    def __init__(self, device: Any) -> None:
        self.card = None if device is None else cards.named(device)
        self.before = cards.current
        if self.card is not None and self.card < 0:
            self.card = None

    def __enter__(self) -> None:
        self.before = cards.current
        if self.card is not None:
            cards.current = self.card

    def __exit__(self, *raised: Any) -> None:
        cards.current = self.before
