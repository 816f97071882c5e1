"""Writes down in a process what ends it: the exception with its frames, or the crash's own frames.

Started in every Python of a run by `JOYMIGRATE_STOPS=folder`; what it writes is one file for each
process, which `left.py` reads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from types import FrameType, TracebackType
from typing import Any, NoReturn

ENVIRONMENT = "JOYMIGRATE_STOPS"
MOST_FRAMES = 60  # of an exception: the outer and the inner half
MOST_CHAIN = 8


def start() -> None:
    """Watch this process; what the program sees of its errors stays as it is."""
    folder = os.environ.get(ENVIRONMENT)
    if not folder or not os.path.isdir(folder):
        return
    watch_crash(folder)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        write(folder, error)
        return before(kind, error, trace)

    sys.excepthook = hook
    watch_exit(folder)


def watch_crash(folder: str) -> None:
    """Have Python's fault handler write where the process was when a signal killed it."""
    import faulthandler

    if faulthandler.is_enabled():
        return
    try:
        file = open(os.path.join(folder, f"crash-{os.getpid()}.txt"), "w")  # noqa: SIM115  stays open
    except OSError:
        return
    faulthandler.enable(file, all_threads=False)


def watch_exit(folder: str) -> None:
    """`sys.exit` raises what no hook hears of: note from where it was called, and what for."""
    real = sys.exit

    def leave(status: Any = None, /) -> NoReturn:
        if status not in (None, 0):
            try:
                real(status)
            except SystemExit as error:
                note_exit(folder, error)
                raise
        real(status)

    sys.exit = leave


def note_exit(folder: str, error: SystemExit) -> None:
    """Write down an exit with its callers, whose frames no traceback holds."""
    frames: list[list[Any]] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        frames.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, ""])
        frame = frame.f_back
    first = {
        "kind": "SystemExit",
        "message": f"exit code {error.code}" if isinstance(error.code, int) else str(error.code),
        "frames": [with_text(one) for one in frames[MOST_FRAMES::-1]],
        "cause": True,
    }
    handled = error.__context__
    save(folder, [first, *(describe_chain(handled) if handled is not None else ())])


def write(folder: str, error: BaseException) -> None:
    """Write down an exception that ends this process."""
    save(folder, list(describe_chain(error)))


def save(folder: str, chain: list[dict[str, Any]]) -> None:
    """The file of this process, whole or not at all; errors here are nobody's."""
    path = os.path.join(folder, f"stop-{os.getpid()}.json")
    note = {"time": time.time(), "pid": os.getpid(), "argv": list(sys.argv), "chain": chain}
    try:
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(note, file)
        os.replace(f"{path}.part", path)
    except (OSError, ValueError):
        pass


def describe_chain(error: BaseException) -> Any:
    """The exception, then what it came of, as plain data."""
    later: BaseException | None = None
    here: BaseException | None = error
    for _ in range(MOST_CHAIN):
        if here is None:
            return
        yield describe(here, later)
        cause = here.__cause__
        later, here = here, cause or (None if here.__suppress_context__ else here.__context__)


def describe(error: BaseException, later: BaseException | None) -> dict[str, Any]:
    """One exception as plain data."""
    kind = type(error)
    frames = frames_of(error)
    cause = later is None or later.__cause__ is error
    if later is not None and not cause and frames:
        last = frames_of(later)[-1:]
        cause = bool(last) and last[0][0] == frames[0][0] and last[0][2] == frames[0][2]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append([error.filename, error.lineno or 0, "", (error.text or "").strip()])
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    try:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:
        said = ""
    return {"kind": name, "message": said[:8000], "frames": frames, "cause": cause}


def frames_of(error: BaseException) -> list[list[Any]]:
    """(file, line, function, source) of an exception's frames, outermost first."""
    found: list[list[Any]] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append([code.co_filename, trace.tb_lineno, code.co_name, ""])
        trace = trace.tb_next
    if len(found) > MOST_FRAMES:
        found = found[: MOST_FRAMES // 2] + found[-MOST_FRAMES // 2 :]
    return [with_text(one) for one in found]


def with_text(frame: list[Any]) -> list[Any]:
    """A frame with the source of its line."""
    import linecache

    return [*frame[:3], linecache.getline(frame[0], frame[1]).strip()[:300]]
