"""Which calls of torch draw random numbers, by what, and with which seeds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch

from joymigrate.verify.run_watch import hash_of
from joymigrate.verify.transforms import tensors_in

MOST_GENERATORS = 64  # whose seeds are noted
RANDOM = re.compile(
    r"^(rand|randn|randint|randperm|rand_like|randn_like|randint_like|normal|bernoulli|multinomial"
    r"|poisson|dropout|alpha_dropout|feature_dropout|dropout1d|dropout2d|dropout3d|rrelu"
    r"|gumbel_softmax|uniform_|normal_|bernoulli_|random_|exponential_|log_normal_|cauchy_"
    r"|geometric_|dropout_)$"
)


@dataclass(slots=True)
class Seeds:
    """Seeds of the generators that a program hands to its draws, as they change."""

    found: list[tuple[int, int]] = field(default_factory=list)  # (number of a generator, its seed)
    generators: list[torch.Generator] = field(default_factory=list)

    def note(self, generator: torch.Generator) -> None:
        """A generator was handed to a draw."""
        number = next((n for n, g in enumerate(self.generators) if g is generator), None)
        if number is None:
            if len(self.generators) == MOST_GENERATORS:
                return
            number = len(self.generators)
            self.generators.append(generator)
        seed = generator.initial_seed()
        if next((s for n, s in reversed(self.found) if n == number), None) != seed:
            self.found.append((number, seed))


def is_draw(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a call draws random numbers; a dropout that is off does not."""
    if not RANDOM.match(name):
        return False
    if "dropout" not in name:
        return True
    share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    on = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return bool(share and on)


def state_after(generator: torch.Generator | None, made: torch.Tensor) -> int | None:
    """A hash of the state of the generator that a tensor was drawn from, as it is after that: two
    that are equal then were equal before. None where a device has none to ask."""
    if generator is None and made.device.type != "cpu":
        ask = getattr(getattr(torch, made.device.type, None), "get_rng_state", None)
        return hash_of(ask(made.device)) if ask is not None else None
    return hash_of((generator or torch.default_generator).get_state())


def drawn_by(name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors by which a call draws: chances, means, what is dropped. Others give a shape, or
    are overwritten: `mask.bernoulli_(chances)`."""
    given = list(tensors_in((args, kwargs)))
    shape = given[:1] if name.endswith(("_", "_like")) else []
    return [t for t in given if t.is_floating_point() and not any(t is one for one in shape)]
