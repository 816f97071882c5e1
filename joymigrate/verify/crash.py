"""What ended a recording before its time: the program's exception, told by the verdict, or a disk
that is full."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from joymigrate.language import Text

LONGEST = 300  # characters of a message
NOTES = "crash-*.json"  # in the bundle's folder, until the recording is over
STOPS = "stopped-*"  # all of it is in the name: an empty file needs no room on a full disk
OURS = Path(__file__).resolve().parents[1]
RECORDER = OURS / "verify"  # an error of the simulated chip is none of the recorder
# A line of ours that calls the program's code, or hands it to what calls it: what is raised below
# it is the program's.
CODE = "real|func|call|made|plain|root|fn|function|step|closure"
HANDS_ON = re.compile(
    rf"(?<!\.)\b({CODE})\(|\bself\.call\(|"
    rf"\(({CODE}), (name|args|f\")|\baround\(functools\.partial\(({CODE}), "
)


class ProcessRecord(Protocol):
    """What one process recorded."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What its files say, with the crash."""


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
        "recorder": of_recorder(error) or "",
    }


def leave(folder: Path) -> None:
    """Leave a note of what ended this process, for a bundle that it recorded nothing in."""
    broken = uncaught()
    if broken is not None and folder.is_dir():
        name = f"crash-{time.time_ns()}-{os.getpid()}.json"
        (folder / name).write_text(json.dumps(broken), encoding="utf-8")


def collect(folder: Path) -> Mapping[str, Any] | None:
    """Take the notes away: the first one that names a line of the program, else the first.

    A launcher ends by an exception of its own, after its processes did.
    """
    files = sorted(folder.glob(NOTES))
    notes = [json.loads(file.read_bytes()) for file in files]
    for file in files:
        file.unlink()
    return next((note for note in notes if note["where"]), next(iter(notes), None))


def leave_stop(folder: Path, step: int, number: int) -> None:
    """Leave a note that no step from this one on could be written, for errno `number`."""
    with contextlib.suppress(OSError):
        (folder / f"stopped-{step}-{number}").touch()


def collect_stop(folder: Path) -> Mapping[str, Any] | None:
    """Take these notes away: the first step that a process could not write, and why."""
    found = []
    for file in folder.glob(STOPS):
        _, step, number = file.name.split("-")
        found.append({"step": int(step), "why": os.strerror(int(number))})
        file.unlink()
    return min(found, key=lambda stop: int(str(stop["step"])), default=None)


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


def of_recorder(error: BaseException) -> str | None:
    """`run_watch.py:162` where the recorder's own work raised, and not code that it handed on."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(RECORDER):
            if not HANDS_ON.search(frame.line or ""):
                return f"{path.name}:{frame.lineno}"
        elif not foreign(path):
            return None
    return None


# What our own code raises where it is wrong; torch refuses a call by other exceptions.
OWN_ERRORS = (AssertionError, AttributeError, LookupError, NameError, TypeError, ZeroDivisionError)


def recorder_error(error: BaseException) -> Text | None:
    """Words for an exception that was caught, where it is an error of the recorder itself."""
    at = of_recorder(error) if isinstance(error, OWN_ERRORS) else None
    if at is None:
        return None
    said = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {said[0][:LONGEST] if said else ''}".removesuffix(": ")
    return Text("joymigrate's own recorder failed at {where}: {what}", where=at, what=what)


def foreign(path: Path) -> bool:
    """Whether a file belongs to Python, to a package, or to joymigrate."""
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    library = Path(traceback.__file__).resolve().parent
    return path.is_relative_to(library) or path.is_relative_to(OURS)


def of(ranks: Sequence[ProcessRecord]) -> Mapping[str, Any] | None:
    """The crash of a recording: that of its earliest step, of the first process that tells one."""
    found = [rank.manifest["crash"] for rank in ranks if rank.manifest.get("crash")]
    return min(found, key=lambda crash: int(crash["step"]), default=None)


def words(crash: Mapping[str, Any]) -> str:
    """`RuntimeError: no kernel for this`."""
    return f"{crash['exception']}: {crash['message']}".removesuffix(": ")


def early(crash: Mapping[str, Any] | None, stop: Mapping[str, Any] | None) -> str:
    """`: the program broke off at train.py:3: RuntimeError: no GPU`, after what came of that."""
    if stop is not None:
        return f": step {stop['step']} could not be written: {stop['why']}"
    if crash is None:
        return ""
    if crash.get("recorder"):
        return f": joymigrate's own recorder failed at {crash['recorder']}: {words(crash)}"
    at = f" at {crash['where']}" if crash.get("where") else ""
    return f": the program broke off{at}: {words(crash)}"


def exit_words(code: int) -> str:
    """`exit code 137, killed by SIGKILL`."""
    try:
        return f"exit code {code}, killed by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"exit code {code}"


def describe(crash: Mapping[str, Any]) -> Text:
    """One sentence."""
    what = words(crash)
    if crash.get("recorder"):
        return Text(
            "joymigrate's own recorder failed in step {step}, not the program, at {where}: {what}",
            step=crash["step"],
            where=crash["recorder"],
            what=what,
        )
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
