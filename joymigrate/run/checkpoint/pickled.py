"""Reads what torch.save wrote, without running code unless that is allowed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from joymigrate.errors import JoyError


def torch_file(path: Path, trust: bool) -> Any:
    """What torch.save wrote, on the CPU whatever device it names."""
    try:
        return torch.load(path, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        told = str(error).split("\n")[0]
        raise JoyError(
            f"holds objects that run code when they are read: {told[:200]}", where=str(path),
            help="--trust if you trust where the file comes from",
        ) from None  # fmt: skip
    except (RuntimeError, EOFError, ValueError) as error:
        raise JoyError(f"not a torch file: {str(error)[:200]}", where=str(path)) from None
