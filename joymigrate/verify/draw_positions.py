"""How many numbers each generator has given, by kind, since it was seeded.

The position of torch's own generators is moved by `torch.manual_seed` and kept with the states that
`torch.get_rng_state` hands out: their real state is left alone, for a program's loaders take their
seeds from it. A generator of the program's own is told by its state, which every draw moves on.
"""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from joymigrate.seeded import requested_seed
from joymigrate.verify.draws import DrawMode, Draws
from joymigrate.verify.identity_map import IdentityMap

Counts = dict[str, int]  # kind and shape of a draw → draws so far
# They start other generators, which draw numbers of their own, the same on every device.
SEEDS = ("random", "random_")
MOST_STATES = 256  # of one generator of the program's own that are known again


@dataclass(slots=True)
class Position:
    """A seed, and what was drawn since."""

    seed: int
    counts: Counts = field(default_factory=dict)

    def copy(self) -> Position:
        """The same position, for itself."""
        return Position(self.seed, dict(self.counts))

    def next(self, place: str) -> tuple[int, int]:
        """The seed and the number of the next draw of this kind."""
        number = self.counts[place] = self.counts.get(place, -1) + 1
        return self.seed, number


@dataclass(slots=True)
class GeneratorPosition:
    """A generator of the program's own: where it stands, and its last states."""

    position: Position
    state: str
    states: OrderedDict[str, Counts] = field(default_factory=OrderedDict)

    def find(self, generator: torch.Generator) -> None:
        """Take up what the program did to it since the last draw."""
        state, seed = state_of(generator), generator.initial_seed()
        if state in self.states:
            self.position = Position(seed, dict(self.states[state]))
        elif seed != self.position.seed or state == first_state(generator.device, seed):
            self.position = Position(seed)
        self.state = state  # else: other code drew from it, and it goes on

    def keep(self, state: str) -> None:
        """Its state now, after a draw."""
        self.state = state
        self.states[state] = dict(self.position.counts)
        if len(self.states) > MOST_STATES:
            self.states.popitem(last=False)


class DrawPositions:
    """The positions of all generators of a process."""

    def __init__(self, seed: int) -> None:
        self.default = Position(seed)
        self.saved: IdentityMap[Position] = IdentityMap()  # by state that was handed out
        self.own: IdentityMap[GeneratorPosition] = IdentityMap()

    def next(self, generator: torch.Generator | None, place: str) -> tuple[int, int]:
        """The seed and the number of a generator's next draw. None: torch's own of any device."""
        if generator is None or generator is torch.default_generator:
            return self.default.next(place)
        known = self.own.get(generator)
        if known is None:
            known = GeneratorPosition(Position(generator.initial_seed()), state_of(generator))
            known.keep(known.state)
            self.own.put(generator, known)
        elif state_of(generator) != known.state:
            known.find(generator)
        found = known.position.next(place)
        torch.empty(1, device=generator.device).uniform_(generator=generator)
        known.keep(state_of(generator))
        return found

    def watch_default(self) -> None:
        """Follow what the program does to torch's own generators, to the process's end."""
        seed, get, put = torch.manual_seed, torch.get_rng_state, torch.set_rng_state

        @functools.wraps(seed)
        def manual_seed(seed_: Any) -> Any:
            made = seed(seed_)
            self.default = Position(int(seed_))
            return made

        @functools.wraps(get)
        def get_rng_state() -> Any:
            state = get()
            self.saved.put(state, self.default.copy())
            return state

        @functools.wraps(put)
        def set_rng_state(new_state: Any) -> None:
            put(new_state)
            held = self.saved.get(new_state)
            if held is not None:
                self.default = held.copy()

        for name, new in (
            ("manual_seed", manual_seed),
            ("get_rng_state", get_rng_state),
            ("set_rng_state", set_rng_state),
        ):
            for owner in (torch, torch.random):
                setattr(owner, name, new)


def state_of(generator: torch.Generator) -> str:
    """A short name of a generator's state."""
    return hashlib.sha256(generator.get_state().numpy().tobytes()).hexdigest()[:16]


def first_state(device: torch.device, seed: int) -> str:
    """The state of a generator that was seeded just now."""
    return state_of(torch.Generator(device).manual_seed(seed))


class SharedDraws(Draws):
    """Draws that are counted by generator, operator and shape. No log, for a program draws without
    end."""

    def __init__(self) -> None:
        super().__init__(lambda: "")
        self.shape: tuple[int, ...] = ()
        self.source: torch.Generator | None = None  # None: torch's own, of any device
        self.positions = DrawPositions(requested_seed() or 0)

    def generator(self, what: str, setting: Any = None) -> np.random.Generator:
        """The generator of the next draw of this kind and shape."""
        place, self.shape = f"{what}{self.shape}", ()
        seed, number = self.positions.next(self.source, place)
        digest = hashlib.sha256(f"{seed}:{place}#{number}".encode()).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))

    def uniform(self, shape: Any, what: str, setting: Any = None) -> torch.Tensor:
        """Uniform numbers in [0, 1), float64 on the CPU."""
        self.shape = tuple(shape)
        return super().uniform(shape, what, setting)

    def normal(self, shape: Any, what: str) -> torch.Tensor:
        """Standard normal numbers, float64 on the CPU."""
        self.shape = tuple(shape)
        return super().normal(shape, what)


class SharedDrawMode(DrawMode):
    """Replaces draws, and tells of each operator once that it leaves to the device."""

    def __init__(self, draws: SharedDraws, tell: Callable[[str], None]) -> None:
        super().__init__(draws)
        self.shared, self.tell = draws, tell
        self.told: set[str] = set()

    def draw(self, name: str, args: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """The numbers, by the generator that the call names."""
        self.shared.source = kwargs.get("generator")
        try:
            made = super().draw(name, args, kwargs)
        finally:
            self.shared.source = None
        if made is None and name not in SEEDS and name not in self.told:
            self.told.add(name)
            self.tell(name)
        return made
