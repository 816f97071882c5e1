"""What is installed on this machine: the core, the chip's package, programs, extras."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from joymigrate.chips import Chip

PROBE_S = 120  # loading a vendor's package on a cold disk takes a while

# Programs that are not Python packages: names to look for, what for, how to get one.
PROGRAMS = {
    "cc": (
        ("cc", "gcc", "clang"),
        "builds the simulated chip",
        "apt-get install gcc libc6-dev",
    ),
    "git": (("git",), "finds uncommitted changes and new lines", "apt-get install git"),
    "chromium": (
        ("chromium", "chromium-browser", "google-chrome"),
        "tests HTML reports in a browser",
        "apt-get install chromium",
    ),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked for. `status`: ok, missing, broken (there, but does not work)."""

    kind: str  # core, chip, program, extra
    name: str
    status: str
    version: str | None = None
    detail: str = ""
    help: str = ""


def checks(chip: Chip, *, probe_chip: bool = True) -> list[Check]:
    """Everything that doctor looks for. Looking for the chip starts a process."""
    return [*core(), *(chip_checks(chip) if probe_chip else ()), *programs(), *extras()]


def requirements(extra: str | None) -> list[Requirement]:
    """What joymigrate's own metadata asks for: the core, or one extra."""
    found = []
    for line in metadata.requires("joymigrate") or []:
        requirement = Requirement(line)
        marker = requirement.marker
        in_core = marker is None or marker.evaluate({"extra": ""})
        wanted = in_core
        if extra is not None:
            wanted = not in_core and marker is not None and marker.evaluate({"extra": extra})
        if wanted:
            found.append(requirement)
    return found


def missing(extra: str | None) -> list[str]:
    """Requirements that are absent or of another version."""
    return [str(r).split(";")[0].strip() for r in requirements(extra) if not is_satisfied(r)]


def is_satisfied(requirement: Requirement) -> bool:
    """Whether a distribution is installed in the right version."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)


def has(distribution: str) -> bool:
    """Whether a distribution is installed, in whatever version."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def core() -> list[Check]:
    """The packages that joymigrate always needs."""
    found = []
    for requirement in requirements(None):
        name = requirement.name
        if is_satisfied(requirement):
            found.append(Check("core", name, "ok", metadata.version(name)))
            continue
        remedy = f"pip install '{str(requirement).split(';')[0].strip()}'"
        found.append(Check("core", name, "missing", help=remedy))
    return found


def chip_checks(chip: Chip) -> list[Check]:
    """The chip's package, whether it loads, its cards, and its management tool."""
    name = chip.distribution or chip.name
    found = []
    try:
        version: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = None
    if version is None:
        found.append(Check("chip", name, "missing", help=how_to_get(name, chip)))
    else:
        reason, cards, card = probe(chip)
        if reason:
            help = "needs the chip's driver and toolkit"
            help += "; without a chip: joymigrate rehearse" if can_rehearse(chip) else ""
            found.append(Check("chip", name, "broken", version, reason, help))
        else:
            found.append(Check("chip", name, "ok", version, f"{cards} x {card}"))
        found += toolkit(chip, version, loads=reason is None)
    tool = smi(chip)
    if tool:
        path = shutil.which(tool)
        status = "ok" if path else "missing"
        help = "" if path else f"comes with the driver of the {chip.title}"
        found.append(Check("chip", tool, status, detail=path or "", help=help))
    return found


def can_rehearse(chip: Chip) -> bool:
    """Whether the chip can be simulated."""
    from joymigrate.errors import JoyError
    from joymigrate.run.rehearse.options import rehearsable

    try:
        return rehearsable(chip.name) is not None
    except JoyError:
        return False


def can_find_package() -> bool:
    """Whether rehearsals find the vendor's package: in this environment, or kept for them."""
    from joymigrate.run.rehearse import releases

    return releases.available()


