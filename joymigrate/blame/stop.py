"""The nouns of blame: what is known about a program that stopped, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from joymigrate.blame.exceptions import Raised
from joymigrate.blame.program import Program
from joymigrate.blame.vendor import Vendor
from joymigrate.language import Text


class FrameOwner(str, Enum):
    """Whose a stop is. `UNKNOWN`: nothing that is known decides it."""

    PROGRAM = "program"
    ENVIRONMENT = "environment"
    CHIP = "chip"
    PACKAGE = "package"
    REWRITE = "rewrite"
    SIMULATION = "simulation"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OriginSite:
    """A site of the origin that the rewriting left in the program: `where` is `file:line`."""

    where: str
    code: str
    rule: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StopEvidence:
    """All that the judge may look at.

    `chain` are the exceptions, the last one first; `code` the exit code, 128 + n for signal n;
    `last` the last words where nothing was raised. `on_chip` is False for the program as it was,
    on this machine. `before` is what the program as it was ended with: None where it did not run,
    empty where it ended well. `written` are lines that the rewriting wrote, by file; `left` the
    sites that it left; `names` places outside of Python that hold the origin's word; `made` the
    lines of the program that were seen to hand it to torch. `refusals` are those of the rehearsal,
    `versions` of the installed distributions by name, `own` the modules in the folder where the
    program is started. `rewritten` is False where this run rewrote nothing.
    """

    program: Program
    chain: tuple[Raised, ...] = ()
    code: int = 1
    last: str = ""
    on_chip: bool = True
    before: tuple[Raised, ...] | None = None
    written: Mapping[str, frozenset[int]] = field(default_factory=dict)
    left: Sequence[OriginSite] = ()
    names: Sequence[str] = ()
    made: Sequence[str] = ()
    refusals: Sequence[Mapping[str, Any]] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    vendor: Vendor = field(default_factory=Vendor)
    rewritten: bool = True


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a program stopped: `line` of the program's own code (`train.py:60`, empty where none is
    known), what was said there, whose it is, how that is known and what to do next."""

    line: str
    message: str
    whose: FrameOwner
    how_known: Text
    next: Text
    frames: tuple[str, ...] = ()  # folded
    edits: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The stop as reports hold it."""
        return {
            "line": self.line,
            "message": self.message,
            "whose": self.whose.value,
            "how_known": self.how_known,
            "next": self.next,
            "frames": list(self.frames),
            "edits": dict(self.edits),
        }
