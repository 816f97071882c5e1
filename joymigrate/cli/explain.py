"""Explain a rule: what it looks for, what it writes on which chip, with examples."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import speaker
from joymigrate.cli._output import emit, one_of
from joymigrate.errors import Exit, JoyError

FORMATS = ("text", "json", "md")


def command(
    rules: list[str] | None = typer.Argument(
        None, metavar="RULE...", help="Rule ids or names, as in JM101."
    ),
    everything: bool = typer.Option(False, "--list", help="Name all rules."),
    to: str | None = typer.Option(None, "--to", help="The chip; `joymigrate chips list`."),
    origin: str | None = typer.Option(None, "--from", help="The platform to migrate from."),
    format: str = typer.Option("text", "--format", help="text, json or md."),
    output: Path | None = typer.Option(
        None, "-o", "--output", metavar="FILE", help="Write to FILE."
    ),
    lang: str | None = LANG,
) -> int:
    """Explain a rule: what it looks for, what it writes on which chip, with examples."""
    from joymigrate import chips, config
    from joymigrate.report import json_
    from joymigrate.report import rules as book
    from joymigrate.report.labels import Labels
    from joymigrate.rewrite.rules import load, spoken

    one_of(format, FORMATS, "--format")
    say = speaker(lang)
    chip = chips.target(config.load(Path.cwd(), {"to": to})["to"])
    source = chips.get(origin) if origin else chips.origin()
    if everything:
        known = spoken(load(chip, source), say)
        texts = {
            "text": lambda: book.list_text(known),
            "json": lambda: json_.dumps(book.list_document(known, chip)),
            "md": lambda: book.list_markdown(known, Labels(say.lang)),
        }
        emit(texts[format](), output)
        return Exit.OK
    if not rules:
        raise JoyError("no rule to explain", help="joymigrate explain JM101, or --list")
    found = [book.translate(book.explain(rule, chip, source), say) for rule in rules]
    if format == "json":
        data = book.document(found[0]) if len(found) == 1 else book.list_of(found)
        emit(json_.dumps(data), output)
        return Exit.OK
    render = book.markdown if format == "md" else book.text
    emit("\n".join(render(one, say.lang) for one in found), output)
    return Exit.OK
