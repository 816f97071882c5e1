"""Rules from YAML: what they look for, what they say, and the cases that show and test them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from joymigrate.chips import Chip, rules_root
from joymigrate.chips.overrides import FILE, Override, overrides
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.language import FIELD, Language, Text
from joymigrate.model import Case, Rule, Style, Tier
from joymigrate.schema import document, load_file, read_items, setting

AREAS = (
    "device",
    "distributed",
    "amp",
    "profiler",
    "environment",
    "tools",
    "launch",
    "packages",
    "kernels",
    "numerics",
    "dynamic",
    "compile",
    "files",
)


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One example of a rule: `before` with `after`, or `keep` with the text left alone."""

    before: str | None = setting(None, "the text as it is found")
    after: str | None = setting(None, "the text as it is written; without it: reported only")
    keep: str | None = setting(None, "text that the rule leaves alone")
    file: str = setting("sample.py", "the name of the file that holds the text")
    style: Style = setting(Style.DIRECT, "the style of the rewrite")
    chip: str | None = setting(None, "the chip, where the example holds for one only")
    unsafe: bool = setting(False, "whether the edit needs --unsafe")
    files: Mapping[str, str] = setting(make=dict, help="other files of the same project, by path")

    def __post_init__(self) -> None:
        if (self.before is None) == (self.keep is None):
            raise JoyError("a case has `before` or `keep`, not both")

    def case(self) -> Case:
        """The example as the rules carry it."""
        return Case(
            before=self.before or "" if self.keep is None else self.keep,
            after=self.after,
            keep=self.keep is not None,
            file=self.file,
            style=self.style,
            chip=self.chip,
            unsafe=self.unsafe,
            files=tuple(self.files.items()),
        )


@document("rule-file", "What a scan looks for and writes: the files of `rules/common/`.")
@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule. Texts may hold `{device}`, `{backend}`, `{chip}`, `{origin}` and their like."""

    ITEMS: ClassVar[bool] = True

    id: str = setting(help="JM and three digits", example="JM101")
    name: str = setting(help="its short name, as in the files of cases")
    title: str = setting(help="what it is about, in a few words")
    tier: Tier = setting(help="safe: written by itself; unsafe: with --unsafe; report: never")
    area: str = setting(help="the part of a project that it is about", choices=AREAS)
    message: str = setting(help="what a finding says")
    why: str = setting("", "the reason behind it")
    reference: str = setting("", "where the statement comes from")
    weight: float = setting(1.0, "its part in the effort", least=0)
    match: tuple[dict[str, Any], ...] = setting(make=tuple, help="what the matcher looks for")
    cases: tuple[CaseRow, ...] = setting(make=tuple, help="examples; the tests run them")


def load(chip: Chip, origin: Chip) -> Mapping[str, Rule]:
    """Every rule by id, in order of id, as it reads for a move from `origin` to `chip`.

    Templates `{device}`, `{backend}`, `{chip}`, `{origin}` … in the texts are filled in; the
    chip's `overrides.yaml` (rule id → tier, message, why, weight) is applied last.
    """
    return _load(chip.folder, origin.folder, chip, origin)


_CACHE: dict[tuple[Path, Path], Mapping[str, Rule]] = {}


def _load(folder: Path, origin_folder: Path, chip: Chip, origin: Chip) -> Mapping[str, Rule]:
    key = (folder, origin_folder)
    if key not in _CACHE:
        rules = {rule.id: rule for rule in common_rules()}
        for rule_id, change in changed_by(chip, rules).items():
            rules[rule_id] = replace(rules[rule_id], **change.changes())
        names = vocabulary(chip, origin)
        _CACHE[key] = {rule.id: fill_rule(rule, names) for rule in sorted_rules(rules)}
    return _CACHE[key]


def sorted_rules(rules: Mapping[str, Rule]) -> list[Rule]:
    """Rules in order of id."""
    return [rules[key] for key in sorted(rules)]


def vocabulary(chip: Chip, origin: Chip) -> dict[str, str]:
    """Names that templates in rules may use."""
    return {
        "chip": chip.name,
        "chip_title": chip.title,
        "device": chip.device,
        "DEVICE": chip.device.upper(),
        "module": chip.module,
        "backend": chip.backend,
        "BACKEND": chip.backend.upper(),
        "package": chip.package or "torch",
        "distribution": chip.distribution or "torch",
        "origin": origin.device,
        "ORIGIN": origin.device.upper(),
        "origin_module": origin.module,
        "origin_backend": origin.backend,
        "origin_title": origin.title,
        "origin_vendor": origin.title.rpartition(" ")[0] or origin.title,
    }


def fill(text: str, names: Mapping[str, str]) -> str:
    """Replace `{name}` for known names only; other braces stay (rules quote code).

    A text with such names remembers them, so that it can be said in another language.
    """
    used = {name: names[name] for name in FIELD.findall(text) if name in names}
    return Text(text, **used) if used else text


def fill_rule(rule: Rule, names: Mapping[str, str]) -> Rule:
    """The rule with its texts filled in for one pair of chips."""
    return replace(
        rule,
        title=fill(rule.title, names),
        message=fill(rule.message, names),
        why=fill(rule.why, names),
        match=tuple(fill_data(item, names) for item in rule.match),
    )


def translate(known: Mapping[str, Rule], say: Language) -> dict[str, Rule]:
    """The rules with their texts in one language."""
    return {
        key: replace(one, title=say(one.title), message=say(one.message), why=say(one.why))
        for key, one in known.items()
    }


def fill_data(item: Any, names: Mapping[str, str]) -> Any:
    """`fill` through lists and mappings."""
    if isinstance(item, str):
        return fill(item, names)
    if isinstance(item, list):
        return [fill_data(part, names) for part in item]
    if isinstance(item, dict):
        return {fill_data(key, names): fill_data(part, names) for key, part in item.items()}
    return item


@functools.cache
def common_rules() -> tuple[Rule, ...]:
    """Rules of `rules/common/*.yaml` as written, before any chip's names are filled in."""
    found: dict[str, Rule] = {}
    for path in sorted((rules_root() / "common").glob("*.yaml")):
        for rule in read_rules(path):
            if rule.id in found:
                raise JoyError(f"two rules are called {rule.id}", where=str(path))
            found[rule.id] = rule
    return tuple(found.values())


def read_rules(path: Path) -> Iterator[Rule]:
    """The rules of one file (a list of mappings); a file that is a mapping holds other data."""
    items, source = load_file(path)
    if isinstance(items, list):
        for row in read_items(RuleRow, items, source):
            values = {item.name: getattr(row, item.name) for item in fields(row)}
            cases = tuple(case.case() for case in row.cases)
            yield Rule(**{**values, "cases": cases}, source=path.name)


def changed_by(chip: Chip, rules: Mapping[str, Rule]) -> Mapping[str, Override]:
    """The chip's changes to common rules; a rule that doesn't exist is an error."""
    found = overrides(chip)
    for rule in found:
        if rule not in rules:
            raise JoyError(
                f"unknown rule '{rule}'.{did_you_mean(rule, rules)}",
                where=f"{chip.folder / FILE} {rule}",
            )
    return found
