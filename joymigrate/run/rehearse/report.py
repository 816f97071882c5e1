"""The report of a rehearsal in the formats that the command writes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.rehearse.settings import Settings
from joymigrate.run.rehearse.summary import as_text, gib, summarise

__all__ = ["as_text", "banner", "chosen_format", "summarise", "write"]

FORMATS = ("text", "json", "html")


def chosen_format(form: str | None, output: Path | None) -> str:
    """The report's format: named, or by the file's ending. Checked before the program runs."""
    if form is None:
        ending = output.suffix.lstrip(".") if output is not None else ""
        form = ending if ending in FORMATS else "text"
    if form not in FORMATS:
        raise JoyError(
            f"unknown format '{form}'.{did_you_mean(form, FORMATS)}",
            help=f"--format takes {', '.join(FORMATS)}",
        )
    if form != "text" and output is None:
        raise JoyError(
            f"--format {form} needs a file: stdout belongs to the program",
            help=f"add -o report.{form}",
        )
    if output is not None and not output.parent.is_dir():
        raise JoyError(
            "the folder of the report does not exist", where=str(output), help="make it first"
        )
    return form


def banner(settings: Settings) -> str:
    """What is printed before the program starts."""
    return (
        f"rehearsal: simulated {settings.soc} × {settings.devices} with "
        f"{gib(settings.memory_bytes)}, torch_npu {settings.package}. No chip is involved."
    )


def write(result: Mapping[str, Any], form: str, output: Path) -> None:
    """Write the report; the file is complete or absent."""
    if form == "json":
        text = json.dumps(result, indent=2) + "\n"
    elif form == "html":
        from joymigrate.run.rehearse.page import page

        text = page(result)
    else:
        text = as_text(result) + "\n"
    handle, part = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(part, 0o644)
        os.replace(part, output)
    except OSError as error:
        Path(part).unlink(missing_ok=True)
        raise JoyError(
            f"cannot write the report: {error.strerror}", where=str(output), help="check -o"
        ) from None
