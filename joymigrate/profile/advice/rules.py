"""Rules of advice from YAML: what they detect, from which threshold on, and what they say.

`rules/common/advice/profile.yaml` holds what is true of any chip, `rules/<chip>/advice.yaml` what
names the chip's own operators. A rule of the chip replaces the common one of the same id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip, rules_root
from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.schema import document, read_file, setting

LEVELS = ("error", "warning", "note")
NEEDS = ("trace", "chip_profile", "rank_profiles")


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """One rule. `detect` names a detector and its parameters; `limits` its thresholds.

    `api` are the names that the action tells the user to call; `select` the rule of `rewrite` that
    makes the change; `needs` what has to be read: a trace, a profile made on the chip, or
    those of several ranks.
    """

    id: str = setting(help="Its name, such as JP101.")
    title: str = setting(help="What it is about, in a few words.")
    detect: Mapping[str, Any] = setting(help="A detector (`by`) and its parameters.")
    problem: str = setting(help="What is wrong, in a sentence.")
    action: str = setting(help="What to do.")
    source: str = setting(help="Where it was read, or why it is so.")
    level: str = setting("warning", "How much it matters.", choices=LEVELS)
    limits: Mapping[str, float] = setting(make=dict, help="Its thresholds by name.")
    before: str = setting("", "Code as it is.")
    after: str = setting("", "Code as it should be.")
    gain: str = setting("", "What it brings.")
    api: tuple[str, ...] = setting((), "Names that the action tells the user to call.")
    select: str = setting("", "The rule of `rewrite` that makes the change.")
    needs: str = setting("trace", "What has to be read for it.", choices=NEEDS)
    file: str = setting("", hidden=True)

    @property
    def command(self) -> str | None:
        """The command that makes the change, where `rewrite` can."""
        return f"joymigrate rewrite --unsafe --select {self.select} ." if self.select else None

    def limit(self, name: str) -> float:
        """A threshold of the rule; its absence is a mistake in the rule."""
        if name not in self.limits:
            raise JoyError(f"the rule {self.id} has no limit '{name}'", where=self.file)
        return float(self.limits[name])


@document("chip-advice", "Advice for programs on a chip: `advice.yaml` in its folder.")
@dataclass(frozen=True, slots=True)
class AdviceFile:
    """One file of rules."""

    variables: tuple[str, ...] = setting((), "Environment variables that a recording keeps.")
    rules: tuple[AdviceRule, ...] = setting((), "A chip's rule replaces the common one.")


def load_rules(chip: Chip) -> tuple[AdviceRule, ...]:
    """The rules for one chip, by id."""
    found: dict[str, AdviceRule] = {}
    for path in (rules_root() / "common" / "advice" / "profile.yaml", chip.folder / "advice.yaml"):
        if path.is_file():
            found |= {rule.id: fill_names(rule, chip) for rule in read_rules(path)}
    return tuple(found[key] for key in sorted(found))


def fill_names(rule: AdviceRule, chip: Chip) -> AdviceRule:
    """The rule with the chip's names in its texts."""
    names = {
        "chip_title": chip.title,
        "device": chip.device,
        "package": chip.package or "torch",
    }
    keys = ("problem", "action", "before", "after")
    texts: dict[str, Any] = {key: Text(getattr(rule, key), **names) for key in keys}
    return replace(rule, **texts)


def read_rules(path: Path) -> list[AdviceRule]:
    """The rules of one file."""
    rules = read_file(AdviceFile, path).rules
    return [
        replace(one, file=str(path), before=one.before.rstrip(), after=one.after.rstrip())
        for one in rules
    ]
