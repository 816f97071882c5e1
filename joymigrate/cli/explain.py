"""Explain a name: a rule, an API, an operator, a package, an error code, a variable, a tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._common_options import OUTPUT, TO
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import speaker
from joymigrate.cli._output import emit, one_of
from joymigrate.cli._scanning import project_codemods
from joymigrate.errors import Exit, JoyError, did_you_mean
from joymigrate.evidence import count_grades, grade_line

if TYPE_CHECKING:
    from joymigrate.chips import Chip
    from joymigrate.model import Rule
    from joymigrate.rewrite.codemod import Codemod

FORMATS = ("text", "json", "md")


def command(
    rules: list[str] | None = typer.Argument(
        None, metavar="NAME...", help="JM101, torch.cuda.Event, aten::lgamma, flash_attn, 107027."
    ),
    everything: bool = typer.Option(False, "--list", help="Name all rules."),
    check: bool = typer.Option(
        False, "--check", help="Run the examples of the project's own codemods, or of RULE."
    ),
    to: str | None = TO,
    origin: str | None = typer.Option(None, "--from", help="The platform to migrate from."),
    format: str = typer.Option("text", "--format", help="text, json or md."),
    output: Path | None = OUTPUT,
    lang: str | None = LANG,
) -> int:
    """Explain names: rules, APIs, operators, packages, error codes, variables, tools."""
    from joymigrate import chips, config
    from joymigrate.report import json_
    from joymigrate.report import rules as book
    from joymigrate.report.labels import Labels
    from joymigrate.rewrite.rules import load, translate

    one_of(format, FORMATS, "--format")
    say = speaker(lang)
    settings = config.load(Path.cwd(), {"to": to})
    chip = chips.target(settings["to"])
    source = chips.get(origin) if origin else chips.origin()
    codemods = project_codemods(settings)
    if check:
        return run_cases(codemods, rules or [], chip, output)
    added = [one.rule() for one in codemods]
    if everything:
        known = translate({**load(chip, source), **{one.id: one for one in added}}, say)
        texts = {
            "text": lambda: book.list_text(known),
            "json": lambda: json_.dumps(book.list_document(known, chip)),
            "md": lambda: book.list_markdown(known, Labels(say.lang)),
        }
        emit(texts[format](), output)
        return Exit.OK
    if not rules:
        raise JoyError("no name to explain", help="joymigrate explain JM101, or --list")
    from joymigrate.rewrite.cards import MultiCard

    told = [*added, MultiCard.rule()]  # which only `rewrite --multi-card` applies
    known = {**load(chip, source), **{one.id: one for one in told}}
    ids = {*known, *(one.name for one in known.values())}
    if not all(rule.upper() in ids or rule.lower() in ids for rule in rules):
        return explain_names(rules, ids, told, chip, source, format, say.lang, output)
    found = [book.translate(book.explain(rule, chip, source, told), say) for rule in rules]
    if format == "json":
        data = book.document(found[0]) if len(found) == 1 else book.list_of(found)
        emit(json_.dumps(data), output)
        return Exit.OK
    render = book.markdown if format == "md" else book.text
    shown = [render(one, say.lang) for one in found]
    if format == "md":
        shown.append(grade_line(count_grades("documented" for _ in found), say) + "\n")
    emit("\n".join(shown), output)
    return Exit.OK


def explain_names(
    names: list[str],
    ids: set[str],
    added: list[Rule],
    chip: Chip,
    origin: Chip,
    format: str,
    lang: str,
    output: Path | None,
) -> int:
    """Explain names of any kind; one that nothing is known of is an error with the nearest."""
    from joymigrate import lookup
    from joymigrate.language import with_texts
    from joymigrate.report import json_
    from joymigrate.report import names as report
    from joymigrate.report import rules as book

    found = []
    for name in names:
        if name.upper() in ids or name.lower() in ids:
            found.append(report.describe_rule(name, book.explain(name, chip, origin, added)))
            continue
        known = lookup.find(name, chip, origin)
        if not known:
            near = lookup.suggest(name, sorted(ids), chip, origin)
            help = f"near: {', '.join(near)}" if near else "joymigrate scan names what it knows"
            what = "rule" if name[:2].upper() == "JM" else "name"
            raise JoyError(f"unknown {what} '{name[:200]}'.{did_you_mean(name, near)}", help=help)
        found += known
    texts = {
        "text": lambda: report.text(found, lang),
        "json": lambda: json_.dumps(with_texts(report.document(found, chip.name))),
        "md": lambda: report.markdown(found, lang),
    }
    emit(texts[format](), output)
    return Exit.OK


def run_cases(
    codemods: Sequence[type[Codemod]], rules: list[str], chip: Chip, output: Path | None
) -> int:
    """Run the examples of codemods, all or those named; exit code 1 when one comes out wrong."""
    from joymigrate.rewrite.codemod_check import check

    known = {one.RULE: one for one in codemods}
    for rule in rules:
        if rule not in known:
            raise JoyError(
                f"'{rule}' is no codemod of this project.{did_you_mean(rule, known)}",
                help="name it under `codemods` in [tool.joymigrate]; our rules are tested",
            )
    chosen = [known[rule] for rule in rules] if rules else list(codemods)
    if not chosen:
        raise JoyError("this project has no codemods", help="see docs/how-to/codemods.md")
    done = [one for kind in chosen for one in check(kind, chip)]
    lines = [f"{one.rule} case {one.number}: {one.fault or 'ok'}" for one in done]
    faults = sum(one.fault is not None for one in done)
    emit("\n".join([*lines, f"{len(done)} cases, {faults} wrong"]) + "\n", output)
    return Exit.FOUND if faults else Exit.OK
