"""What is seen of every step to the program's end, at the cost of a few numbers.

Random states, data, shapes of calls, losses, and how far the update moves the weights. Nothing of
it waits for the device before a block of steps is over.
"""

from __future__ import annotations

import functools
import random
import weakref
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from joymigrate.verify import pytree
from joymigrate.verify.isolated_pass import accelerators

MOST = 20_000  # numbers of one series
MOST_CALLS = 4  # calls of one model in one step whose inputs are looked at
MOST_PARAMETERS = 8  # whose moves are measured
MOST_TOUCHED = 8  # more, that are changed in a way that no step recorded exactly has shown
SAMPLED = 4096  # elements of one of them
READ = 1 << 16  # elements of an input
MOST_GENERATORS = 8
MOST_HELD = 512  # tensors of a model that is called in a new way
BLOCK = 32  # steps between two copies from the device
MARK = "mark "  # before a parameter's name: a few of its values after each step, in memory only
MARKED = 4
EXACT = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class RunWatch:
    """Series of numbers by name; each item is [step, …]."""

    def __init__(self) -> None:
        self.series: dict[str, list[list[Any]]] = {}
        self.pending: list[tuple[str, int, torch.Tensor]] = []
        self.derived: dict[str, bool] = {}  # input → made from what a model returned
        self.shapes: dict[str, str] = {}  # hash of a call's shapes → the shapes
        self.sampled: dict[str, tuple[Any, torch.Tensor]] = {}  # parameter, values after the step
        self.versions: dict[str, int] = {}  # parameter → how often it was written, as a step ends
        self.stepped: dict[str, int] = {}  # parameter → the same, after its optimiser has stepped
        self.usual: dict[str, set[int]] = {}  # how often it is written in steps recorded exactly
        self.touched: dict[str, Any] = {}  # parameters that were changed in another way
        self.own: dict[str, torch.Tensor] = {}  # trained tensors that are in no module
        self.called: dict[str, int] = {}
        self.last: dict[str, int] = {}  # generator → state after the step before
        self.generators: dict[str, torch.Generator] = {}  # of loaders and their samplers
        self.loaders: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self.made_loaders = 0
        self.handed: dict[str, int] = {}  # loader → number of its last batch
        self.first: dict[str, int] = {}  # loader → checksum of all of its first batch
        self.chooses = False  # the program reads whole numbers of its models, which rounding flips
        self.unchosen: dict[str, int] = {}  # input → last step in which no choice came before it
        self.blind = False  # models are called after it, in steps whose choices are not seen
        self.takes = False  # it takes tensors of its models out of torch, as arrays or lists
        self.steps = 0

    def note(self, name: str, step: int, *values: Any) -> None:
        """One item of a series."""
        found = self.series.setdefault(name, [])
        if len(found) < MOST:
            found.append([step, *values])

    def later(self, name: str, step: int, values: torch.Tensor) -> None:
        """One item whose numbers are still on the device."""
        if len(self.series.get(name, ())) < MOST:
            self.pending.append((name, step, values))

    def flush(self) -> None:
        """Copy what is still on devices."""
        for name, step, values in self.pending:
            self.note(name, step, *values.tolist())
        self.pending = []

    # -- what is looked at -----------------------------------------------------------------------

    def call(
        self,
        place: str,
        step: int,
        given: Mapping[str, Any],
        derived: Mapping[int, bool] | None,
        chosen: bool = False,
    ) -> None:
        """A model is called from outside. `derived`: which inputs a model made; None: not known.
        `chosen`: the program has read whole numbers in this step."""
        leaves = list(pytree.tensors(given, objects=True))
        words = " ".join(f"{leaf}{list(t.shape)}" for leaf, t in leaves)
        words += "".join(f" {leaf}={value}" for leaf, value in settings_in(given))
        key = f"{zlib.crc32(words.encode()):08x}"
        if len(self.shapes) < 1000:
            self.shapes.setdefault(key, words[:400])
        self.note(f"shapes {place}", step, key)
        number = self.called[place] = self.called.get(place, -1) + 1
        if number >= MOST_CALLS:
            return
        for leaf, tensor in leaves:
            plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
            if not plain or tensor.is_meta or not tensor.numel():
                continue
            name = f"input {place} {leaf} {number}"
            if not (chosen or self.chooses):
                self.unchosen[name] = step
            if derived is not None:
                self.derived[name] = self.derived.get(name, False) or derived[id(tensor)]
            if not self.derived.get(name):
                self.later(name, step, fingerprint(tensor.detach()))

    def held(self, root: str, step: int, module: torch.nn.Module) -> None:
        """A model is called in a way that is new: what its weights and buffers are, by two numbers
        of each. Training moved them; a program may have changed one by hand."""
        named = [*module.named_parameters(), *module.named_buffers()]
        for leaf, tensor in named[:MOST_HELD]:
            plain = type(tensor) in (torch.nn.Parameter, torch.Tensor)  # none that is spread
            floating = tensor.is_floating_point() and tensor.layout is torch.strided
            if plain and floating and tensor.numel() and not tensor.is_meta:
                self.later(f"held {root}:{leaf}", step, fingerprint(tensor.detach()))

    def result(self, place: str, step: int, made: Any) -> None:
        """What a model returned in a call without gradients: losses tell nothing of it."""
        number = self.called.get(place, 0)
        if number >= MOST_CALLS:
            return
        for leaf, tensor in pytree.tensors(made):
            plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
            if plain and tensor.is_floating_point() and tensor.numel() and not tensor.is_meta:
                self.later(f"result {place} {leaf} {number}", step, fingerprint(tensor.detach()))

    def loss(self, step: int, tensors: Any) -> None:
        """A backward pass begins."""
        given = tensors if isinstance(tensors, list | tuple) else [tensors]
        for tensor in given:
            if isinstance(tensor, torch.Tensor) and tensor.numel() == 1:
                number = self.called["loss"] = self.called.get("loss", -1) + 1
                if number < MOST_CALLS:
                    self.later(f"loss {number}", step, tensor.detach().reshape(1).clone())

    def batch(self, iterator: Any, value: Any) -> tuple[str, int]:
        """A data loader hands out a batch. `iterator` is its iterator. Returns the loader's name
        and the batch's number there."""
        loader = getattr(iterator, "_index_sampler", iterator)
        name = self.loaders.get(loader)
        if name is None:
            name = self.loaders[loader] = f"loader {self.made_loaders}"
            self.made_loaders += 1
            sampler = getattr(loader, "sampler", loader)
            held = getattr(sampler, "generator", None)
            if isinstance(held, torch.Generator) and len(self.generators) < MOST_GENERATORS:
                self.generators[f"sampler of {name}"] = held
        total, whole = 0, name not in self.handed
        for leaf, tensor in pytree.tensors(value, objects=True):
            plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
            if tensor.device.type == "cpu" and plain:
                total = zlib.crc32(leaf.encode(), total)
                total = zlib.crc32(sampled_bytes(tensor, READ), total)
                if whole:
                    all_of_it = sampled_bytes(tensor, 2 * tensor.numel())
                    self.first[name] = zlib.crc32(all_of_it, self.first.get(name, 0))
        number = self.handed[name] = self.handed.get(name, -1) + 1
        self.note(f"batch {name}", number, total)
        return name, number

    def updated(self, step: int) -> None:
        """An optimiser has stepped: what its weights are, before the program changes them by hand
        (an average that is swapped in before validation)."""
        for name, (parameter, _) in self.sampled.items():
            if not parameter.is_inference():
                self.stepped[name] = int(parameter._version)
            self.later(
                f"{MARK}{name}", step, mark(sample_strided(parameter.detach(), SAMPLED).float())
            )

    def end_of_step(
        self, step: int, trained: Mapping[str, torch.nn.Module], exact: bool = True
    ) -> None:
        """Random states, and how far the weights moved. `exact`: the step is recorded exactly."""
        for name, state in self.states():
            if self.last.get(name) != state:
                self.note(f"random {name}", step, state)
                self.last[name] = state
        if not trained:
            for name, tensor in list(self.own.items())[:MOST_PARAMETERS]:
                self.sampled.setdefault(name, (tensor, sample_strided(tensor.detach(), 0)))
        touched = self.touched_now(trained, exact)
        for name, parameter in [*self.chosen(trained), *touched]:
            now = sample_strided(parameter.detach(), SAMPLED).float().clone()
            stepped = self.stepped.pop(name, None)
            if stepped is not None and stepped != parameter._version:
                self.note(f"hand {name}", step)
            before = self.sampled.get(name)
            if before is not None and before[1].shape == now.shape:
                moved = torch.linalg.vector_norm(now - before[1].to(now.device))
                norms = torch.stack([moved, torch.linalg.vector_norm(now)])
                self.later(f"update {name}", step, norms)
            elif name in self.touched:
                self.later(f"weight {name}", step, torch.linalg.vector_norm(now).reshape(1))
            self.sampled[name] = (parameter, now)
            self.later(f"{MARK}{name}", step, mark(now))
        self.called.clear()
        self.steps = max(self.steps, step + 1)
        if step % BLOCK == BLOCK - 1:
            self.flush()

    def touched_now(
        self, trained: Mapping[str, torch.nn.Module], exact: bool
    ) -> list[tuple[str, Any]]:
        """Parameters that this step has written more or less often than any step that was recorded
        exactly: a program changes them by hand now and then."""
        found = []
        for root, module in trained.items():
            for leaf, parameter in module.named_parameters():
                if parameter.is_inference():  # counts no versions
                    continue
                name, version = f"{root}:{leaf}", int(parameter._version)
                before, self.versions[name] = self.versions.get(name), version
                if before is None:
                    continue
                times = version - before
                usual = self.usual.setdefault(name, set())
                if exact:
                    usual.add(times)
                elif (
                    times not in usual
                    and name not in self.sampled
                    and len(self.touched) < MOST_TOUCHED
                    and type(parameter) is torch.nn.Parameter
                    and not parameter.is_meta
                ):
                    self.touched[name] = parameter
                    found.append((name, parameter))
        return found

    def begin(self) -> None:
        """Before the first step: where random states begin."""
        for name, state in self.states():
            self.note(f"random {name}", -1, state)
            self.last[name] = state

    def chosen(self, trained: Mapping[str, torch.nn.Module]) -> Iterable[tuple[str, Any]]:
        """Parameters that are looked at: a few, spread over each model."""
        yield from [(name, parameter) for name, (parameter, _) in self.sampled.items()]
        for root, module in trained.items():
            if any(name.startswith(f"{root}:") for name in self.sampled):
                continue
            found = [
                (name, p)
                for name, p in module.named_parameters()
                if p.requires_grad and not p.is_meta and type(p) is torch.nn.Parameter
            ]
            room = MOST_PARAMETERS - len(self.sampled)
            if found and room > 0:
                stride = -(-len(found) // room)
                yield from ((f"{root}:{name}", p) for name, p in found[::stride])

    def states(self) -> Iterable[tuple[str, int]]:
        """(generator, hash of its state) of all that the program may draw from."""
        yield "torch", hash_of(torch.get_rng_state())
        state = np.random.get_state(legacy=True)
        yield "numpy", zlib.crc32(state[1].tobytes(), int(state[2]))  # type: ignore[index]
        yield "python", zlib.crc32(np.asarray(random.getstate()[1], np.uint64).tobytes())
        for name, generator in self.generators.items():
            yield name, hash_of(generator.get_state())
        for module in accelerators():
            name = module.__name__.split(".")[-1]
            yield f"device {name}", hash_of(module.get_rng_state())

    def to_json(self) -> dict[str, Any]:
        """For `watch.json`."""
        self.flush()
        return {
            "first": self.first,
            "series": {k: v for k, v in self.series.items() if not k.startswith(MARK)},
            "own": sorted(name for name, made in self.derived.items() if not made),
            "derived": sorted(name for name, made in self.derived.items() if made),
            "unchosen": self.unchosen,
            "shapes": self.shapes,
            "steps": self.steps,
            "chooses": self.chooses,
            "blind": self.blind,
            "takes": self.takes,
        }


def settings_in(given: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Whole numbers, truths and words that a model is called with, and where they stand."""
    found = [(k, v) for k, v in pytree.scalars(given).items() if isinstance(v, bool | int | str)]
    return found[:64]


def hash_of(state: torch.Tensor) -> int:
    """A generator's state in one number."""
    return zlib.crc32(state.cpu().numpy().tobytes())


def sample_strided(tensor: torch.Tensor, most: int) -> torch.Tensor:
    """Up to `most` elements, spread evenly; complex ones as pairs."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = tensor.reshape(-1)
    if not most:
        return flat[:0]
    return flat[:: -(-flat.numel() // most)] if flat.numel() > most else flat


def mark(sample: torch.Tensor) -> torch.Tensor:
    """A few values of the part of a weight that is watched: they tell one step from another."""
    return sample_strided(sample, MARKED)[:MARKED].clone()


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Two numbers of an input: a signed sum and the norm; of whole numbers exact sums, int64."""
    flat = sample_strided(tensor, READ)
    if flat.dtype in EXACT:
        flat = flat.to(torch.int64)
        weights = torch.arange(flat.numel(), device=flat.device) % 8191 + 1
        return torch.stack([flat.sum(), (flat * weights).sum()])
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    flat = flat.float()
    sign = signs_on(flat.numel(), flat.device)
    return torch.stack([flat @ sign, torch.linalg.vector_norm(flat)])


@functools.lru_cache(maxsize=64)
def signs_on(count: int, device: torch.device) -> torch.Tensor:
    """+1 and -1, the same on every machine."""
    bits = np.random.Generator(np.random.PCG64(11)).integers(0, 2, count, np.int8)
    return torch.from_numpy((bits * 2 - 1).astype(np.float32)).to(device)


def sampled_bytes(tensor: torch.Tensor, most: int) -> bytes:
    """Up to `most` elements of a batch on the host, as bytes."""
    flat = sample_strided(tensor.detach(), most).contiguous()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
