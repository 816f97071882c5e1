"""The project's own Python, where it is another version than the one that runs joymigrate.

New content is parsed by it before anything is written: by an interpreter of that version from PATH,
or, for an older version without one, by this Python with the older grammar. An interpreter that
lies in the project is never started; only the version it says is read.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from joymigrate.language import Text
from joymigrate.model import Patch

ENVIRONMENTS = (".venv", "venv", "env")
SAID = re.compile(r"^\s*version(?:_info)?\s*=\s*(\d+)\.(\d+)", re.M)
REQUIRED = re.compile(
    r"^\s*(?:requires-python|python_requires|python)\s*=\s*[\"']?([^\"'\n#,)]+(?:,[^\"'\n#)]+)*)",
    re.M,
)
FILES = ("pyproject.toml", "setup.cfg", "setup.py")
OLDEST = 6  # no torch that a chip's package knows runs on an older Python 3
NEWEST = 30  # minor versions of Python 3 that are asked about
SUFFIXES = (".py", ".pyi", ".pyw")
TIMEOUT_S = 120.0
PROGRAM = Path(__file__).with_name("parse_texts.py")


@dataclass(frozen=True, slots=True)
class PythonRequirement:
    """A project's version of Python, and the file that says so."""

    version: tuple[int, int]
    where: str

    def __str__(self) -> str:
        """`3.8`."""
        return f"{self.version[0]}.{self.version[1]}"


def find_wanted(root: Path) -> PythonRequirement | None:
    """The version of the project at `root`: of its environment, else the lowest that it admits."""
    for name in ENVIRONMENTS:
        match = SAID.search(text_of(root / name / "pyvenv.cfg"))
        if match:
            return PythonRequirement((int(match[1]), int(match[2])), f"{name}/pyvenv.cfg")
    match = re.match(r"\s*(\d+)\.(\d+)", text_of(root / ".python-version"))
    if match:
        return PythonRequirement((int(match[1]), int(match[2])), ".python-version")
    for name in FILES:
        match = REQUIRED.search(text_of(root / name))
        lowest = lowest_of(match[1].strip()) if match else None
        if lowest is not None:
            return PythonRequirement(lowest, name)
    return None


def lowest_of(required: str) -> tuple[int, int] | None:
    """The lowest Python 3 that a requirement admits; `^3.8` and `~3.8` are poetry's."""
    required = re.sub(r"^[\^~](?=\d)", ">=", required)
    try:
        admitted = SpecifierSet(required)
    except InvalidSpecifier:
        return None
    for minor in range(OLDEST, NEWEST):
        if admitted.contains(f"3.{minor}.99"):
            return 3, minor
    return None


def text_of(path: Path) -> str:
    """Text of a small file, empty where it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:100_000]
    except OSError:
        return ""


def check_patches(patches: Sequence[Patch], root: Path) -> tuple[list[Patch], list[str]]:
    """The patches whose result the project's Python parses, and what to tell about it.

    A file that it could not parse before either stays as it is wanted.
    """
    project = find_wanted(root)
    made = [p for p in patches if p.path.suffix in SUFFIXES and p.after is not None]
    if project is None or project.version == sys.version_info[:2] or not made:
        return list(patches), []
    texts = {f"after:{p.path}": decode(p.after) for p in made}
    texts |= {f"before:{p.path}": decode(p.before) for p in made if p.before is not None}
    values: dict[str, Any] = {"version": str(project), "where": project.where}
    program = shutil.which(f"python{project}")
    bad = parsed_by(program, texts) if program else None
    if bad is not None:
        told = Text("results were parsed by Python {version} ({where})", **values)
    elif project.version < sys.version_info[:2]:
        bad = by_grammar(texts, project.version)
        told = Text(
            "results were parsed with the grammar of Python {version} ({where}) by Python {ours}: "
            "no python{version} runs from PATH",
            **values,
            ours=running(),
        )
    else:
        told = Text(
            "results were parsed by Python {ours}, not by the project's {version} ({where}): "
            "no python{version} runs from PATH",
            **values,
            ours=running(),
        )
        return list(patches), [told]
    left = [p for p in made if f"after:{p.path}" in bad and f"before:{p.path}" not in bad]
    notes = [
        Text(
            "{path} is not written: Python {version} can't parse the result ({problem})",
            path=str(patch.path),
            version=str(project),
            problem=bad[f"after:{patch.path}"],
        )
        for patch in left
    ]
    if any(patch.before is None for patch in left):  # the helper: nothing that imports it either
        left += [p for p in patches if any(f.needs == "helper" for f in p.findings)]
    return [patch for patch in patches if patch not in left], [told, *notes]


def running() -> str:
    """The version of the Python that runs joymigrate."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def decode(data: bytes | None) -> str:
    """Text of a file's bytes; what does not decode can't change whether edits parse."""
    from joymigrate.rewrite.source import Unreadable, decode

    try:
        return decode("", data or b"", python=True).text
    except Unreadable:
        return ""


def parsed_by(program: str, texts: Mapping[str, str]) -> dict[str, str] | None:
    """What an interpreter can't parse, with its reason; None when it does not run."""
    try:
        done = subprocess.run(
            [program, "-I", "-S", str(PROGRAM)],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found


def by_grammar(texts: Mapping[str, str], version: tuple[int, int]) -> dict[str, str]:
    """What an older grammar of this Python refuses, with the reason."""
    return dict(find_refused(texts, version))


def find_refused(texts: Mapping[str, str], version: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Names and reasons of `by_grammar`."""
    for name, text in texts.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(text, feature_version=version)
        except (SyntaxError, ValueError) as error:
            yield name, str(error)
