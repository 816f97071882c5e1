"""Which commands there are: the files of this folder."""

from __future__ import annotations

from pathlib import Path

COMMANDS = Path(__file__).parent


def command_names() -> list[str]:
    """Names of all commands, from the files of this folder."""
    return sorted(
        path.stem.replace("_", "-") for path in COMMANDS.glob("*.py") if path.stem[0] != "_"
    )
