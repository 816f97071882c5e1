"""Unchanged CUDA programs on the rehearsed chip: the vendor's shim alone against joymigrate.

    python benchmarks/rehearse_migrate.py

Runs every program of `tests/samples/cuda` twice under `joymigrate rehearse --migrate`, and prints a
Markdown table: how far each got, and for a failure the program's own line and the error.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "tests" / "samples" / "cuda"
JOYMIGRATE = (sys.executable, "-m", "joymigrate")
SWITCHES = {"vendor": "vendor's shim alone", "rules": "joymigrate"}
PROCESSES = {"ddp_train.py": 2}
FRAME = re.compile(r'File "([^"]+)", line (\d+)')
ERROR = re.compile(r"^(?:\[\w+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception|Exit)): (.*)$")


def command(script: Path) -> list[str]:
    """How a user starts the script."""
    count = PROCESSES.get(script.name)
    if count:
        return ["torchrun", "--nproc-per-node", str(count), str(script)]
    return ["python", str(script)]


def run(script: Path, switch: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one rehearsal."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *JOYMIGRATE,
                "rehearse",
                "-q",
                "--migrate",
                "--switch",
                switch,
                "--",
                *command(script),
            ],
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment,
            timeout=600,
            check=False,
        )
    return done.returncode, done.stdout, done.stderr


def verdict(script: Path, code: int, out: str, err: str) -> str:
    """`done`, or the program's line that failed and with what."""
    if code == 0 and "done" in out:
        return "done"
    line, error = failure(script, err)
    where = f"line {line} `{source(script, line)}`: " if line else ""
    return f"{where}{error or f'exit code {code}'}"


def failure(script: Path, err: str) -> tuple[int, str]:
    """The script's innermost line in the first traceback, and the error it ended with."""
    line = 0
    for text in err.splitlines():
        frame = FRAME.search(text)
        if frame and Path(frame.group(1)).name == script.name:
            line = int(frame.group(2))
        error = ERROR.match(text)
        if error:
            return line, f"{error.group(1)}: {error.group(2)}"[:140]
    said = [text for text in err.splitlines() if text and not text.startswith("[W")]
    return line, said[-1][:140] if said else ""


def source(script: Path, line: int) -> str:
    """One line of the script."""
    return script.read_text(encoding="utf-8").splitlines()[line - 1].strip()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", type=Path, default=sorted(SAMPLES.glob("*.py")))
    scripts = parser.parse_args().scripts
    print(f"| program | {' | '.join(SWITCHES.values())} |")
    print("|---" * (len(SWITCHES) + 1) + "|")
    for script in scripts:
        cells = [verdict(script, *run(script, switch)) for switch in SWITCHES]
        print(f"| `{script.name}` | {' | '.join(cell.replace('|', '¦') for cell in cells)} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
