"""Options that the commands of `verify` share: ranges of steps, sizes."""

from __future__ import annotations

import re

from joymigrate.errors import JoyError

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def number_range(text: str) -> tuple[int, int]:
    """`0-2` or `3` as first and last."""
    match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", text)
    if not match or int(match.group(2) or match.group(1)) < int(match.group(1)):
        raise JoyError(f"--steps cannot be '{text}'", help="a range such as 0-2, or one number")
    return int(match.group(1)), int(match.group(2) or match.group(1))


def numbers(text: str) -> tuple[int, ...]:
    """`0,2` as numbers."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise JoyError(f"not a list of steps: '{text}'", help="numbers, such as 0,2") from None


def byte_size(text: str, option: str = "--budget") -> int:
    """`2GiB` in bytes."""
    match = SIZE.fullmatch(text)
    if not match:
        raise JoyError(f"{option} cannot be '{text}'", help="a size such as 2GiB or 500MiB")
    return int(float(match.group(1)) * UNITS[match.group(2).lower()])
