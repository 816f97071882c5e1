"""Utilisation and memory of accelerators and of the host.

How a platform's tool is called and read is data: `monitor.yaml` in the chip's folder.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.monitor.snapshot import Snapshot

FILE = "monitor.yaml"
GROUPS = ("index", "util", "used", "total")
HELP = "see docs/monitor.md"
TOOL_SECONDS = 5.0
HOST_SECONDS = 0.1  # the processors are watched for so long
Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class Probe:
    """How to read the devices of one platform."""

    chip: str
    command: tuple[str, ...]
    row: re.Pattern[str]
    exporter: dict[str, Any]


@functools.cache
def probes() -> tuple[Probe, ...]:
    """One per chip that has a `monitor.yaml`."""
    from joymigrate.chips import all_chips

    found = []
    for chip in all_chips().values():
        path = chip.folder / FILE
        if path.is_file():
            found.append(read_probe(path, chip.name))
    return tuple(found)


def read_probe(path: Path, chip: str) -> Probe:
    """One `monitor.yaml`, checked."""
    from joymigrate.chips import read_yaml

    data = read_yaml(path)
    command = data.get("command") if isinstance(data, dict) else None
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise JoyError("needs `command`, a list of words", where=str(path), help=HELP)
    try:
        row = re.compile(data.get("row") or "")
    except (re.error, TypeError) as error:
        raise JoyError(f"`row` is no pattern: {error}", where=f"{path} row", help=HELP) from None
    lacking = [group for group in GROUPS if group not in row.groupindex]
    if lacking:
        named = ", ".join(f"(?P<{group}>…)" for group in lacking)
        raise JoyError(f"`row` has no {named}", where=f"{path} row", help=HELP)
    exporter = data.get("exporter") or {}
    if not isinstance(exporter, dict) or (exporter and not {"util", "labels"} <= {*exporter}):
        raise JoyError("needs `labels` and `util`", where=f"{path} exporter", help=HELP)
    return Probe(chip, tuple(command), row, exporter)


def parse(probe: Probe, text: str) -> dict[str, float]:
    """Readings from a tool's output."""
    found: dict[str, float] = {}
    for match in probe.row.finditer(text):
        given = match.groupdict()
        who = f"{probe.chip} {given['index']}"
        if given.get("chip") not in (None, "0"):
            who += f".{given['chip']}"
        if given["util"].isdigit():
            found[f"device_util|{who}"] = float(given["util"])
        if float(given["total"]) > 0:
            found[f"device_memory|{who}"] = float(given["used"]) / float(given["total"]) * 100
    return found


def run_tool(command: Sequence[str]) -> str:
    """A tool's output, or nothing where it is absent, slow or unhappy."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def local(run: Run = run_tool) -> dict[str, float]:
    """The devices of this machine, and the machine itself."""
    import psutil

    found = {
        "host_cpu": float(psutil.cpu_percent(interval=HOST_SECONDS)),
        "host_memory": float(psutil.virtual_memory().percent),
    }
    for probe in probes():
        found |= parse(probe, run(probe.command))
    return found


def of_exporter(snapshot: Snapshot) -> dict[str, float]:
    """Devices in the metrics of an exporter that some platform's `monitor.yaml` names."""
    found: dict[str, float] = {}
    for probe in probes():
        names = probe.exporter
        if not names:
            continue

        def by_device(what: str, names: dict[str, Any] = names) -> dict[str, float]:
            rows = snapshot.of(names[what]) if what in names else ()
            keys = names["labels"]
            return {next((str(row[k]) for k in keys if k in row), "0"): v for row, v in rows}

        util, used = by_device("util"), by_device("used")
        total, free = by_device("total"), by_device("free")
        for device, value in util.items():
            found[f"device_util|{probe.chip} {device}"] = value
        for device, value in used.items():
            size = total.get(device) or value + free.get(device, 0.0)
            if size > 0 and (device in total or device in free):
                found[f"device_memory|{probe.chip} {device}"] = value / size * 100
    return found
