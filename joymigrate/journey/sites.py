"""The sites that the rewriting left in the project, as its last scan lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from joymigrate.journey.context import StepContext

LEFT = "rewrite/left.json"


def sites(at: StepContext) -> list[Mapping[str, Any]]:
    """All of them; none before the rewrite."""
    if not Path(at.path(LEFT)).is_file():
        return []
    found: list[Mapping[str, Any]] = at.load(LEFT)["findings"]
    return found


def sites_at(at: StepContext, path: str, line: int) -> list[Mapping[str, Any]]:
    """Those in one line."""
    return [one for one in sites(at) if one["path"] == path and one["line"] == line]


def device_names(at: StepContext, name: str) -> Iterator[str]:
    """Where the command line and the project's configuration name a device or a backend."""
    for word in at.request.entry:
        if name in re.split(r"\W", word):
            yield f"--entry, `{word}`"
    for one in sites(at):
        if Path(one["path"]).suffix != ".py" and name in re.split(r"\W", one["before"]):
            yield f"{one['path']}:{one['line']} `{one['before']}` ({one['rule']})"
