"""Runs programs under the recorder in forked children of this process: torch is imported once."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch  # noqa: F401  before the fork

import joymigrate.verify.compare
import joymigrate.verify.watch
from joymigrate.verify.bundle import Bundle, open_bundle
from joymigrate.verify.bundle.write import complete, create
from joymigrate.verify.model import Verdict
from joymigrate.verify.settings import Settings
from joymigrate.verify.tolerance import Tolerance


def execute(program: Path, settings: Settings | None, environment: dict[str, str]) -> str:
    """Run a program in a child; returns what it printed. With settings, it is recorded."""
    handle, name = tempfile.mkstemp()
    os.close(handle)
    if settings is not None:
        create(settings.path, {"command": [str(program)], "level": settings.level,
                               "steps": [settings.first, settings.last]})  # fmt: skip
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ.update(environment)
            with open(name, "w") as out, contextlib.redirect_stdout(out):
                code = in_child(program, settings)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    said = Path(name).read_text()
    os.unlink(name)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{program} ended with {os.waitstatus_to_exitcode(status)}: {said}")
    if settings is not None:
        complete(settings.path, {"command": [str(program)], "level": settings.level,
                                 "steps": [settings.first, settings.last]})  # fmt: skip
    return said


def in_child(program: Path, settings: Settings | None) -> int:
    sys.argv = [str(program)]
    finish = joymigrate.verify.watch.install(settings) if settings is not None else None
    runpy.run_path(str(program), run_name="__main__")
    if finish is not None:
        finish()
    return 0


def record(
    program: Path, bundle: Path, environment: dict[str, str] | None = None, **more: Any
) -> Bundle:
    """A baseline of a program."""
    execute(program, Settings(bundle=str(bundle), **more), environment or {})
    return open_bundle(bundle)


def replay(
    baseline: Path,
    program: Path,
    bundle: Path,
    environment: dict[str, str] | None = None,
    **more: Any,
) -> Verdict:
    """The verdict on a program."""
    settings = Settings(bundle=str(bundle), baseline=str(baseline), **more)
    execute(program, settings, environment or {})
    return joymigrate.verify.compare.compare(
        open_bundle(baseline), open_bundle(bundle), Tolerance.of(None)
    )
