"""Records what a machine has for a chip: files, versions, devices, a tool's answer, a trial.

Nothing is changed and nothing of the user's is read: names and versions of packages, the variables
that the chip's `doctor.yaml` lists, device files, and the vendor's own tools.
"""

from __future__ import annotations

import datetime
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from joymigrate.chips import Chip
from joymigrate.environment.rules import Places, rules_of
from joymigrate.errors import JoyError

SCHEMA = "joymigrate.environment/1"
TRIAL_S = 180  # loading a vendor's package from a cold disk
TOOL_S = 30
VERSION = re.compile(
    r"^\s*(?:version|Version|package_version)\s*=\s*[\"\[]*([\w.\-]+)", re.MULTILINE
)
CARD = re.compile(r"^\|\s*(\d+)\s+([\w.\-]+)\s*\|\s*(\w+)\s*\|", re.MULTILINE)
SMI_VERSION = re.compile(r"Version:\s*([\w.\-]+)")


def record(chip: Chip, *, trial: bool = True) -> dict[str, Any]:
    """The document `environment/1` of this machine. JoyError where the chip has no doctor.yaml.

    `trial`: also import torch and the chip's package in a process of its own.
    """
    rules = rules_of(chip)
    if rules is None:
        raise JoyError(f"nothing is known about setting up {chip.title}", where=str(chip.folder))
    places = rules.record
    return {
        "schema": SCHEMA,
        "recorded": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "chip": chip.name,
        "machine": machine(),
        "packages": {name: version_of(name) for name in places.distributions},
        "variables": {name: os.environ[name] for name in places.variables if name in os.environ},
        "sdk": sdk(places),
        "driver": driver(places),
        "devices": devices(places),
        "smi": smi(places),
        "network": network(places),
        "memory": memory(),
        "errors": trial_errors(chip) if trial else [],
    }


def machine() -> dict[str, Any]:
    """The system, this Python, this user; whether it is a container."""
    uid = os.getuid() if hasattr(os, "getuid") else None
    gids = sorted({os.getgid(), *os.getgroups()}) if hasattr(os, "getgid") else []
    return {
        "system": platform.system(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "container": any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))),
        "uid": uid,
        "gids": gids,
    }


def version_of(name: str) -> str | None:
    """The version of a distribution, None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def sdk(places: Places) -> dict[str, Any]:
    """Where the SDK is, its version, whether its script was sourced, its kernels and additions."""
    sourced = next((os.environ[n] for n in places.sdk.variables if os.environ.get(n)), None)
    homes = [sourced] if sourced else [os.path.expanduser(one) for one in places.sdk.homes]
    home = next((one for one in homes if one and os.path.isdir(one)), None)
    addons = {
        name: next((version_in(found) or "?" for found in map(os.path.expanduser, folders)
                    if os.path.isdir(found)), None)
        for name, folders in places.sdk.addons.items()
    }  # fmt: skip
    if home is None:
        return {"found": False, "sourced": bool(sourced), "home": sourced, "addons": addons}
    files = [path for pattern in places.sdk.versions for path in glob.glob(f"{home}/{pattern}")]
    kernels = [path for one in places.sdk.kernels for path in glob.glob(f"{home}/{one}")]
    return {
        "found": True,
        "sourced": bool(sourced),
        "home": home,
        "version": next(filter(None, map(read_version, files)), None),
        "kernels": sorted(os.path.basename(path) for path in kernels),
        "addons": addons,
    }


def version_in(folder: str) -> str | None:
    """The version that a folder's version.info names."""
    return read_version(f"{folder}/version.info")


def read_version(path: str) -> str | None:
    """The version that a file of `key=value` lines names; None where it names none."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = VERSION.search(text)
    return found[1] if found else None


def driver(places: Places) -> dict[str, Any]:
    """The driver's version and whether its libraries are there."""
    versions = [read_version(path) for path in places.driver_versions]
    return {
        "version": next(filter(None, versions), None),
        "libraries": all(os.path.exists(path) for path in places.driver_libraries),
    }


def devices(places: Places) -> dict[str, Any]:
    """Device files with owner, mode, and whether this process may read and write them."""
    found = {}
    for path in [*sorted(glob.glob(places.cards)), *places.shared]:
        try:
            facts = os.stat(path)
        except OSError:
            continue
        found[path] = {
            "mode": f"{facts.st_mode & 0o777:04o}",
            "uid": facts.st_uid,
            "gid": facts.st_gid,
            "access": os.access(path, os.R_OK | os.W_OK),
        }
    return found


def ask(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of a tool; 127 where it is not there or does not answer in time."""
    if not command or shutil.which(command[0]) is None:
        return 127, f"{command[0] if command else 'tool'}: not found"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TOOL_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return 127, f"{command[0]}: no answer in {TOOL_S} s"
    return done.returncode, done.stdout + done.stderr


def smi(places: Places) -> dict[str, Any] | None:
    """The tool's answer: version, cards with name and health. None without cards and tool."""
    code, text = ask(places.smi)
    if code == 127 and not glob.glob(places.cards):
        return None
    return {"exit_code": code, "output": "" if code == 0 else text[-2000:], **read_smi(text)}


def read_smi(text: str) -> dict[str, Any]:
    """Version and cards of an `npu-smi info` table. A card's second line has no health."""
    version = SMI_VERSION.search(text)
    cards = [
        {"id": int(number), "name": name, "health": health}
        for number, name, health in CARD.findall(text)
        if not re.fullmatch(r"\d+", name) and ":" not in name
    ]
    return {"version": version[1] if version else None, "cards": cards}


def network(places: Places) -> dict[str, Any] | None:
    """The address of each card; None where the tool is not there."""
    if not places.network or shutil.which(places.network[0]) is None:
        return None
    found = {}
    for path in sorted(glob.glob(places.cards)):
        number = re.sub(r"\D", "", os.path.basename(path))
        code, text = ask([part.format(card=number) for part in places.network])
        address = re.search(r"ipaddr:\s*([\d.]+)", text)
        found[number] = {"address": address[1] if address and code == 0 else None}
    return found


def memory() -> dict[str, Any]:
    """Bytes of shared memory and the number of huge pages."""
    found: dict[str, Any] = {"shm_bytes": None, "huge_pages": None}
    if os.path.isdir("/dev/shm"):
        found["shm_bytes"] = shutil.disk_usage("/dev/shm").total
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return found
    pages = re.search(r"HugePages_Total:\s*(\d+)", text)
    found["huge_pages"] = int(pages[1]) if pages else None
    return found


def trial_errors(chip: Chip) -> list[str]:
    """The error of importing torch and the chip's package and opening a card; empty when it works.

    In the user's own environment: the package loads itself as it would in their program.
    """
    if chip.package is None or version_of(chip.distribution or "") is None:
        return []
    program = (
        f"import torch, {chip.package}\n"
        f"torch.zeros(1).to('{chip.device}').add(1).cpu()\n"
    )  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=TRIAL_S,
            check=False, errors="replace", cwd=os.path.expanduser("~"),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [f"importing {chip.package} took longer than {TRIAL_S} s"]
    if done.returncode == 0:
        return []
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    told = [
        line for line in lines if not line.startswith((" ", "Traceback", "During", "The above"))
    ]
    return ["\n".join(told[-12:]) or f"the process ended with {done.returncode}"]
