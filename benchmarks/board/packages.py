"""Packages that a program needs beside this environment, in a folder of their own.

Only what a program names is installed, without what that asks for in turn: torch stays the one that
joymigrate is tried with. A folder is named after its contents and made once.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

CACHE = Path(__file__).parents[2] / "build" / "board-packages"
KEPT = frozenset({"torch", "torch-npu"})  # the pair that everything here is tried with
FAKES = re.compile(r'register_(?:fake|meta)\("(?:torchvision::)?(\w+)"\)')


def folder(wanted: Sequence[str], cache: Path = CACHE) -> Path:
    """The folder with the packages `wanted` (requirements as pip takes them), made when missing.

    Raises ValueError for text that is no requirement, for torch itself, or when pip fails.
    """
    for one in wanted:
        check(one)
    name = hashlib.sha256("\n".join(sorted(wanted)).encode()).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / name
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            install(wanted, target)
    return target


def check(requirement: str) -> None:
    """Whether one text is a requirement that may be added."""
    try:
        asked = Requirement(requirement)
    except InvalidRequirement as error:
        raise ValueError(f"{requirement!r} is no requirement: {error}") from error
    if asked.name.lower() in KEPT:
        raise ValueError(f"{requirement!r}: the board runs with the environment's own {asked.name}")


def install(wanted: Sequence[str], target: Path) -> None:
    """Install into a folder that appears whole or not at all."""
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    ask = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run(
        [*ask, "--no-deps", "--target", str(part), *wanted], capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word from pip"])[-1]
        raise ValueError(f"{' '.join(wanted)}: {last}")
    if (part / "torchvision" / "extension.py").is_file():
        without_compiled(part / "torchvision")
    part.rename(target)


def without_compiled(torchvision: Path) -> None:
    """Let torchvision be imported where its compiled operators can't be loaded.

    The index has builds for CUDA alone, whose library does not load beside torch for CPUs. The
    operators get their names, so that the import ends; a program that calls one gets an error.
    """
    fakes = (torchvision / "_meta_registrations.py").read_text(encoding="utf-8")
    names = sorted(set(FAKES.findall(fakes)))
    with (torchvision / "extension.py").open("a", encoding="utf-8") as file:
        file.write(
            "\nif not _has_ops():\n"
            '    _named = torch.library.Library("torchvision", "FRAGMENT")\n'
            f"    for _name in {names}:\n"
            '        _named.define(f"{_name}() -> Tensor")\n'
        )
