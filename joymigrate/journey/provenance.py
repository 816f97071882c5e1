"""Where a journey comes from: versions, machine, commit, and the command that repeats it."""

from __future__ import annotations

import platform
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from joymigrate import __version__
from joymigrate.chips import get
from joymigrate.journey.model import JourneyRequest
from joymigrate.run.kernels.operator import CPU
from joymigrate.run.kernels.tuning_results import card_name

SCHEMA = "joymigrate.provenance/1"
FILE = "provenance.json"
OPTIONS = {"chip": "to"}  # the option of a field, where its name is another


def provenance(request: JourneyRequest, *, chip_here: bool) -> dict[str, Any]:
    """What has to be known to repeat a journey, taken before its first step changes a file."""
    chip = get(request.chip)
    packages = {name: installed_version(name) for name in ("torch", chip.distribution) if name}
    return {
        "schema": SCHEMA,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "chip": {"name": chip.name, "title": chip.title, "here": chip_here},
        "versions": {"joymigrate": __version__, "python": platform.python_version(), **packages},
        "machine": {"system": platform.platform(), "processor": card_name(CPU)},
        "git": git_state(request.project),
        "repeat": shlex.join(repeat(request)),
    }


def repeat(request: JourneyRequest) -> list[str]:
    """The command that takes the same journey anew, run in the project."""
    words = ["joymigrate", "pair" if request.pair else "migrate", "."]
    words += ["--origin", request.origin.name] if request.origin and request.origin.name else []
    for one in fields(request):
        value = getattr(request, one.name)
        option = "--" + OPTIONS.get(one.name, one.name.replace("_", "-"))
        if one.name in ("project", "pair", "origin") or value in (None, (), False):
            continue
        words.append(option)
        if value is not True:
            words.append(shlex.join(value) if isinstance(value, tuple) else str(value))
    return [*words, "--fresh"]


def installed_version(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def git_state(project: Path) -> Mapping[str, Any] | None:
    """The commit that is checked out and how many files differ from it; None outside of git."""
    commit = git(project, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = git(project, "status", "--porcelain", "--", ".") or ""
    return {"commit": commit.strip(), "changed_files": len(changed.splitlines())}


def git(project: Path, *words: str) -> str | None:
    """What git prints; None where it fails or is missing."""
    command = ["git", "-C", str(project), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout
