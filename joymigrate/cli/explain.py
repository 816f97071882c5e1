"""Explain a name: a rule, an API, an operator, a package, an error code, a variable, a tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._common_options import TO
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import speaker
from joymigrate.cli._scanning import project_codemods
from joymigrate.errors import JoyError, did_you_mean

if TYPE_CHECKING:
    from joymigrate.chips import Chip
    from joymigrate.model import Rule
    from joymigrate.rewrite.codemod import Codemod

CASES = "joymigrate.codemod-cases/1"


@answers("rules")
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
    lang: str | None = LANG,
) -> Answer:
    """Explain names: rules, APIs, operators, packages, error codes, variables, tools."""
    from joymigrate import chips, config
    from joymigrate.report import rules as book
    from joymigrate.rewrite.rules import load, translate

    say = speaker(lang)
    settings = config.load(Path.cwd(), {"to": to})
    chip = chips.target(settings["to"])
    source = chips.get(origin) if origin else chips.origin()
    codemods = project_codemods(settings)
    if check:
        return run_cases(codemods, rules or [], chip)
    added = [one.rule() for one in codemods]
    if everything:
        known = translate({**load(chip, source), **{one.id: one for one in added}}, say)
        listed = book.list_document(known, chip)
        return Answer(listed, lambda: book.describe_list(known, chip), lang=say.lang)
    if not rules:
        raise JoyError("no name to explain", help="joymigrate explain JM101, or --list")
    from joymigrate.rewrite.cards import MultiCard

    told = [*added, MultiCard.rule()]  # which only `rewrite --multi-card` applies
    known = {**load(chip, source), **{one.id: one for one in told}}
    ids = {*known, *(one.name for one in known.values())}
    if not all(rule.upper() in ids or rule.lower() in ids for rule in rules):
        return explain_names(rules, ids, told, chip, source, say.lang)
    found = [book.translate(book.explain(rule, chip, source, told), say) for rule in rules]
    data = book.document(found[0]) if len(found) == 1 else book.list_of(found)
    return Answer(data, lambda: book.describe(found), lang=say.lang)


def explain_names(
    names: list[str],
    ids: set[str],
    added: list[Rule],
    chip: Chip,
    origin: Chip,
    lang: str,
) -> Answer:
    """Explain names of any kind; one that nothing is known of is an error with the nearest."""
    from joymigrate import lookup
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
    return Answer(report.document(found, chip.name), lambda: report.describe(found), lang=lang)


def run_cases(codemods: Sequence[type[Codemod]], rules: list[str], chip: Chip) -> Answer:
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
    document = {"schema": CASES, "to": chip.name, "cases": [asdict(one) for one in done]}
    text = "\n".join([*lines, f"{len(done)} cases, {faults} wrong"]) + "\n"
    return Answer(document, text, code=bool(faults))
