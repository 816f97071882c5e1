"""Utilisation and memory of accelerators and of the host.

How a platform's tool is called and read is data: `monitor.yaml` in the chip's folder.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.serve.monitor.snapshot import Snapshot
from joymigrate.schema import document, read_file, setting

FILE = "monitor.yaml"
GROUPS = ("index", "util", "used", "total")
HELP = "see docs/how-to/monitor.md"
TOOL_SECONDS = 5.0
HOST_SECONDS = 0.1  # the processors are watched for so long
Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class ExporterNames:
    """What the platform's Prometheus exporter calls its metrics and labels."""

    labels: tuple[str, ...] = setting(help="Labels that tell the device, best first.")
    util: str = setting(help="The metric of use in percent.")
    used: str = setting("", "The metric of memory in use.")
    total: str = setting("", "The metric of all memory.")
    free: str = setting("", "The metric of free memory.")


@functools.cache
def probes() -> tuple[DeviceProbe, ...]:
    """One per chip that has a `monitor.yaml`."""
    from joymigrate.chips import all_chips

    found = []
    for chip in all_chips().values():
        path = chip.folder / FILE
        if path.is_file():
            found.append(read_probe(path, chip.name))
    return tuple(found)


@document("chip-monitor", "How devices are read: `monitor.yaml` in the chip's folder.")
@dataclass(frozen=True, slots=True)
class ProbeFile:
    """A chip's monitor.yaml."""

    command: tuple[str, ...] = setting(help="The tool that prints the devices.")
    row: str = setting(
        help="A pattern with the groups index, util (percent), used and total (one unit)."
    )
    exporter: ExporterNames | None = setting(None, "Its exporter's names.")
    source: str = setting("", "Where the tool's output was seen.")

    def __post_init__(self) -> None:
        try:
            row = re.compile(self.row)
        except re.error as error:
            raise JoyError(f"`row` is no pattern: {error}", where="row") from None
        lacking = [group for group in GROUPS if group not in row.groupindex]
        if lacking:
            named = ", ".join(f"(?P<{group}>…)" for group in lacking)
            raise JoyError(f"`row` has no {named}", where="row")


@dataclass(frozen=True, slots=True)
class DeviceProbe(ProbeFile):
    """How to read the devices of one platform."""

    chip: str = ""


def read_probe(path: Path, chip: str) -> DeviceProbe:
    """One `monitor.yaml`, checked."""
    file = read_file(ProbeFile, path, help=HELP)
    said = {one.name: getattr(file, one.name) for one in fields(ProbeFile)}
    return DeviceProbe(**said, chip=chip)


def parse(probe: DeviceProbe, text: str) -> dict[str, float]:
    """Readings from a tool's output."""
    found: dict[str, float] = {}
    for match in re.finditer(probe.row, text):
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
        if names is None:
            continue

        def by_device(metric: str, keys: tuple[str, ...] = names.labels) -> dict[str, float]:
            rows = snapshot.of(metric) if metric else ()
            return {next((str(row[k]) for k in keys if k in row), "0"): v for row, v in rows}

        util, used = by_device(names.util), by_device(names.used)
        total, free = by_device(names.total), by_device(names.free)
        for device, value in util.items():
            found[f"device_util|{probe.chip} {device}"] = value
        for device, value in used.items():
            size = total.get(device) or value + free.get(device, 0.0)
            if size > 0 and (device in total or device in free):
                found[f"device_memory|{probe.chip} {device}"] = value / size * 100
    return found
