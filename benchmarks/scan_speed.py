"""Scan and rewrite of a whole project, beside parsing alone with ast and with libcst.

    python -m benchmarks.scan_speed PROJECT [--skip-libcst]

Each row is one process: wall and CPU seconds (its children included) and peak memory of the
biggest process. The ratio is CPU time against `ast.parse` of the same Python files. `rewrite`
writes to a temporary folder. Two processes side by side may take more processor time for the
same work than one does: `-j 1` stands beside `ast.parse`, which is one process. Used on
NVIDIA/Megatron-LM d98e8a64dd and ultralytics/yolov5 5081342f0.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARSE = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
{imports}
for path in Path(sys.argv[1]).rglob("*.py"):
    try:
        {parse}
    except Exception:
        pass
"""
AST = PARSE.format(imports="import ast", parse="ast.parse(path.read_bytes())")
LIBCST = PARSE.format(imports="import libcst", parse="libcst.parse_module(path.read_bytes())")


def measure(command: list[str]) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak MiB of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr.decode())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, after.ru_maxrss / 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("project", type=Path)
    parser.add_argument("--skip-libcst", action="store_true")
    options = parser.parse_args()
    joy = [sys.executable, "-m", "joymigrate"]
    project = str(options.project)
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            "ast.parse alone": [sys.executable, "-c", AST, project],
            "libcst.parse_module alone": [sys.executable, "-c", LIBCST, project],
            "joymigrate scan": [
                *joy,
                "scan",
                project,
                "--format",
                "json",
                "-o",
                f"{folder}/s.json",
            ],
            "joymigrate scan -j 1": [
                *joy,
                "scan",
                project,
                "-j1",
                "--format",
                "json",
                "-o",
                f"{folder}/1.json",
            ],
            "joymigrate rewrite -o DIR": [*joy, "rewrite", project, "-o", f"{folder}/out"],
        }
        if options.skip_libcst:
            del rows["libcst.parse_module alone"]
        python = list(options.project.rglob("*.py"))
        lines = sum(path.read_bytes().count(b"\n") for path in python if path.is_file())
        print(f"{options.project.name}: {len(python)} Python files, {lines} lines")
        print(f"{'':28}{'wall s':>8}{'cpu s':>8}{'peak MiB':>10}{'cpu/ast':>9}")
        base = 0.0
        for name, command in rows.items():
            wall, cpu, peak = measure(command)
            base = base or cpu
            print(f"{name:28}{wall:8.1f}{cpu:8.1f}{peak:10.0f}{cpu / base:9.1f}")


if __name__ == "__main__":
    main()
