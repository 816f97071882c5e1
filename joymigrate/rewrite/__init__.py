"""Source → findings → patch: what keeps a program on one vendor's devices, and the way off."""

from __future__ import annotations

from joymigrate.rewrite.patches import patches
from joymigrate.rewrite.project import scan

__all__ = ["patches", "scan"]
