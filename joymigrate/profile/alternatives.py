"""What to use where a chip lacks an operator: a public one, a fused one, a Triton kernel, or a new.

`rules/common/ops/alternatives.yaml` and the chip's `ops/alternatives.yaml` say the first two, the
list of FlagGems the third. The first that is known is given, the chip's own before the common one.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from joymigrate.chips import read_yaml, rules_root
from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.profile.oplist.lists import OpList

COMMON = Path("common") / "ops"
FILE = "alternatives.yaml"
TRITON = "a Triton kernel of FlagGems ({function}, {commit}), where the chip runs Triton"
FILL = "`--fill` of joymigrate run and rehearse computes it on the chip (docs/how-to/fill.md)"
FILLED = "fill.txt"
WRITE = "write one: joymigrate profile coverage --skeleton DIR starts a registration"


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Alternatives by operator or pattern (`aten::lgamma`, `fbgemm::*`); FlagGems by base name."""

    known: Mapping[str, str]
    kernels: Mapping[str, str]
    commit: str
    filled: frozenset[str] = frozenset()  # base names with namespace

    def of(self, op: str, own: str = "") -> str:
        """What to use instead of `namespace::base`; `own` is what the chip's list says."""
        base = op.partition("::")[2]
        plain = f"{op.partition('::')[0]}::{base.removesuffix('_')}"
        patterns = (text for name, text in self.known.items() if fnmatchcase(op, name))
        told = FILL if op in self.filled or plain in self.filled else ""
        said = [own or self.known.get(op) or self.known.get(plain) or next(patterns, ""), told]
        function = self.kernels.get(base) or self.kernels.get(base.removesuffix("_"))
        if function and op.startswith("aten::"):
            said.append(Text(TRITON, function=function, commit=self.commit))
        return Text.join("; or ", said) if any(said) else WRITE


def load(oplist: OpList) -> Alternatives:
    """The alternatives for one chip."""
    root = rules_root() / COMMON
    known = {**read(root / FILE), **read(oplist.path.parent / FILE)}
    about = read_yaml(root / "flaggems.yaml")
    kernels: dict[str, str] = {}
    with (root / about["table"]).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            kernels.setdefault(row["op"].partition(".")[0], row["function"])
    filled = read_filled(oplist.path.parent / FILLED)
    return Alternatives(known, kernels, f"commit {about['commit']}", filled)


def read_filled(path: Path) -> frozenset[str]:
    """Base names of the operators that `--fill` has for a chip; none where there is no list."""
    if not path.is_file():
        return frozenset()
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(line.partition(".")[0] for line in lines if line.startswith("aten::"))


def read(path: Path) -> dict[str, str]:
    """Alternatives of one file; none where it is not there."""
    if not path.is_file():
        return {}
    raw = (read_yaml(path) or {}).get("alternatives") or {}
    if not isinstance(raw, dict):
        raise JoyError("expected a mapping `alternatives`", where=str(path))
    return {name if "::" in name else f"aten::{name}": str(text) for name, text in raw.items()}
