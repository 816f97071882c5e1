"""One recording from outside: its folder, the environment of its processes, what they wrote."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from joymigrate.errors import JoyError
from joymigrate.profile.recorder.settings import ENVIRONMENT, HOOK, RecorderSettings, stem

FOLDER = "seen"  # of the session: one file per process, see recorder/whole.py
VARIABLES = ("OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_LAUNCH_BLOCKING")
SWITCH = "JOYMIGRATE_SWITCH"


@dataclass(frozen=True, slots=True)
class RecordFile:
    """One file that a process of the program left."""

    path: Path
    operators: int  # distinct signatures
    calls: int  # of one step
    steps: int  # that were timed
    steps_seen: int  # that ended; 0: the whole program is in the recording
    complete: bool
    chrome: Path | None


@contextmanager
def open_recording(settings: RecorderSettings) -> Iterator[RecorderSettings]:
    """Keep a folder for the recording while it lasts; old files of the same name go first."""
    folder = settings.out.parent
    if not folder.is_dir():
        raise JoyError("the output's folder does not exist", where=str(folder), help="make it")
    if settings.out.is_dir():
        raise JoyError("the output is a folder", where=str(settings.out), help="name a file")
    for old in written_paths(settings.out):
        old.unlink(missing_ok=True)
    session = Path(tempfile.mkdtemp(prefix="joymigrate-record-"))
    try:
        ready = replace(settings, session=session, out=settings.out.resolve())
        ready.save()
        yield ready
        merge_seen(ready)
    finally:
        shutil.rmtree(session, ignore_errors=True)


SHAPES = ("shapes", "calls", "module", "training")  # of the model with the most shapes


def environment(settings: RecorderSettings, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with what makes each Python below it part of the recording, where it calls hooks."""
    made = dict(base)
    hooks = [name for name in made.get(SWITCH, "").split(",") if name and name != HOOK]
    made[SWITCH] = ",".join([*hooks, HOOK])
    made[ENVIRONMENT] = str(settings.session)
    made.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler would talk on the program's stderr
    return made


def merge_seen(settings: RecorderSettings) -> None:
    """Put what processes saw beside and after the exact step behind their recordings."""
    default = settings.out
    for path in sorted((settings.session / FOLDER).glob("*.jsonl")):
        lines = [line for line in path.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"]
        out = default
        until = "killed"
        shapes: dict[str, Any] = {}
        kept = []
        for line in lines:
            item = json.loads(line)
            if item["kind"] == "out":
                out = Path(item["path"])
            elif item["kind"] == "watched":
                until = item["until"]
                shapes = {key: item[key] for key in SHAPES if key in item}
            elif item["kind"] == "watch":
                worker = item["worker"]
            elif item["kind"] in ("seen", "unread"):
                kept.append(line)
        end = {"kind": "watched", "until": until, "worker": worker, "seen": len(kept)}
        end |= shapes
        data = b"".join(kept) + json.dumps(end).encode() + b"\n"
        if not out.is_file():
            data = json.dumps(EMPTY).encode() + b"\n" + data
        with out.open("ab") as file:
            file.write(gzip.compress(data, 6) if out.suffix == ".gz" else data)


# The header where no process came as far as its first step's end.
EMPTY = {
    "schema": "joymigrate.trace/1", "device": "", "torch": None, "steps": 0, "steps_seen": 0,
    "complete": False, "chrome": None,
}  # fmt: skip


def written_paths(out: Path) -> list[Path]:
    """Every JSONL that a recording to `out` may have left."""
    name = Path(stem(out))
    suffix = str(out)[len(str(name)) :] or ".jsonl"
    parts = [
        path
        for kind in ("rank", "process")
        for path in sorted(name.parent.glob(f"{name.name}.{kind}-*{suffix}"))
    ]
    main = Path(f"{name}{suffix}")
    return [path for path in (main, *parts) if path.is_file()]


def read_written(out: Path) -> list[RecordFile]:
    """What the processes of the program left, in the order of their names."""
    return [summary(path) for path in written_paths(out)]


def open_text(path: Path) -> IO[str]:
    """The lines of one recording."""
    return (
        gzip.open(path, "rt", encoding="utf-8")
        if path.suffix == ".gz"
        else path.open(encoding="utf-8")
    )


def reads_back(path: Path) -> bool:
    """Whether the recorded program copies a tensor from a card to the host."""
    with open_text(path) as file:
        rows = [json.loads(line) for line in file if line.startswith('{"kind":"op"')]
    moves = ((devices_of(row["args"]), devices_of(row["outputs"])) for row in rows)
    return any(made == {"cpu"} and given - made for given, made in moves)


def devices_of(values: Sequence[Any]) -> set[str]:
    """Where the tensors among some values lie."""
    return {one["device"] for one in values if isinstance(one, dict) and "device" in one}


def summary(path: Path) -> RecordFile:
    """Sizes of one recording."""
    with open_text(path) as file:
        header: dict[str, Any] = json.loads(next(file))
        operators = calls = 0
        for line in file:
            if line.startswith('{"kind":"op"'):
                operators += 1
                calls += int(json.loads(line)["calls"])
    chrome = path.with_name(header["chrome"]) if header["chrome"] else None
    seen = header["steps_seen"]
    return RecordFile(path, operators, calls, header["steps"], seen, header["complete"], chrome)
