"""The language of a report: `--lang`, else `lang` of the configuration, else English."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from joymigrate.cli._output import one_of
from joymigrate.language import Language, languages

OPTION: Any = typer.Option(
    None, "--lang", help="en or zh (default: `lang` of the configuration, else en)."
)


def language_of(lang: str | None, start: Path | None = None) -> str:
    """The language asked for; an unknown one names the nearest that is known."""
    if lang is not None:
        return one_of(lang, languages(), "--lang")
    from joymigrate import config

    settings = config.load(start or Path.cwd())
    return one_of(settings["lang"], languages(), f"{settings.sources['lang']} lang")


def speaker(lang: str | None, start: Path | None = None, texts: Any = None) -> Language:
    """The same as something to say texts with; `texts` is what a JSON document carries."""
    return Language(language_of(lang, start), texts)
