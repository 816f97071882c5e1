"""CPU → NUMA node, from `lscpu -e=CPU,NODE` (or any `lscpu -e`) or from sysfs."""

from __future__ import annotations

from pathlib import Path

from joymigrate.errors import JoyError

SYSFS = Path("/sys/devices/system/node")


def read(text: str, where: str = "lscpu") -> dict[int, int]:
    """The NUMA node of each CPU; a table without the columns CPU and NODE raises `JoyError`."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if not lines or "CPU" not in lines[0] or "NODE" not in lines[0]:
        raise JoyError(
            "no table with the columns CPU and NODE", where=where, help="record `lscpu -e=CPU,NODE`"
        )
    cpu, node = lines[0].index("CPU"), lines[0].index("NODE")
    found = {}
    for row in lines[1:]:
        if len(row) > max(cpu, node) and row[cpu].isdigit() and row[node].isdigit():
            found[int(row[cpu])] = int(row[node])
    return found


def from_sysfs(root: Path = SYSFS) -> dict[int, int]:
    """The same from `node*/cpulist`; empty where the system has none."""
    found = {}
    for folder in sorted(root.glob("node[0-9]*")):
        try:
            text = (folder / "cpulist").read_text(encoding="ascii")
        except OSError:
            continue
        for cpu in expand(text):
            found[cpu] = int(folder.name[4:])
    return found


def expand(text: str) -> list[int]:
    """`0-2,5` as [0, 1, 2, 5]."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found
