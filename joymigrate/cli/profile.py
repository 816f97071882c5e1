"""Operators of a program: record them, see whether the chip has them, get advice, compare runs.

Each sub-command is a file of its own beside this one, `_profile_<name>.py`, with a function
`command`; it is found by its name. Its help is the function's docstring.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from joymigrate.cli._groups import group

app = group("Operators of a program: record them, see whether the chip has them, get advice.")

PREFIX = "_profile_"
for path in sorted(Path(__file__).parent.glob(f"{PREFIX}*.py")):
    module = importlib.import_module(f"joymigrate.cli.{path.stem}")
    settings = getattr(module, "CONTEXT_SETTINGS", None)
    name = path.stem[len(PREFIX) :].replace("_", "-")
    app.command(name, context_settings=settings)(module.command)
