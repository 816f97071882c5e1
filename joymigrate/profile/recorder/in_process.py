"""Records a function in this process: for notebooks, tests, and programs that ask for it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from joymigrate.profile.recorder.settings import RecorderSettings


def record_step(
    step: Callable[[], Any], out: Path, settings: RecorderSettings | None = None
) -> Path:
    """Call `step` until the recording is done, and return the path of the JSONL.

    One call is one step. `settings.out` and `settings.session` are filled in here.
    """
    from joymigrate.profile.recorder.controller import StepController
    from joymigrate.profile.recorder.watch import install

    session = Path(tempfile.mkdtemp(prefix="joymigrate-record-"))
    try:
        wanted = settings or RecorderSettings(session, out)
        controller = StepController(replace(wanted, session=session, out=out), explicit=True)
        install(controller)
        try:
            while controller.state != "done":
                controller.step(step)
        finally:
            controller.finish()
    finally:
        shutil.rmtree(session, ignore_errors=True)
    return out
