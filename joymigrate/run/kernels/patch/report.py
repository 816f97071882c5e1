"""What patching a model did: replaced, left with reasons, and how to take it back."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.files import replace_file
from joymigrate.run.kernels.patch.site import Undo

SCHEMA = "joymigrate.alignment/1"


@dataclass(frozen=True, slots=True)
class ReplacedModule:
    """A module that computes with an operator now. `implementation` is that of a typical call."""

    module: str
    op: str
    implementation: str
    reason: str


@dataclass(frozen=True, slots=True)
class KeptModule:
    """A module that could have an operator and kept its own, and why."""

    module: str
    op: str
    reason: str


@dataclass(slots=True)
class Report:
    """The result of `kernels.apply`. Leaving a `with` block, or `undo()`, restores the model."""

    replaced: list[ReplacedModule] = field(default_factory=list)
    left: list[KeptModule] = field(default_factory=list)
    undos: list[Undo] = field(default_factory=list)

    def undo(self) -> None:
        """Put the model back as it was, latest change first. Twice does no harm."""
        while self.undos:
            self.undos.pop()()

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __str__(self) -> str:
        """A few lines: counts by operator, then what was left."""
        counts = Counter((item.op, item.implementation) for item in self.replaced)
        lines = [f"{number} x {op}: {name}" for (op, name), number in counts.items()]
        reasons = Counter((item.op, item.reason) for item in self.left)
        lines += [f"{number} x {op} left: {why}" for (op, why), number in reasons.items()]
        return "\n".join(lines) or "nothing to replace in this model"

    def alignment(self) -> dict[str, Any]:
        """The modules as `verify --map` reads them. Names stay; what computes them changed."""
        modules = [
            {"baseline": item.module, "target": item.module, **describe_kept(item)}
            for item in self.replaced
        ]
        return {"schema": SCHEMA, "modules": modules, "ignore": []}

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "replaced": [asdict(item) for item in self.replaced],
            "left": [asdict(item) for item in self.left],
        }

    def write(self, path: str | Path) -> Path:
        """Write the alignment file for `verify … --map PATH`, in one step."""
        target = Path(path)
        try:
            replace_file(target, json.dumps(self.alignment(), indent=1).encode())
        except OSError as error:
            raise JoyError(f"cannot write: {error.strerror}", where=str(target)) from None
        return target


def describe_kept(item: ReplacedModule) -> dict[str, str]:
    """What an alignment says of a module beside its names."""
    return {"op": item.op, "implementation": item.implementation, "reason": item.reason}
