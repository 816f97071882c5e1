"""Running programs in a rehearsal, as a user would: through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Outcome:
    """What a rehearsed program gave back."""

    code: int
    out: str
    err: str
    report: dict[str, Any] | None


Run = Callable[..., Outcome]


@pytest.fixture
def rehearse(tmp_path: Path) -> Run:
    """`rehearse("python", "x.py", options=["--devices", "2"])` runs it in a folder of its own.

    The caller's environment has backend loading switched off, as every user of torch-npu without
    the chip's software has.
    """

    def run(*command: str, options: tuple[str, ...] = (), report: bool = True) -> Outcome:
        path = tmp_path / "report.json"
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
        for name in ("JOYMIGRATE_REHEARSE", "JOYMIGRATE_CALLER_AUTOLOAD", "PYTEST_ADDOPTS"):
            environment.pop(name, None)
        asked = ["-o", str(path)] if report else []
        done = subprocess.run(
            [sys.executable, "-m", "joymigrate", "rehearse", *asked, *options, "--", *command],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=300,
        )
        made = json.loads(path.read_text()) if path.is_file() else None
        return Outcome(done.returncode, done.stdout, done.stderr, made)

    return run
