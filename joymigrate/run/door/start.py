"""Opens the door in a process of the program: called when its Python starts."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from typing import Any

from joymigrate import attach
from joymigrate.run.door.settings import DoorSettings, read_settings

WHO = "door"
NO_PINNING = "'pin_memory' argument is set as true but no accelerator is found"
entered: list[Any] = []  # torch before 2.8 frees a mode that only its own stack holds


def start() -> None:
    """Wait for torch in this process. Calling it twice changes nothing."""
    settings = read_settings()
    if settings is None or attach.waits(WHO):
        return
    if settings.chip is None and importlib.util.find_spec("triton") is not None:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    opened = open_to_cpu if settings.chip is None else open_to_chip
    attach.after_import("torch", functools.partial(opened, settings), who=WHO)


def open_to_chip(settings: DoorSettings) -> None:
    """Catch the origin's words on their way to a chip whose package torch has loaded."""
    import torch

    from joymigrate.run.door import net
    from joymigrate.run.door.notes import notes

    words = settings.chip
    if words is None or not hasattr(torch, words.device):
        return
    notes.keep_at_exit(settings)
    net.install(words)


def open_to_cpu(settings: DoorSettings) -> None:
    """Stand in for the card on this CPU, to the end of the process."""
    import torch

    from joymigrate import chips
    from joymigrate.run.door import answers, files, generators, precision, processes, typed_tensors
    from joymigrate.run.door.cards import cards
    from joymigrate.run.door.mode import Door
    from joymigrate.run.door.notes import notes

    if torch.cuda.is_available():
        return  # the real thing is here
    cards.settings, cards.word = settings, chips.origin().device
    notes.keep_at_exit(settings)
    warnings.filterwarnings("ignore", message=f".*{NO_PINNING}")
    for part in (answers, precision, generators, processes, files):
        part.install()
    typed_tensors.install(cards)
    tell_of_compile(torch, notes)
    attach.after_import("torch._dynamo", run_plainly, who="door and torch.compile")
    entered.append(Door())
    entered[-1].__enter__()


def run_plainly() -> None:
    """Code given to `torch.compile` runs as it is: the compiler would take the door into it."""
    import torch

    stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    if stance is not None:
        stance("force_eager")


def tell_of_compile(torch: Any, notes: Any) -> None:
    """Note that the program asked for compiled code."""
    real = torch.compile

    @functools.wraps(real)
    def compile(*args: Any, **kwargs: Any) -> Any:
        notes.differs("torch.compile: run as plain code")
        return real(*args, **kwargs)

    torch.compile = compile