def rehearsal_error(chip: Chip) -> str | None:
    """Why a rehearsal does not start here: the last line of a real one, None when it starts.

    What is installed says little: a release that was never rehearsed fails only when it loads.
    """
    program = f"import torch; torch.ones(2).to('{chip.device}').add(1).cpu()"
    command = [sys.executable, "-m", "joymigrate", "rehearse", "--to", chip.name, "--"]
    try:
        done = subprocess.run(
            [*command, sys.executable, "-c", program],
            capture_output=True, text=True, timeout=PROBE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"a rehearsal of one line took longer than {PROBE_S} s"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error:") or "Error" in line]
    return (told or lines or [f"the rehearsal ended with {done.returncode}"])[-1]


def how_to_get(distribution: str, chip: Chip) -> str:
    """Our extra where one brings the package, else its vendor: few of them are in an index."""
    from joymigrate.extras import extras_of, install

    return install(*extras_of(distribution)) or f"comes from the vendor of the {chip.title}"


def toolkit(chip: Chip, version: str, *, loads: bool) -> list[Check]:
    """The vendor's toolkit that goes with a version of the chip's package, as far as known.

    The package loads only with it, so it counts as there when the package loads.
    """
    known = [item for item in chip.versions if item.get("sdk")]
    exact = [item for item in known if str(item.get("package")) == version.split("+")[0]]
    item = next(iter(exact or known), None)
    if item is None:
        return []
    name = str(item["sdk"]).split()[0]
    package = item.get("package") or item.get("torch") or ""
    goes_with = f"{item['sdk']} goes with {chip.distribution} {package}".rstrip()
    if loads:
        return [Check("chip", name, "ok", detail=goes_with)]
    return [
        Check(
            "chip",
            name,
            "missing",
            detail=goes_with,
            help=f"comes from the vendor of the {chip.title}",
        )
    ]


def smi(chip: Chip) -> str | None:
    """The program that lists the chip's cards: what takes the place of the origin's."""
    from joymigrate.chips import origin

    for name in origin().tools:
        entry = chip.tools.get(name)
        if isinstance(entry, dict) and entry.get("to"):
            return str(entry["to"]).split()[0]
        return None
    return None


def probe(chip: Chip) -> tuple[str | None, int, str]:
    """Open the chip's device in a process of its own: reason why not, cards, name of the first.

    A vendor's package may end the process that imports it.
    """
    program = (
        "import json, sys\n"
        "from joymigrate import chips, device\n"
        f"chip = chips.get({chip.name!r})\n"
        "reason = device.why_not(chip)\n"
        "opened = None if reason else device.open_device(chip, required=True)\n"
        "found = [reason, opened.count() if opened else 0, opened.name(0) if opened else '']\n"
        "print('\\n' + json.dumps(found))\n"
    )
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env=environment,
            timeout=PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"loading it took longer than {PROBE_S} s", 0, ""
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        error = done.stderr.strip().splitlines()
        return (error[-1] if error else f"the process ended with {done.returncode}"), 0, ""
    reason, cards, name = json.loads(lines[-1])
    return reason, int(cards), str(name)


def programs() -> list[Check]:
    """The programs that are not Python packages."""
    found = []
    for name, (names, purpose, remedy) in PROGRAMS.items():
        path = next(filter(None, map(shutil.which, names)), None)
        status = "ok" if path else "missing"
        help = "" if path else remedy
        found.append(Check("program", name, status, detail=path or purpose, help=help))
    return found


def extras() -> list[Check]:
    """Every extra that joymigrate declares."""
    found = []
    for extra in metadata.metadata("joymigrate").get_all("Provides-Extra") or []:
        absent = missing(extra)
        status = "missing" if absent else "ok"
        detail = "missing: " + ", ".join(absent) if absent else "complete"
        help = f"pip install 'joymigrate[{extra}]'" if absent else ""
        found.append(Check("extra", extra, status, detail=detail, help=help))
    return found
