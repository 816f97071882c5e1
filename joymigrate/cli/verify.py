"""Compare two runs: record a baseline, replay it on the chip, name the first wrong module."""

from __future__ import annotations

import importlib

from joymigrate.cli._commands import COMMANDS
from joymigrate.cli._groups import group

PREFIX = "_verify_"

app = group(__doc__ or "")


def register() -> None:
    """Add each `_verify_<name>.py` of this folder as the sub-command `<name>`."""
    for path in sorted(COMMANDS.glob(f"{PREFIX}*.py")):
        module = importlib.import_module(f"joymigrate.cli.{path.stem}")
        name = path.stem.removeprefix(PREFIX).replace("_", "-")
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        app.command(name, context_settings=settings)(module.command)


register()
