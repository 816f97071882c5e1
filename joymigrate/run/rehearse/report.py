"""The report of a rehearsal in the formats that the command writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate.chips.versions import UNPROVEN
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.files import write_output
from joymigrate.language import Language, speaking, tell, with_texts
from joymigrate.run.rehearse.settings import RehearsalSettings
from joymigrate.run.rehearse.summary import as_text, exit_code, gib, summarise

__all__ = ["as_text", "banner", "chosen_format", "exit_code", "summarise", "write"]

FORMATS = ("text", "json", "html")


def chosen_format(form: str | None, output: Path | None, forms: Sequence[str] = FORMATS) -> str:
    """The report's format: named, or by the file's ending. Checked before the program runs."""
    if form is None:
        ending = output.suffix.lstrip(".") if output is not None else ""
        form = ending if ending in forms else "text"
    if form not in forms:
        raise JoyError(
            f"unknown format '{form}'.{did_you_mean(form, forms)}",
            help=f"--format takes {', '.join(forms)}",
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


def banner(settings: RehearsalSettings) -> str:
    """What is printed before the program starts, in the language that is spoken."""
    said = tell(
        "rehearsal: simulated {soc} × {devices} with {memory}, torch_npu {package}. No chip is "
        "involved.",
        soc=settings.soc,
        devices=settings.devices,
        memory=gib(settings.memory_bytes),
        package=settings.package,
    )
    if settings.series:
        said += "\n" + tell(
            "rehearsal: {series} is a series of models; {soc} stands for it.",
            series=settings.series,
            soc=settings.soc,
        )
    if settings.cann_fits:
        said += "\n" + tell(
            "rehearsal: told of CANN {cann}, the package takes its own ways; what kernels take was "
            "recorded of CANN 9.0 and 9.1 and stays the same.",
            cann=settings.cann,
        )
    if settings.cann_fits == UNPROVEN:
        said += "\n" + tell(
            "rehearsal: no source that was read says that torch_npu {package} works with "
            "CANN {cann}.",
            package=settings.package,
            cann=settings.cann,
        )
    return said


def write(result: Mapping[str, Any], form: str, output: Path, lang: str = "en") -> None:
    """Write the report as text or JSON; the file is complete or absent. JSON keeps its words, with
    what other languages are made of under `texts`."""
    with speaking(Language(lang, result.get("texts"))):
        text = render(result, form)
    write_output(output, text.encode("utf-8"))


def render(result: Mapping[str, Any], form: str) -> str:
    """The report in a format and in the language that is spoken."""
    if form == "json":
        return json.dumps(with_texts(result), indent=2) + "\n"
    return as_text(result) + "\n"
