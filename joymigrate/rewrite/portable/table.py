"""The table of torch's portable names, `rules/common/portable.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from joymigrate.chips import read_yaml, rules_root
from joymigrate.language import Text

UNKNOWN = "torch has no portable name for this"


@dataclass(frozen=True, slots=True)
class PortableForm:
    """How torch writes a name for every accelerator; see `rules/common/portable.yaml`."""

    to: str
    since: str
    kind: str = "name"
    host: str | None = None
    order: tuple[str, ...] = ()


@cache
def forms() -> Mapping[str, PortableForm]:
    """The table by the name below the origin's module."""
    return {
        name: PortableForm(
            row.get("to", ""),
            row["since"],
            row.get("as", "name"),
            row.get("host"),
            tuple(row.get("order", ())),
        )
        for name, row in table()["names"].items()
    }


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    """`rules/common/portable.yaml` as it is written."""
    found: Mapping[str, Mapping[str, Any]] = read_yaml(rules_root() / "common" / "portable.yaml")
    return found


@cache
def floors() -> Mapping[str, str]:
    """The first torch that has each name which this style writes."""
    written = {form.to: form.since for form in forms().values() if form.to}
    return {**written, **table()["used"]}


def version(text: str) -> tuple[int, ...]:
    """`2.10.1` as numbers, for comparisons."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def unknown(known: str) -> str:
    """Why a name is only reported, with what to write by hand."""
    hints = table()["instead"]
    hint = next((hints[part] for part in reversed(known.split(".")) if part in hints), None)
    return Text.join("; ", (Text(UNKNOWN), Text(str(hint)))) if hint else UNKNOWN
