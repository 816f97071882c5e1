"""One rehearsal from outside: its folder, the environment of its processes, what they left."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from joymigrate.language import restore_texts
from joymigrate.launching import with_start
from joymigrate.run.rehearse.build import build, find_package
from joymigrate.run.rehearse.options import with_cann
from joymigrate.run.rehearse.presence import refuse_real_chip
from joymigrate.run.rehearse.releases import choose
from joymigrate.run.rehearse.settings import ENVIRONMENT, OWN_VARIABLES, RehearsalSettings


@contextmanager
def open_session(settings: RehearsalSettings) -> Iterator[RehearsalSettings]:
    """Build the device if need be, and keep a folder for the rehearsal while it lasts.

    `settings.session`, `libraries` and `package` are filled in here.
    """
    refuse_real_chip()
    package = find_package()
    libraries = build(package)
    told = with_cann(settings, package.version)
    folder = Path(tempfile.mkdtemp(prefix="joymigrate-rehearsal-"))
    try:
        ready = replace(told, session=folder, libraries=libraries, package=package.version)
        ready.save()
        yield ready
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment(settings: RehearsalSettings, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with what makes each Python below it part of the rehearsal."""
    kept = choose()
    made = with_start(base, *([] if kept is None else [kept.folder]))
    made[ENVIRONMENT] = str(settings.session)
    made |= OWN_VARIABLES
    if settings.policy == "error":  # the package's own refusal, for what we can't count by name
        made["TORCH_NPU_FALLBACK_CPU_DISABLE"] = "1"
    return made


def read_records(settings: RehearsalSettings) -> list[dict[str, Any]]:
    """What the processes of the program left, by rank, then by start."""
    found = []
    for path in settings.session.glob("process-*.json"):
        try:
            found.append(restore_texts(json.loads(path.read_text(encoding="utf-8"))))
        except ValueError:
            continue  # cut short while it was written
    return sorted(found, key=lambda record: (record["rank"] or 0, record["started"]))
