"""Rules from YAML: what they look for, what they say, and the cases that show and test them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip, read_yaml, rules_root
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.language import FIELD, Language, Text
from joymigrate.model import Case, Rule, Style, Tier

KEYS = {
    "id",
    "name",
    "title",
    "tier",
    "area",
    "message",
    "why",
    "reference",
    "weight",
    "match",
    "cases",
}
CASE_KEYS = {"before", "after", "keep", "file", "style", "chip", "unsafe", "files"}
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
        for rule_id, change in overrides(chip, rules).items():
            rules[rule_id] = replace(rules[rule_id], **change)
        names = vocabulary(chip, origin)
        _CACHE[key] = {rule.id: filled(rule, names) for rule in sorted_rules(rules)}
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


def filled(rule: Rule, names: Mapping[str, str]) -> Rule:
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
    items = read_yaml(path)
    if not isinstance(items, list):
        return
    for item in items:
        where = f"{path} {item.get('id', '?')}"
        for key in item:
            if key not in KEYS:
                raise JoyError(f"unknown key '{key}'.{did_you_mean(key, KEYS)}", where=where)
        missing = {"id", "name", "title", "tier", "area", "message"} - set(item)
        if missing:
            raise JoyError(f"missing {', '.join(sorted(missing))}", where=where)
        if item["area"] not in AREAS:
            raise JoyError(f"unknown area '{item['area']}'", where=where, help=", ".join(AREAS))
        yield Rule(
            id=item["id"],
            name=item["name"],
            title=item["title"],
            tier=Tier(item["tier"]),
            area=item["area"],
            message=item["message"],
            why=item.get("why", ""),
            reference=item.get("reference", ""),
            weight=float(item.get("weight", 1.0)),
            match=tuple(item.get("match") or ()),
            cases=tuple(read_case(case, where) for case in item.get("cases") or ()),
            source=path.name,
        )


def read_case(raw: Mapping[str, Any], where: str) -> Case:
    """One example of a rule: `before` with `after`, or `keep` with the text left alone."""
    for key in raw:
        if key not in CASE_KEYS:
            raise JoyError(
                f"unknown key '{key}' of a case.{did_you_mean(key, CASE_KEYS)}", where=where
            )
    keep = raw.get("keep")
    return Case(
        before=keep if keep is not None else raw["before"],
        after=raw.get("after"),
        keep=keep is not None,
        file=raw.get("file", "sample.py"),
        style=Style(raw.get("style", "direct")),
        chip=raw.get("chip"),
        unsafe=bool(raw.get("unsafe", False)),
        files=tuple((raw.get("files") or {}).items()),
    )


def overrides(chip: Chip, rules: Mapping[str, Rule]) -> dict[str, dict[str, Any]]:
    """The chip's changes to common rules; a rule that doesn't exist is an error."""
    raw = chip.data("overrides.yaml") or {}
    for rule_id, change in raw.items():
        if rule_id not in rules:
            raise JoyError(
                f"unknown rule '{rule_id}'.{did_you_mean(rule_id, rules)}",
                where=str(chip.folder / "overrides.yaml"),
            )
        if "tier" in change:
            change["tier"] = Tier(change["tier"])
    return dict(raw)
