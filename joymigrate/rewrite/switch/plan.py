"""What the switch will do: the edits of every file of the program, computed before it starts."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from joymigrate import __version__
from joymigrate.chips import Chip
from joymigrate.errors import JoyError
from joymigrate.model import Edit, Finding, Style, Tier
from joymigrate.rewrite.discover import Exclusion
from joymigrate.rewrite.project import scan
from joymigrate.rewrite.switch.edit_cache import kept_or
from joymigrate.rewrite.values.settings_files import ENDINGS

ENVIRONMENT = "JOYMIGRATE_SWITCH_PLAN"
SCHEMA = "joymigrate.switch/1"
# Unsafe rules that the switch applies all the same: nothing is written, and without them the
# program stops with an AttributeError at the first error it handles.
ALSO = ("JM108",)
# The line that imports the backend is not added: the switch imports it itself.
NEVER = ("JM001",)
ROOT_MARKS = ("joymigrate.toml", "pyproject.toml", "setup.py", ".git", ".joymigrate")


def make(
    command: Sequence[str],
    *,
    chip: Chip,
    origin: Chip,
    follow_imports: Sequence[str] = (),
    leave: Sequence[str] = (),
    version: str | None = None,
) -> dict[str, Any]:
    """The plan for a command line: every edit of the project's files and of named packages.

    `leave` are rules that are not applied. Unsafe edits stay out, except the few of `ALSO`.
    """
    root = project_root(command)
    files: dict[str, Any] = {}
    folders = [root, *(package_folder(name) for name in follow_imports)]
    for folder in folders:
        files |= kept_or(
            partial(edits_below, folder, chip=chip, origin=origin, leave=leave, version=version),
            folder,
            chips=(chip, origin),
            version=version,
            leave=leave,
        )
    return {
        "schema": SCHEMA,
        "version": __version__,
        "chip": chip.name,
        "origin": origin.name,
        "package": chip.package,
        "words": [origin.device, origin.backend],
        "leave": list(leave),
        "roots": [os.path.realpath(folder) for folder in folders],
        "files": files,
    }


def edits_below(
    folder: Path, *, chip: Chip, origin: Chip, leave: Sequence[str], version: str | None
) -> dict[str, Any]:
    """Every edit of the files below a folder, by real path.

    Settings files are read from the disk as they are: what their values are compared with stays.
    """
    found = scan(
        [folder],
        chip=chip,
        origin=origin,
        style=Style.DIRECT,
        exclude=Exclusion(tuple(f"*{ending}" for ending in ENDINGS)),
        chip_version=version,
    )
    files: dict[str, Any] = {}
    for path, edits in edits_by_file(found.findings, leave).items():
        full = os.path.realpath(found.root / path)
        files[full] = {
            "sha256": found.digests[path],
            "edits": same_lines(edits, Path(full).read_bytes()),
        }
    return files


def edits_by_file(findings: Sequence[Finding], leave: Sequence[str]) -> dict[str, list[Edit]]:
    """Edits that the switch makes, by path, in order."""
    found: dict[str, list[Edit]] = {}
    for finding in findings:
        wanted = finding.tier is Tier.SAFE or finding.rule in ALSO
        if wanted and finding.rule not in (*NEVER, *leave) and python_like(finding.path):
            found.setdefault(finding.path, []).extend(finding.edits)
    return {
        path: sorted(dict.fromkeys(edits), key=lambda e: (e.start, e.end))
        for path, edits in found.items()
        if edits
    }


def python_like(path: str) -> bool:
    """Whether a path can be a Python file: by its ending, or a script without one."""
    return PurePosixPath(path).suffix in (".py", ".pyw", "")


def same_lines(edits: Sequence[Edit], data: bytes) -> list[list[Any]]:
    """Edits of `data` as [start, end, text], none of which adds a line.

    A statement that would get a line of its own goes behind a semicolon.
    """
    made: list[list[Any]] = []
    for edit in edits:
        text = edit.text.decode("latin-1")
        if text.count("\n") != data.count(b"\n", edit.start, edit.end):
            text = re.sub(r"\r?\n\s*", "; ", text)
        made.append([edit.start, edit.end, text])
    return made


def project_root(command: Sequence[str]) -> Path:
    """The folder whose files are the user's own: the project of the script, else of the shell."""
    here = Path.cwd()
    start = here
    for word in command:
        if word.endswith(".py") and Path(word).is_file():
            start = Path(word).resolve().parent
            break
    for folder in (start, *start.parents):
        if folder == Path.home() or folder == Path(folder.anchor):
            break
        if any((folder / mark).exists() for mark in ROOT_MARKS):
            return folder
    return start


def package_folder(name: str) -> Path:
    """The folder of an installed package. One that is not there raises `JoyError`."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec else []
    if places:
        return Path(places[0])
    if spec is not None and spec.origin:
        return Path(spec.origin)
    raise JoyError(
        f"package '{name}' is not installed here",
        help="install it in this environment, or leave it out of --follow-imports",
    )


def save(plan: dict[str, Any]) -> Path:
    """Write the plan where the program's processes find it; the caller removes it."""
    handle, name = tempfile.mkstemp(prefix="joymigrate-switch-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(plan, file)
    return Path(name)


def hints(command: Sequence[str], origin: Chip, chip: Chip) -> Iterator[str]:
    """Advice on device names that the user's own command line still spells the origin's way."""
    device = re.compile(rf"(?:(--[\w-]+)=)?({re.escape(origin.device)}(?::\d+)?|{origin.backend})$")
    for before, word in zip(["", *command], command, strict=False):
        match = device.match(word)
        option = (match and match.group(1)) or before
        if match and option.startswith("--"):
            other = match.group(2).replace(origin.device, chip.device)
            other = other.replace(origin.backend, chip.backend)
            yield f"the command line says {option} {match.group(2)}; here it is {option} {other}"
