"""A recording around a program: the bundle before it, its environment, the manifest after."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate import settings as stored
from joymigrate.errors import JoyError
from joymigrate.verify import crash, written_files
from joymigrate.verify.bundle.write import MANIFEST, complete, create
from joymigrate.verify.settings import ENVIRONMENT, RecordingSettings

HOOK = "joymigrate.verify.start:start"
SWITCH = "JOYMIGRATE_SWITCH"


def make_room(path: Path, force: bool) -> None:
    """Take away a bundle of that name when asked to; anything else that is there is kept."""
    if not path.exists():
        return
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
        return
    if not force:
        raise JoyError(
            "there is something at the bundle's place already",
            where=str(path),
            help="name another folder with -o, or add --force to replace a bundle",
        )
    if not (path / MANIFEST).is_file():
        raise JoyError("this is no bundle; it is not replaced", where=str(path))
    shutil.rmtree(path)


@dataclass(slots=True)
class RecordedProgram:
    """A program that is to be recorded: its environment; set `code` when it has ended."""

    environment: dict[str, str]
    code: int | None = None


@contextmanager
def recording(
    settings: RecordingSettings,
    command: Sequence[str],
    base: Mapping[str, str],
    outputs: Sequence[str] = (),
) -> Iterator[RecordedProgram]:
    """The environment in which every Python below `command` records into the bundle. `outputs` are
    patterns of files that the program writes."""
    facts: dict[str, Any] = {
        "command": list(command),
        "level": settings.level,
        "created": time.time(),
    }
    facts["steps"] = [settings.first, settings.last]
    facts["window"] = list(settings.window)
    try:
        create(settings.path, facts)
    except OSError as error:
        raise JoyError(
            f"cannot make the bundle: {error.strerror}", where=str(settings.path)
        ) from None
    handle, name = tempfile.mkstemp(prefix="joymigrate-verify-", suffix=".json")
    os.close(handle)
    file = Path(name)
    made = dict(base)
    running = RecordedProgram(made)
    try:
        stored.write(settings, file)
        made[ENVIRONMENT] = str(file)
        hooks = [h for h in made.get(SWITCH, "").split(",") if h and h != HOOK]
        made[SWITCH] = ",".join([*hooks, HOOK])
        yield running
    finally:
        file.unlink(missing_ok=True)
        since = float(facts["created"])
        found = written_files.collect(outputs, Path.cwd(), since) if outputs else None
        close(settings.path, {**facts, "exit_code": running.code}, found)


def close(path: Path, facts: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> None:
    """Write the manifest that names everything. A full disk leaves the bundle readable as it is."""
    try:
        ended = {"crash": crash.collect(path), "stopped": crash.collect_stop(path)}
        complete(path, {**facts, **{key: value for key, value in ended.items() if value}}, outputs)
    except OSError as error:
        raise JoyError(
            f"cannot finish the bundle: {error.strerror}",
            where=str(path),
            help="what was flushed can be read: the manifest says that it is not complete",
        ) from None
