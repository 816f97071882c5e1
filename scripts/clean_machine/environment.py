"""An environment that has joymigrate, one extra and nothing else; runs commands in it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.clean_machine.build import command

# What a stranger's shell has. Everything of ours and of Python's own variables stays outside.
PASSED = ("TERM", "SSL_CERT_FILE", "TMPDIR")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment, and the home folder and working folder of its user."""

    folder: Path
    home: Path

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    @property
    def python(self) -> Path:
        return self.programs / "python"

    def variables(self) -> dict[str, str]:
        """The variables of a user who has just logged in and activated the environment."""
        kept = {name: os.environ[name] for name in PASSED if name in os.environ}
        return {
            **kept,
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PATH": f"{self.programs}{os.pathsep}{SYSTEM_PATH}",
        }

    def start(
        self, words: list[str], cwd: Path, more: Mapping[str, str] | None = None, **streams: int
    ) -> subprocess.Popen[str]:
        """Start a program of the environment, or of the system, with `more` variables."""
        beside = self.programs / words[0]
        first = str(beside) if beside.exists() else words[0]
        return subprocess.Popen(
            [first, *words[1:]],
            cwd=cwd,
            env={**self.variables(), **(more or {})},
            text=True,
            **streams,
        )

    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(
            os.lstat(os.path.join(folder, name)).st_blocks * 512
            for folder, _, names in os.walk(self.folder)
            for name in names
        )


def made(
    folder: Path, home: Path, wheel: Path, extra: str | None, constraints: Path
) -> tuple[Environment, float]:
    """An empty environment with the wheel and one extra, and the seconds that it took."""
    begin = time.monotonic()
    command([sys.executable, "-m", "venv", str(folder)])
    home.mkdir(parents=True, exist_ok=True)
    environment = Environment(folder, home)
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    command([str(environment.python), "-m", "pip", "install", "--quiet",
             "--disable-pip-version-check", "-c", str(constraints), what])  # fmt: skip
    return environment, time.monotonic() - begin
