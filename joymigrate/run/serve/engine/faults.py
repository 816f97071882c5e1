"""What an error of a step means: too little memory, a lost device, or a text's own fault."""

from __future__ import annotations

from functools import cache

import torch

# As torch and the allocators word it; those of the CPU and of some chips raise plain RuntimeErrors.
SHORT = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "memory_allocation",
)
LOST = ("device is lost", "device lost")  # each chip's own words are in its serve.yaml


@cache
def lost_words() -> tuple[str, ...]:
    """What errors say after which no call to a device succeeds, of all chips, in lower case."""
    from joymigrate import chips
    from joymigrate.run.serve.engine.launch import FILE, EnginesFile
    from joymigrate.schema import read_file

    found = list(LOST)
    for chip in chips.all_chips().values():
        path = chip.folder / FILE
        if path.is_file():
            found += [words.lower() for words in read_file(EnginesFile, path).lost]
    return tuple(found)


def short_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; a smaller step may succeed."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and mentions(error, SHORT)


def says_lost(error: BaseException) -> bool:
    """Whether the error itself says that the device is gone."""
    return isinstance(error, RuntimeError) and mentions(error, lost_words())


def of_device(error: BaseException) -> bool:
    """Whether the device or its memory failed, rather than what one text asked for."""
    return isinstance(error, torch.AcceleratorError) or short_of_memory(error) or says_lost(error)


def mentions(error: BaseException, words: tuple[str, ...]) -> bool:
    """Whether an error's text has one of these words."""
    said = str(error).lower()
    return any(word in said for word in words)


def word_error(error: BaseException) -> str:
    """An error in one line, for people."""
    said = " ".join(str(error).split())
    shown = said if len(said) <= 300 else said[:297] + "..."
    return f"{type(error).__name__}: {shown}" if said else type(error).__name__
