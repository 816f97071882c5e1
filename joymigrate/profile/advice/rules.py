"""Rules of advice from YAML: what they detect, from which threshold on, and what they say.

`rules/common/advice/profile.yaml` holds what is true of any chip, `rules/<chip>/advice.yaml` what
names the chip's own operators. A rule of the chip replaces the common one of the same id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip, read_yaml, rules_root
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.language import Text

KEYS = {
    "id",
    "title",
    "detect",
    "limits",
    "problem",
    "action",
    "before",
    "after",
    "gain",
    "api",
    "select",
    "level",
    "needs",
    "source",
}
LEVELS = ("error", "warning", "note")
NEEDS = ("trace", "chip_profile")


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """One rule. `detect` names a detector and its parameters; `limits` its thresholds.

    `api` are the names that the action tells the user to call; `select` the rule of `rewrite` that
    makes the change; `needs` what has to be read: a trace, or a profile made on the chip.
    """

    id: str
    title: str
    detect: Mapping[str, Any]
    problem: str
    action: str
    level: str = "warning"
    limits: Mapping[str, float] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    gain: str = ""
    api: tuple[str, ...] = ()
    select: str = ""
    needs: str = "trace"
    source: str = ""
    file: str = ""

    def limit(self, name: str) -> float:
        """A threshold of the rule; its absence is a mistake in the rule."""
        if name not in self.limits:
            raise JoyError(f"the rule {self.id} has no limit '{name}'", where=self.file)
        return float(self.limits[name])


def load_rules(chip: Chip) -> tuple[AdviceRule, ...]:
    """The rules for one chip, by id."""
    found: dict[str, AdviceRule] = {}
    for path in (rules_root() / "common" / "advice" / "profile.yaml", chip.folder / "advice.yaml"):
        if path.is_file():
            found |= {rule.id: filled(rule, chip) for rule in read_rules(path)}
    return tuple(found[key] for key in sorted(found))


def filled(rule: AdviceRule, chip: Chip) -> AdviceRule:
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
    document = read_yaml(path) or {}
    items = document.get("rules") if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise JoyError("expected `rules:` with a list", where=str(path))
    return [read_rule(item, path) for item in items]


def read_rule(raw: Mapping[str, Any], path: Path) -> AdviceRule:
    """One rule, checked."""
    where = f"{path} {raw.get('id', '?')}"
    for key in raw:
        if key not in KEYS:
            raise JoyError(f"unknown key '{key}'.{did_you_mean(key, KEYS)}", where=where)
    missing = {"id", "title", "detect", "problem", "action", "source"} - set(raw)
    if missing:
        raise JoyError(f"missing {', '.join(sorted(missing))}", where=where)
    for key, known in (("level", LEVELS), ("needs", NEEDS)):
        if raw.get(key, known[0]) not in known:
            raise JoyError(f"{key} cannot be '{raw[key]}'", where=where, help=", ".join(known))
    texts = {key: str(raw[key]).rstrip() for key in ("before", "after") if key in raw}
    plain: dict[str, Any] = {k: raw[k] for k in raw if k not in (*texts, "api", "limits")}
    limits = {name: float(value) for name, value in (raw.get("limits") or {}).items()}
    return AdviceRule(
        **plain | texts, limits=limits, api=tuple(raw.get("api") or ()), file=str(path)
    )
