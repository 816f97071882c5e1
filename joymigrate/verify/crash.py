"""The exception that ended a recorded program: kept with the recording, told by the verdict."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate.language import Text
from joymigrate.verify.bundle import Rank

LONGEST = 300  # characters of a message
OURS = Path(__file__).resolve().parents[1]


def uncaught() -> dict[str, str] | None:
    """What ended this process, while it ends; None where no exception did."""
    error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        return None
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return {
        "exception": type(error).__name__,
        "message": (said[0] if said else "")[:LONGEST],
        "where": where(error) or "",
    }


def where(error: BaseException) -> str | None:
    """`train.py:105`: the innermost line of the program's own files."""
    here = Path.cwd()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not path.is_file() or foreign(path.resolve()):
            continue
        full = path.resolve()
        shown = full.relative_to(here) if full.is_relative_to(here) else path
        return f"{shown}:{frame.lineno}"
    return None


def foreign(path: Path) -> bool:
    """Whether a file belongs to Python, to a package, or to joymigrate."""
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    library = Path(traceback.__file__).resolve().parent
    return path.is_relative_to(library) or path.is_relative_to(OURS)


def of(ranks: Sequence[Rank]) -> Mapping[str, Any] | None:
    """The crash of a recording: that of its earliest step, of the first process that tells one."""
    found = [rank.manifest["crash"] for rank in ranks if rank.manifest.get("crash")]
    return min(found, key=lambda crash: int(crash["step"]), default=None)


def told(crash: Mapping[str, Any]) -> Text:
    """One sentence."""
    what = f"{crash['exception']}: {crash['message']}".removesuffix(": ")
    if not crash.get("where"):
        return Text(
            "the target's program broke off in step {step}: {what}", step=crash["step"], what=what
        )
    return Text(
        "the target's program broke off in step {step}, at {where}: {what}",
        step=crash["step"],
        where=crash["where"],
        what=what,
    )
