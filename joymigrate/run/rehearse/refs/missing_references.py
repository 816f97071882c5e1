"""Operators without a reference: why, and stand-ins that say so.

Most of them fail clearly in the vendor's own code, which asks for a chip kernel by name. Those of
the older kernel interface would end the process there; a stand-in raises before that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from joymigrate.chips import rules_root
from joymigrate.run.rehearse.refs.declaration import Reference, signatures
from joymigrate.schema import read_yaml

FILE = Path("ascend") / "kernels" / "absent.yaml"
NOTHING = "its kernel on the CPU"


@cache
def read_absent() -> Mapping[str, Any]:
    """Operators without a reference, by the beginnings of their names."""
    document: Mapping[str, Any] = read_yaml(rules_root() / FILE)
    return document


def explain_absence(name: str) -> str:
    """Why an operator has no reference."""
    base = name.split("::")[1]
    for row in read_absent()["reasons"]:
        if base.startswith(tuple(row["begins"].split())):
            return str(row["why"])
    if "infer_output" in base:
        return "makes empty tensors: the vendor's own code runs"
    return "not written yet"


def refusing(name: str) -> Reference:
    """A reference that raises `Unsimulated` whatever it is given."""

    def function(*_args: Any, **_kwargs: Any) -> NoReturn:
        from joymigrate.run.rehearse.refs.dtypes import Unsimulated  # imports torch

        raise Unsimulated(name.split("::")[1], NOTHING)

    return Reference(name, function, signatures()[name], "none")


def stand_ins() -> dict[str, Reference]:
    """By dispatcher name."""
    return {
        name: refusing(name)
        for name in (f"npu::{base}" for base in read_absent()["older_interface"].split())
    }
