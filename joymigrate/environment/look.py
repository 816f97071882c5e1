"""Looks at a machine with Python's own library alone: the chip-day kit takes this file along.

What is looked at, and the patterns that read it, come from the chip's `doctor.yaml`.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joymigrate.environment.rules import RecordPlaces

TOOL_S = 30
VERSION = re.compile(
    r"^\s*(?:version|Version|package_version)\s*=\s*[\"\[]*([\w.\-]+)", re.MULTILINE
)


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


def sdk(places: RecordPlaces) -> dict[str, Any]:
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


def driver(places: RecordPlaces) -> dict[str, Any]:
    """The versions of driver and firmware, and whether the driver's libraries are there."""
    versions = [read_version(path) for path in places.driver_versions]
    firmware = [read_version(path) for path in places.firmware_versions]
    return {
        "version": next(filter(None, versions), None),
        "firmware": next(filter(None, firmware), None),
        "libraries": all(os.path.exists(path) for path in places.driver_libraries),
    }


def devices(places: RecordPlaces) -> dict[str, Any]:
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


def smi(places: RecordPlaces) -> dict[str, Any] | None:
    """The tool's answer: version, cards with name and health. None without cards and tool."""
    code, text = ask(places.smi)
    if code == 127 and not glob.glob(places.cards):
        return None
    return {
        "exit_code": code,
        "output": "" if code == 0 else text[-2000:],
        **read_smi(text, places),
    }


def read_smi(text: str, places: RecordPlaces) -> dict[str, Any]:
    """Version and cards of the tool's table, by the chip's patterns."""
    version = re.search(places.smi_version, text) if places.smi_version else None
    cards = re.finditer(places.smi_card, text, re.MULTILINE) if places.smi_card else ()
    found = [
        {"id": int(card["id"]), "name": card["name"], "health": card["health"]} for card in cards
    ]
    return {"version": version[1] if version else None, "cards": found}


def network(places: RecordPlaces) -> dict[str, Any] | None:
    """The address and the link of each card; None where the tool is not there."""
    if not places.network or shutil.which(places.network[0]) is None:
        return None
    found = {}
    for path in sorted(glob.glob(places.cards)):
        number = re.sub(r"\D", "", os.path.basename(path))
        code, text = ask([part.format(card=number) for part in places.network])
        address = re.search(places.network_address, text)
        found[number] = {"address": address[1] if address and code == 0 else None}
        if places.link:
            code, text = ask([part.format(card=number) for part in places.link])
            state = re.search(places.link_state, text)
            found[number]["link"] = state[1].upper() if state and code == 0 else None
    return found


def memory() -> dict[str, Any]:
    """Bytes of shared memory, all and free, and the number of huge pages."""
    found: dict[str, Any] = {"shm_bytes": None, "huge_pages": None}
    if os.path.isdir("/dev/shm"):
        usage = shutil.disk_usage("/dev/shm")
        found |= {"shm_bytes": usage.total, "shm_free_bytes": usage.free}
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return found
    pages = re.search(r"HugePages_Total:\s*(\d+)", text)
    found["huge_pages"] = int(pages[1]) if pages else None
    return found
