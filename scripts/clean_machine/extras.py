"""The extras that pyproject.toml declares."""

from __future__ import annotations

import re
from pathlib import Path


def declared(path: Path) -> list[str]:
    """Names under [project.optional-dependencies], in their order. Python 3.10 has no tomllib."""
    text = path.read_text(encoding="utf-8")
    table = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    return re.findall(r"(?m)^([\w-]+) = \[", table)
