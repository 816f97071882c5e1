"""Alerts as a pure state machine: readings in, changes out. Times are the caller's seconds.

An alert fires when its value has been beyond `above` (or `below`) for `for_seconds`, and ends when
it is back behind `clear`: values between the two change nothing. A series that stops arriving
keeps its alert.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.serve.monitor.derive import QUANTILES, all_series
from joymigrate.schema import document, read_file, setting

HELP = "see docs/how-to/monitor.md, 'Alerts'"
KINDS = ("log", "webhook", "dingtalk", "feishu", "wecom")
SEVERITIES = ("info", "warning", "critical")
DEFAULTS = Path(__file__).parent / "alerts.yaml"


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert. `watch` is `key` or `key|pattern`; values in the unit of the key."""

    name: str = setting(help="what the alert is called")
    watch: str = setting(help="the series: key, or key|pattern")
    above: float | None = setting(None, "fires above this value")
    below: float | None = setting(None, "fires below this value")
    clear: float | None = setting(None, "ends when the value is back behind this one")
    for_seconds: float = setting(0.0, "how long it must be so", least=0)
    severity: str = setting("warning", "how bad it is", choices=SEVERITIES)
    text: str = setting("{name}: {value:g}", "what people read: {name}, {who}, {value}")

    def __post_init__(self) -> None:
        check(self)

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


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere to tell. Addresses and secrets may be `env:NAME`."""

    kind: str = setting(help="who is told", choices=KINDS)
    url: str = setting("", "where; every kind but log needs one")
    secret: str | None = setting(None, "of a robot that checks signatures")
    repeat_seconds: float = setting(
        0.0, "0: an alert is told once when it begins and when it ends", least=0
    )

    def __post_init__(self) -> None:
        for key in ("url", "secret"):
            object.__setattr__(self, key, from_environment(getattr(self, key), key))
        if self.kind != "log" and not self.url.startswith(("http://", "https://")):
            raise JoyError(f"{self.kind} needs a url, got {self.url!r}", where="url", help=HELP)


def from_environment(text: str | None, where: str) -> str | None:
    """`env:NAME` stands for a variable."""
    if text is None or not text.startswith("env:"):
        return text
    value = os.environ.get(text[4:])
    if not value:
        raise JoyError(
            f"the environment has no {text[4:]}", where=where, help=f"export {text[4:]}=…"
        )
    return value


@document("alerts", "What the monitor watches and who is told: `alerts` of gateway.yaml's monitor.")
@dataclass(frozen=True, slots=True)
class File:
    """A file of alerts."""

    alerts: tuple[Rule, ...] = setting(help="the alerts, a list")
    notify: tuple[Place, ...] = setting((), "who is told; nobody means the log")


def load(path: Path = DEFAULTS) -> tuple[tuple[Rule, ...], tuple[Place, ...]]:
    """Alerts and the places to tell, from YAML."""
    file = read_file(File, path, "alerts", HELP)
    return file.alerts, file.notify or (Place("log"),)


def check(rule: Rule) -> None:
    """What makes an alert senseless."""
    if (rule.above is None) == (rule.below is None):
        raise JoyError("an alert has either above or below", help=HELP)
    keys = known_keys()
    base = rule.watch.partition("|")[0]
    if base not in keys and not any(mark in base for mark in "*?["):
        raise JoyError(
            f"nothing is called '{base}'.{did_you_mean(base, keys)}",
            where="watch",
            help=f"one of {', '.join(keys)}",
        )
    try:
        rule.text.format(name="", who="", value=0.0)
    except (KeyError, ValueError, IndexError) as error:
        raise JoyError(
            f"the text cannot be filled in: {error!r}", where="text", help="{name}, {who}, {value}"
        ) from None


def known_keys() -> list[str]:
    """Every key that can be watched."""
    found: list[str] = []
    for series in all_series():
        quantile = series.read == "quantile"
        found += [f"{series.key}_{q}" for q in QUANTILES] if quantile else [series.key]
    return found
