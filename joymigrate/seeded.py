"""Seeds a process before its first line, so that a program that sets no seed repeats itself.

Two runs of such a program start from other weights, and nothing can be said about them. A journey
sets JOYMIGRATE_SEED for both sides; a program that sets its own seed later is not touched by it.
What asks the operating system for randomness (`numpy.random.default_rng()`, `secrets`, a seed
taken from the clock) stays as it is.
"""

from __future__ import annotations

import os
import random

from joymigrate import attach

ENVIRONMENT = "JOYMIGRATE_SEED"
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
WIDEST = 2**32  # numpy takes no larger seed


def start() -> None:
    """Seed `random` now, numpy and torch as they are imported. Each rank has its own numbers."""
    number = requested_seed()
    if number is None:
        return
    random.seed(number)
    attach.after_import("numpy", lambda: seed_numpy(number), who="seed numpy")
    attach.after_import("torch", lambda: seed_torch(number), who="seed torch")


def requested_seed() -> int | None:
    """The seed of this process; None where none was asked for."""
    text = os.environ.get(ENVIRONMENT, "")
    if not text.isdigit():
        return None
    rank = next((os.environ[name] for name in RANKS if os.environ.get(name, "").isdigit()), "0")
    return (int(text) + int(rank)) % WIDEST


def seed_numpy(number: int) -> None:
    """Seed numpy's global generator."""
    import numpy as np

    np.random.seed(number)


def seed_torch(number: int) -> None:
    """Seed torch's generators; those of devices that are not there yet take it when they come."""
    import torch

    torch.manual_seed(number)
