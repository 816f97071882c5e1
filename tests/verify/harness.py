"""Runs programs under the recorder in children of a server that imported torch."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import joymigrate.verify.compare
import joymigrate.verify.watch
from joymigrate.verify import made_files, repeat_runs
from joymigrate.verify.bundle import Bundle, open_bundle
from joymigrate.verify.bundle.write import complete, create
from joymigrate.verify.model import Verdict
from joymigrate.verify.settings import RecordingSettings
from joymigrate.verify.tolerance import Tolerance
from joymigrate.verify.written_files import collect
from tests.forked import SERVER


def execute(
    program: Path,
    settings: RecordingSettings | None,
    environment: dict[str, str],
    outputs: Path | None = None,
) -> str:
    """Run a program in a child; returns what it printed. With settings, it is recorded, with what
    it wrote into the folder `outputs`."""
    begun = time.time()
    handle, name = tempfile.mkstemp()
    os.close(handle)
    if settings is not None:
        create(settings.path, {"command": [str(program)], "level": settings.level,
                               "steps": [settings.first, settings.last]})  # fmt: skip
    child = SERVER.Process(
        target=in_child, args=(program, settings, {**os.environ, **environment}, name)
    )
    child.start()
    child.join()
    said = Path(name).read_text()
    os.unlink(name)
    if child.exitcode:
        raise RuntimeError(f"{program} ended with {child.exitcode}: {said}")
    if settings is not None:
        files = collect(["*"], outputs, begun) if outputs is not None else None
        complete(settings.path, {"command": [str(program)], "level": settings.level,
                                 "steps": [settings.first, settings.last]}, files)  # fmt: skip
    return said


def in_child(
    program: Path, settings: RecordingSettings | None, environment: dict[str, str], out: str
) -> None:
    """Run the program in this process; what it prints goes to the file `out`."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(program)]
    with open(out, "w") as file, contextlib.redirect_stdout(file):
        finish = joymigrate.verify.watch.install(settings) if settings is not None else None
        runpy.run_path(str(program), run_name="__main__")
        if finish is not None:
            finish()


def record(
    program: Path,
    bundle: Path,
    environment: dict[str, str] | None = None,
    outputs: Path | None = None,
    *,
    runs: int = 0,
    until: int | None = None,
    **more: Any,
) -> Bundle:
    """A baseline of a program, with so many other runs of it, which end behind step `until`."""
    settings = RecordingSettings(bundle=str(bundle), **more)
    execute(program, settings, environment or {}, outputs)
    made = open_bundle(bundle)
    if runs:
        first = made_files.list_files(outputs, bundle) if outputs else set()
        with (
            tempfile.TemporaryDirectory() as room,
            made_files.begin_again(outputs or Path(room), set(), first, bundle),
        ):
            others = []
            for number in range(1, runs + 1):
                folder = Path(room) / f"again-{number}.jmb"
                other = repeat_runs.settings_of(settings, folder, number, until)
                execute(program, other, environment or {}, outputs)
                others.append(open_bundle(folder))
            repeat_runs.keep(made, others, until)
    return open_bundle(bundle)


def replay(
    baseline: Path,
    program: Path,
    bundle: Path,
    environment: dict[str, str] | None = None,
    outputs: Path | None = None,
    **more: Any,
) -> Verdict:
    """The verdict on a program."""
    settings = RecordingSettings(bundle=str(bundle), baseline=str(baseline), **more)
    execute(program, settings, environment or {}, outputs)
    return joymigrate.verify.compare.compare(
        open_bundle(baseline), open_bundle(bundle), Tolerance.of(None)
    )
