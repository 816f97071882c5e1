"""Kubernetes quantities: `500m`, `2`, `64Gi` as numbers."""

from __future__ import annotations

import re

SUFFIXES = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
    "Ei": 2.0**60,
}  # fmt: skip
FORM = re.compile(r"^([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i))?$")


def parse(value: object) -> float | None:
    """The number of a quantity, None when it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    match = FORM.match(str(value))
    if match is None:
        return None
    try:
        return float(match.group(1) + (match.group(2) or "")) * SUFFIXES[match.group(3) or ""]
    except ValueError:
        return None
