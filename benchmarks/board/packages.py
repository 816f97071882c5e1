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
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from benchmarks.torch_without_cuda import write_stand_ins

CACHE = Path(__file__).parents[2] / "build" / "board-packages"
KEPT = frozenset({"torch", "torch-npu"})  # the pair that everything here is tried with
OF_CUDA = re.compile(r"libcudart\.|libc10_cuda\.|libtorch_cuda\.")
CUDA_FUNCTION_OF_ANY = re.compile(r"(__)?cuda|_ZNK?(2at|3c10)4cuda")
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
        without_cuda(part / "torchvision")
    part.rename(target)


def without_cuda(torchvision: Path) -> None:
    """Let torchvision's compiled operators load beside torch for CPUs.

    The index has builds for CUDA alone. Stand-ins answer for the libraries of CUDA that these ask
    for: nothing calls them without a GPU. torchvision is imported without its operators where no
    compiler makes the stand-ins; they get their names then, and a program that calls one an error.
    """
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        raise ValueError("torchvision is wanted, and no torch is installed")
    beside = sorted((Path(torch.origin).parent / "lib").glob("*.so*"))
    place = torchvision / "stand_ins"
    place.mkdir()
    try:
        made = write_stand_ins(
            [torchvision / "_C.so"], place, OF_CUDA, CUDA_FUNCTION_OF_ANY, beside
        )
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"torchvision without its operators: {error}", file=sys.stderr)
        made = []
    extension = torchvision / "extension.py"
    loads = "".join(
        f"ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'stand_ins', {one.name!r}))\n"
        for one in made
    )
    fakes = (torchvision / "_meta_registrations.py").read_text(encoding="utf-8")
    names = sorted(set(FAKES.findall(fakes)))
    extension.write_text(
        f"import ctypes\nimport os\n{loads}"
        + extension.read_text(encoding="utf-8")
        + "\nif not _has_ops():\n"
        '    _named = torch.library.Library("torchvision", "FRAGMENT")\n'
        f"    for _name in {names}:\n"
        '        _named.define(f"{_name}() -> Tensor")\n',
        encoding="utf-8",
    )
