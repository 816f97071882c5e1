"""Alerts as a pure state machine: readings in, changes out. Times are the caller's seconds.

An alert fires when its value has been beyond `above` (or `below`) for `for_seconds`, and ends when
it is back behind `clear`: values between the two change nothing. A series that stops arriving
keeps its alert.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from joymigrate.chips import read_yaml
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.serve.monitor.derive import QUANTILES, all_series

HELP = "see docs/monitor.md, 'Alerts'"
SEVERITIES = ("info", "warning", "critical")
DEFAULTS = Path(__file__).parent / "alerts.yaml"


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert. `watch` is `key` or `key|pattern`; values in the unit of the key."""

    name: str
    watch: str
    above: float | None = None
    below: float | None = None
    clear: float | None = None
    for_seconds: float = 0.0
    severity: str = "warning"
    text: str = "{name}: {value:g}"

    def beyond(self, value: float) -> bool:
        """Whether `value` is bad."""
        return value > self.above if self.above is not None else value < (self.below or 0.0)

    def over(self, value: float) -> bool:
        """Whether `value` is good again."""
        if self.above is not None:
            return value <= (self.above if self.clear is None else self.clear)
        limit = self.below if self.clear is None else self.clear
        return value >= (limit or 0.0)


@dataclass(frozen=True, slots=True)
class Change:
    """An alert that began or ended."""

    time: float
    name: str
    who: str
    firing: bool
    value: float
    severity: str
    text: str


@dataclass(slots=True)
class Watch:
    """The state of one alert for one series."""

    since: float | None = None  # since when it is bad
    firing: bool = False
    value: float = 0.0


@dataclass(slots=True)
class Alerts:
    """All alerts and their states."""

    rules: tuple[Rule, ...]
    states: dict[tuple[str, str], Watch] = field(default_factory=dict)

    def handle(self, time: float, values: Mapping[str, float]) -> list[Change]:
        """Take one set of readings; return what began or ended."""
        changes = []
        for rule in self.rules:
            for key, value in values.items():
                if fnmatch.fnmatchcase(key, rule.watch):
                    change = self.look(rule, key.partition("|")[2], time, value)
                    if change is not None:
                        changes.append(change)
        return changes

    def look(self, rule: Rule, who: str, time: float, value: float) -> Change | None:
        """One alert, one series."""
        state = self.states.setdefault((rule.name, who), Watch())
        state.value = value
        if state.firing:
            if not rule.over(value):
                return None
            state.firing, state.since = False, None
            return self.change(rule, who, time, value, firing=False)
        if not rule.beyond(value):
            state.since = None
            return None
        if state.since is None:
            state.since = time
        if time - state.since < rule.for_seconds:
            return None
        state.firing = True
        return self.change(rule, who, time, value, firing=True)

    def change(self, rule: Rule, who: str, time: float, value: float, *, firing: bool) -> Change:
        text = rule.text.format(name=rule.name, who=who or rule.name, value=value)
        return Change(time, rule.name, who, firing, value, rule.severity, text)

    def firing(self) -> list[dict[str, Any]]:
        """What fires now, for the page."""
        by_name = {rule.name: rule for rule in self.rules}
        return [
            {
                "name": name,
                "who": who,
                "since": state.since,
                "value": state.value,
                "severity": by_name[name].severity,
                "text": self.change(by_name[name], who, 0.0, state.value, firing=True).text,
            }
            for (name, who), state in self.states.items()
            if state.firing and name in by_name
        ]

    def snapshot(self) -> list[Any]:
        """What must survive a restart, so that nobody is told twice."""
        return [[n, w, s.since, s.firing, s.value] for (n, w), s in self.states.items()]

    def restore(self, saved: list[Any]) -> None:
        known = {rule.name for rule in self.rules}
        for name, who, since, firing, value in saved:
            if name in known:
                self.states[name, who] = Watch(since, firing, value)


def load(path: Path = DEFAULTS) -> tuple[tuple[Rule, ...], list[dict[str, Any]]]:
    """Alerts and the places to tell, from YAML."""
    if not path.is_file():
        raise JoyError("no such file of alerts", where=str(path), help=HELP)
    raw = read_yaml(path)
    if not isinstance(raw, Mapping) or not isinstance(raw.get("alerts"), list):
        raise JoyError("a file of alerts has a list 'alerts'", where=str(path), help=HELP)
    for key in raw:
        if key not in ("alerts", "notify"):
            raise JoyError(
                f"unknown key '{key}'.{did_you_mean(str(key), ['alerts', 'notify'])}",
                where=str(path),
                help=HELP,
            )
    return tuple(one(item, path) for item in raw["alerts"]), list(raw.get("notify") or [])


def one(raw: Any, path: Path) -> Rule:
    """One alert, checked."""
    known = [f.name for f in fields(Rule)]
    if not isinstance(raw, Mapping) or "name" not in raw or "watch" not in raw:
        raise JoyError(f"an alert has name and watch, got {raw!r}", where=str(path), help=HELP)
    where = f"{path} {raw['name']}"
    for key, value in raw.items():
        if key not in known:
            raise JoyError(
                f"unknown key '{key}'.{did_you_mean(str(key), known)}", where=where, help=HELP
            )
        number = key in ("above", "below", "clear", "for_seconds")
        if number and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise JoyError(f"{key} is a number, got {value!r}", where=where, help=HELP)
    rule = Rule(**raw)
    check(rule, where)
    return rule


def check(rule: Rule, where: str) -> None:
    """What makes an alert senseless."""
    if (rule.above is None) == (rule.below is None):
        raise JoyError("an alert has either above or below", where=where, help=HELP)
    if rule.severity not in SEVERITIES:
        raise JoyError(
            f"severity is one of {', '.join(SEVERITIES)}, got {rule.severity!r}",
            where=where,
            help=HELP,
        )
    keys = known_keys()
    base = rule.watch.partition("|")[0]
    if base not in keys and not any(mark in base for mark in "*?["):
        raise JoyError(
            f"nothing is called '{base}'.{did_you_mean(base, keys)}",
            where=where,
            help=f"one of {', '.join(keys)}",
        )
    try:
        rule.text.format(name="", who="", value=0.0)
    except (KeyError, ValueError, IndexError) as error:
        raise JoyError(
            f"the text cannot be filled in: {error!r}", where=where, help="{name}, {who}, {value}"
        ) from None


def known_keys() -> list[str]:
    """Every key that can be watched."""
    found: list[str] = []
    for series in all_series():
        quantile = series.read == "quantile"
        found += [f"{series.key}_{q}" for q in QUANTILES] if quantile else [series.key]
    return found
