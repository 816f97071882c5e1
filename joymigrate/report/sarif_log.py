"""SARIF 2.1.0: how any noun's rules and results are written as a log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from joymigrate import __version__

SCHEMA_URI = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
ROOT = "SRCROOT"
LINK_SIGN = re.compile(r"[\[\]\\]")


@dataclass(frozen=True, slots=True)
class SarifRule:
    """What a log says of a rule; `level` is error, warning or note. `more` are further keys."""

    id: str
    title: str
    level: str = ""
    name: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def descriptor(self) -> dict[str, Any]:
        """The rule as SARIF lists it."""
        return {
            "id": self.id,
            **({"name": self.name} if self.name else {}),
            "shortDescription": {"text": self.title},
            **({"defaultConfiguration": {"level": self.level}} if self.level else {}),
            **self.more,
        }


@dataclass(frozen=True, slots=True)
class SarifResult:
    """One result. `artifact` is its file by `artifact`, `region` its place in that file.

    `more` are further keys: fixes, fingerprints, properties; `level` replaces the rule's.
    """

    rule: SarifRule
    text: str
    artifact: Mapping[str, Any] | None = None
    region: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    level: str = ""


def artifact(path: str) -> dict[str, str]:
    """A file of the root by its relative path, another one by its whole path."""
    if path.startswith("/"):
        return {"uri": Path(path).as_uri()}
    return {"uri": quote(path.encode("utf-8", "surrogateescape")), "uriBaseId": ROOT}


def locate(where: str) -> tuple[Mapping[str, Any] | None, dict[str, int]]:
    """The artifact and the region of `file:line`; None where it names no line."""
    path, _, line = where.rpartition(":")
    if not path or not line.isdigit():
        return None, {}
    return artifact(path), {"startLine": max(1, int(line))}


def log(
    results: Sequence[SarifResult],
    *,
    root: Path | None = None,
    driver: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A log with one run; `driver` and `run` are further keys of these, `root` of all paths."""
    base = {"originalUriBaseIds": {ROOT: {"uri": f"{root.resolve().as_uri()}/"}}} if root else {}
    made = {
        "tool": {
            "driver": {"name": "joymigrate", "version": __version__, **(driver or {}), "rules": []}
        },
        "columnKind": "unicodeCodePoints",
        **base,
        **(run or {}),
        "results": [],
    }
    extend(made, results)
    return {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [made]}


def extend(run: dict[str, Any], results: Sequence[SarifResult]) -> None:
    """Add results to a run, and their rules, by id, where it does not list them."""
    rules = run["tool"]["driver"].setdefault("rules", [])
    listed = {rule["id"] for rule in rules}
    added = {one.rule.id: one.rule for one in results if one.rule.id not in listed}
    rules += [added[key].descriptor() for key in sorted(added)]
    number = {rule["id"]: at for at, rule in enumerate(rules)}
    for one in results:
        physical = {"artifactLocation": one.artifact, "region": one.region}
        place = {"physicalLocation": {key: value for key, value in physical.items() if value}}
        run["results"].append(
            {
                "ruleId": one.rule.id,
                "ruleIndex": number[one.rule.id],
                "level": one.level or one.rule.level,
                "message": {"text": plain(one.text)},
                **({"locations": [place]} if one.artifact else {}),
                **one.more,
            }
        )


def plain(text: str) -> str:
    """Text in which `a[0](x)` is not taken for a link (SARIF 2.1.0, 3.11.6)."""
    return LINK_SIGN.sub(r"\\\g<0>", text) if "](" in text else text
