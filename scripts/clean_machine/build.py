"""Builds the sdist, the wheel, and the wheel of the sdist, and compares the two wheels."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path


class Broken(Exception):
    """A step that cannot be gone on from; says what happened."""


def built(repository: Path, folder: Path) -> Path:
    """The wheel that was made from the sdist, in `folder`. Uses PEP 517 in isolation."""
    tools = folder / "builder"
    command([sys.executable, "-m", "venv", str(tools)])
    python = tools / "bin" / "python"
    repository = copied(repository, folder / "source")
    command([str(python), "-m", "pip", "install", "--quiet", "build"])
    sdist_way, direct_way = folder / "from-sdist", folder / "direct"
    command([str(python), "-m", "build", "--outdir", str(sdist_way), str(repository)])
    direct = ["-m", "build", "--wheel", "--outdir", str(direct_way), str(repository)]
    command([str(python), *direct])
    (wheel,) = sdist_way.glob("*.whl")
    (other,) = direct_way.glob("*.whl")
    if differing := sorted(content(wheel) ^ content(other)):
        raise Broken(f"the sdist's wheel is another one: {differing[:5]}")
    return wheel


def copied(repository: Path, folder: Path) -> Path:
    """The files that git knows or would add, as they are now; somebody may be writing them."""
    words = ["git", "-C", str(repository), "ls-files", "-z", "-co", "--exclude-standard"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return repository  # an unpacked sdist
    for name in filter(None, done.stdout.split("\0")):
        if (repository / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, folder / name)
    return folder


def content(wheel: Path) -> set[tuple[str, int]]:
    """Name and checksum of every file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {(item.filename, item.CRC) for item in archive.infolist()}


def command(words: list[str]) -> str:
    """Run a command to its end and return its output; `Broken` with the last lines otherwise."""
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-12:])
        raise Broken(f"{' '.join(words)} ended with {done.returncode}\n{last}")
    return done.stdout
