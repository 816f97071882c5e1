"""What an error of a step means: too little memory, a lost device, or a text's own fault."""

from __future__ import annotations

import torch

# As torch, torch_npu and the allocators word it; CPU and NPU allocators raise plain RuntimeErrors.
SHORT = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "memory_allocation",
)
# Errors after which no call to the device succeeds: CUDA's sticky ones, and those that torch_npu's
# library names when a task was aborted or memory broke.
LOST = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction",
    "unspecified launch failure",
    "misaligned address",
    "hardware stack error",
    "uncorrectable ecc",
    "device is lost",
    "device lost",
    "fallen off the bus",
    "force stop",
    "device task abort",
    "uce error",
    "hbm multi bit ecc",
    "suspect mem error",
    "suspect remote error",
)


def short_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; a smaller step may succeed."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and mentions(error, SHORT)


def says_lost(error: BaseException) -> bool:
    """Whether the error itself says that the device is gone."""
    return isinstance(error, RuntimeError) and mentions(error, LOST)


def of_device(error: BaseException) -> bool:
    """Whether the device or its memory failed, rather than what one text asked for."""
    return isinstance(error, torch.AcceleratorError) or short_of_memory(error) or says_lost(error)


def mentions(error: BaseException, words: tuple[str, ...]) -> bool:
    """Whether an error's text has one of these words."""
    said = str(error).lower()
    return any(word in said for word in words)


def worded(error: BaseException) -> str:
    """An error in one line, for people."""
    said = " ".join(str(error).split())
    shown = said if len(said) <= 300 else said[:297] + "..."
    return f"{type(error).__name__}: {shown}" if said else type(error).__name__
