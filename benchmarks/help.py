"""How much processor time `joymigrate --help` takes; the claim is 200 ms at most.

    python benchmarks/help.py

Compares with the interpreter alone and with `typer`'s import, in the same run. CPU time (user and
system) of child processes, the median of RUNS; wall time would measure the machine's other work.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys

RUNS = 15
LIMIT_MS = 200
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import typer'": [sys.executable, "-c", "import typer"],
    "joymigrate --version": [sys.executable, "-m", "joymigrate", "--version"],
    "joymigrate --help": [sys.executable, "-m", "joymigrate", "--help"],
}


def cpu_ms(command: list[str]) -> float:
    """User and system time of one run, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main() -> int:
    """Print a table and a JSON line; 1 when the limit is broken."""
    found = {}
    for name, command in COMMANDS.items():
        cpu_ms(command)  # fills the page cache and writes the bytecode
        found[name] = round(statistics.median(cpu_ms(command) for _ in range(RUNS)), 1)
        print(f"{name:<26} {found[name]:6.1f} ms CPU")
    passed = found["joymigrate --help"] <= LIMIT_MS
    print(json.dumps({"cpu_ms": found, "limit_ms": LIMIT_MS, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
