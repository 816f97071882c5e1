"""What a recording is asked for, on its way from the command line into the program's processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from joymigrate import settings as stored

ENVIRONMENT = "JOYMIGRATE_VERIFY"
MODULES, OPS = "modules", "ops"
LEVELS = (MODULES, OPS)
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """`first … last` are the recorded steps; `tensor_steps` those whose modules are kept.

    `baseline` makes the run a replay: its modules are taught what that bundle holds. `window` are
    patterns of module names: only these are kept. `noise` is a simulated rounding difference, in
    units in the last place. `arguments` are patterns of operators or modules: arguments and
    results of such calls are kept, in up to `arguments_bytes`. Batches of data loaders are kept in
    up to `batches_bytes`; with `give_batches` the target gets those of the baseline. `again` is
    another run of a baseline: nothing of its modules is kept, and it ends behind step `until`.
    """

    bundle: str
    level: str = MODULES
    first: int = 0
    last: int = 2
    tensor_steps: tuple[int, ...] = (0,)
    budget_bytes: int = 2 * GIB
    stats_only: bool = False
    inputs: bool = True
    gradients: bool = True
    window: tuple[str, ...] = ()
    baseline: str | None = None
    alignment: str | None = None
    noise: float = 0.0
    quiet: bool = False
    arguments: tuple[str, ...] = ()
    arguments_bytes: int = GIB >> 2
    batches_bytes: int = 0
    give_batches: bool = False
    again: bool = False
    until: int | None = None
    noise_seed: int = 1

    @property
    def path(self) -> Path:
        """The bundle's folder."""
        return Path(self.bundle)

    def wants(self, step: int) -> bool:
        """Whether a step is recorded."""
        return self.first <= step <= self.last


def read_settings() -> RecordingSettings | None:
    """The settings of this process; None outside of a recording."""
    name = os.environ.get(ENVIRONMENT)
    if not name:
        return None
    try:
        return stored.read(RecordingSettings, Path(name))
    except (OSError, ValueError):
        return None  # the recording is over: a process that outlived it
