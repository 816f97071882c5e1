"""`bundle --offline`: all that a machine without network needs, in one folder.

Wheels of joymigrate and of what it asks for, its documentation, the built simulated chip, and
`install.py`, which checks every file and installs without an index. The rules lie in our wheel.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joymigrate import __version__
from joymigrate.errors import JoyError

SCHEMA = "joymigrate.offline-bundle/1"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
INSTALLER = Path(__file__).with_name("install.py")
README = """\
python install.py             # into this Python; reads nothing from a network
python install.py --check     # only compares every file with its hash

Wheels fit the Python and machine that bundle.json names. docs/index.md is the documentation.
"""


def write(folder: Path, extras: Sequence[str], *, shim: bool = True) -> dict[str, Any]:
    """Write the bundle to `folder`, whole or not at all, and return its `bundle.json`.

    `extras` are those of joymigrate. JoyError where the folder is there or pip does not bring all.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise JoyError("the folder is not empty", where=str(folder), help="name a new one with -o")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".bundle-") as temporary:
        part = Path(temporary) / "bundle"
        wheels = part / "wheels"
        wheels.mkdir(parents=True)
        collect_wheels(wheels, extras)
        left_out = copy_docs(part / "docs")
        left_out += copy_shim(part / "shim") if shim else ["the simulated chip: not asked for"]
        (part / "install.py").write_bytes(INSTALLER.read_bytes())
        (part / "README.txt").write_text(README, encoding="utf-8")
        files = {
            path.relative_to(part).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(part.rglob("*")) if path.is_file()
        }  # fmt: skip
        document = {
            "schema": SCHEMA, "joymigrate": __version__, "extras": list(extras),
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "machine": platform.machine(), "files": files, "left_out": left_out,
        }  # fmt: skip
        text = json.dumps(document, indent=1) + "\n"
        (part / "bundle.json").write_text(text, encoding="utf-8")
        if folder.exists():
            folder.rmdir()
        part.rename(folder)
    return document


def collect_wheels(folder: Path, extras: Sequence[str]) -> None:
    """Our wheel and those of its requirements."""
    checkout = Path(__file__).parents[3]
    ours = f"joymigrate=={__version__}"
    if (checkout / "pyproject.toml").is_file():
        ours = str(checkout)
    run_pip("wheel", "--no-deps", "--wheel-dir", str(folder), ours)
    (wheel,) = folder.glob("joymigrate-*.whl")
    named = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    run_pip("download", "--only-binary", ":all:", "--dest", str(folder), named)


def run_pip(*words: str) -> None:
    """Run pip; JoyError with its first error."""
    done = subprocess.run([*PIP, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        said = errors[0].removeprefix("ERROR: ") if errors else f"exit code {done.returncode}"
        raise JoyError(
            f"pip could not {words[0]}: {said[:300]}",
            help="run it where the package index answers; python -m ensurepip brings pip",
        )


def copy_docs(folder: Path) -> list[str]:
    """The documentation of a checkout, with its generated parts."""
    checkout = Path(__file__).parents[3]
    if not (checkout / "docs" / "index.md").is_file():
        return ["the documentation: it lies in a checkout only"]
    command = [sys.executable, "-m", "scripts.pages", str(folder.absolute())]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode:
        *_, reason = ["no reason given", *done.stderr.strip().splitlines()]
        return [f"the documentation: {reason}"]
    return []


def copy_shim(folder: Path) -> list[str]:
    """The simulated chip that was built for the package that rehearsals here run."""
    from joymigrate.run.rehearse import build

    try:
        built = build.build(build.find_package())
    except JoyError as error:
        return [f"the simulated chip: {error.what}"]
    shutil.copytree(built, folder / built.name)
    return []
