"""Do the recorded versions go together, by the chip's `versions.yaml`?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from joymigrate.chips import Chip
from joymigrate.chips.incompatible import read_incompatible
from joymigrate.chips.versions import REFUSED, UNPROVEN, Companion, Matrix, number

BROKEN, DOUBTFUL = "broken", "doubtful"
Signal = tuple[str, str, str, str]


def from_versions(environment: Mapping[str, Any], chip: Chip) -> Iterator[Signal]:
    """Every pair that does not go together, or of which nobody says so."""
    packages = {k: v for k, v in (environment.get("packages") or {}).items() if v}
    matrix = chip.matrix()
    name = chip.distribution or chip.name
    have, torch = packages.get(name), packages.get("torch")
    sdk = number(str((environment.get("sdk") or {}).get("version") or ""))
    driver = str((environment.get("driver") or {}).get("version") or "")
    looked_for = environment.get("packages") is not None and name in environment["packages"]
    if looked_for and not have:
        yield "package-missing", BROKEN, f"{name} is not installed", ""
    if have and torch:
        yield from torch_pair(matrix, have, torch, environment)
    if have and matrix.releases and not matrix.names(have):
        yield "unlisted-version", DOUBTFUL, f"{name} {have}: no line of the table has it", ""
    if have and sdk:
        verdict, line = matrix.judge_sdk(have, sdk)
        if verdict == UNPROVEN and line is not None:
            text = f"{name} {have} with SDK {sdk}: not in the table of those that go together"
            yield "sdk-mismatch", DOUBTFUL, text, f"{line.source}, {line.date}"
    if sdk and driver:
        yield from driver_pair(matrix, sdk, driver)
    yield from parts_of_releases(matrix, environment, sdk, driver)
    yield from companions(matrix, packages, environment, name, sdk)
    yield from judge_numbered(matrix, packages)
    yield from known_faults(chip, packages)


def torch_pair(
    matrix: Matrix, have: str, torch: str, environment: Mapping[str, Any]
) -> Iterator[Signal]:
    """The chip's package and torch: the same release, and the build that the wheel asks for."""
    row = matrix.release(have)
    wanted = row.torch if row else base(have)
    where = f"{row.source}, {row.date}" if row else ""
    if wanted and base(torch) != wanted:
        yield "torch-mismatch", BROKEN, f"{have} is built for torch {wanted}, not {torch}", where
        return
    machine = str((environment.get("machine") or {}).get("arch") or "")
    line = matrix.requirement(have, torch, machine) if machine else None
    build = torch.partition("+")[2]
    if line and line.requires.endswith("+cpu") and build != "cpu":
        text = f"the wheel asks for {line.requires.format(torch=wanted)}, here is {torch}"
        cause = "accelerator-clash" if build.startswith("cu") else "pip-conflict"
        yield cause, DOUBTFUL, text, f"{line.source}, {line.date}"


def driver_pair(matrix: Matrix, sdk: str, driver: str) -> Iterator[Signal]:
    """The driver under the SDK."""
    verdict, line = matrix.judge_driver(sdk, driver)
    if line is None or verdict not in (REFUSED, UNPROVEN):
        return
    text = f"driver {driver} with SDK {sdk}: listed are {', '.join(line.driver)}"
    severity = BROKEN if verdict == REFUSED else DOUBTFUL
    yield "driver-mismatch", severity, text, f"{line.source}, {line.date}"


def parts_of_releases(
    matrix: Matrix, environment: Mapping[str, Any], sdk: str, driver: str
) -> Iterator[Signal]:
    """Firmware under the driver, additions beside the SDK: parts of one release each."""
    firmware = str((environment.get("driver") or {}).get("firmware") or "")
    if driver and firmware:
        verdict, line = matrix.judge_firmware(driver, firmware)
        if verdict == UNPROVEN and line is not None:
            text = f"firmware {firmware} under driver {driver}: known is {', '.join(line.firmware)}"
            yield "firmware-mismatch", DOUBTFUL, text, f"{line.source}, {line.date}"
    addons = (environment.get("sdk") or {}).get("addons") or {}
    for row in matrix.addons:
        have = str(addons.get(row.addon) or "")
        if sdk and have[:1].isdigit() and have.casefold() != sdk.casefold():
            text = f"{row.addon} {have} beside SDK {sdk}: they have one number"
            yield f"{row.addon}-mismatch", DOUBTFUL, text, f"{row.source}, {row.date}"


def companions(
    matrix: Matrix,
    packages: Mapping[str, str],
    environment: Mapping[str, Any],
    name: str,
    sdk: str,
) -> Iterator[Signal]:
    """Packages that were built against one set of versions."""
    python = str((environment.get("machine") or {}).get("python") or "")
    asked = environment.get("wanted") or {}  # what somebody tries to install
    for other in matrix.companions:
        version = packages.get(other) or asked.get(other)
        if not version:
            continue
        line = companion(matrix, other, version)
        near = line is None  # a candidate of the same release says what is likely
        if line is None:
            line = alike(matrix, other, version)
            text = f"{other} {version}: no line of the table has it"
            yield "unlisted-version", DOUBTFUL, text, ""
        if line is None:
            continue
        where = f"{line.source}, {line.date}"
        label = f"{other} {line.version if near else version}"
        sure = DOUBTFUL if near else BROKEN
        torch, have = packages.get("torch", ""), packages.get(name, "")
        pairs = [  # what it was built against, what is here, whether they fit, how sure that is
            (f"torch {line.torch}", torch, line.torch in ("", base(torch)), sure),
            (f"{name} {line.package}", have, line.package in ("", have.split("+")[0]), DOUBTFUL),
            (line.sdk, sdk, number(line.sdk).casefold() in ("", sdk.casefold()), DOUBTFUL),
            *((f"{beside} {wanted}", packages.get(beside, ""),
               base(wanted) == base(packages.get(beside, "")), DOUBTFUL)
              for beside, wanted in line.beside.items()),
            (f"Python {line.python}", python, (python or "3") in SpecifierSet(line.python), sure),
        ]  # fmt: skip
        for wanted, here, fits, severity in pairs:
            if here and not fits:
                text = f"{label}: {wanted}, not {here}"
                yield "companion-mismatch", severity, text, where


def judge_numbered(matrix: Matrix, packages: Mapping[str, str]) -> Iterator[Signal]:
    """Packages with a release for each torch."""
    torch = packages.get("torch", "")
    for row in matrix.numbered:
        have, fitting = base(packages.get(row.package, "")), row.release_for(torch)
        if have and fitting and have != fitting:
            text = f"{row.package} {have}: torch {torch} goes with {row.package} {fitting}"
            yield "companion-mismatch", BROKEN, text, f"{row.source}, {row.date}"


def companion(matrix: Matrix, name: str, version: str) -> Companion | None:
    """The line of a release; a build of a day or a candidate counts as the release it leads to."""
    return matrix.companion(name, version) or matrix.companion(name, base(version))


def alike(matrix: Matrix, name: str, version: str) -> Companion | None:
    """The newest line of the same release, whose candidates or later builds it has."""
    wanted = base(version)
    rows = matrix.companions[name] if wanted else ()
    return next((row for row in rows if base(row.version) == wanted), None)


def name_unjudged(environment: Mapping[str, Any], chip: Chip) -> Iterator[str]:
    """Pairs that are here and that the table says nothing about, in words."""
    matrix = chip.matrix()
    sdk = number(str((environment.get("sdk") or {}).get("version") or ""))
    driver = environment.get("driver") or {}
    version, firmware = str(driver.get("version") or ""), str(driver.get("firmware") or "")
    if sdk and version and matrix.judge_driver(sdk, version)[1] is None:
        yield f"driver {version} under SDK {sdk} (no line in the table)"
    if version and firmware and matrix.judge_firmware(version, firmware)[1] is None:
        yield f"firmware {firmware} under driver {version} (no line in the table)"


def known_faults(chip: Chip, packages: Mapping[str, str]) -> Iterator[Signal]:
    """Packages of which the versions alone tell that they don't go together, or have a fault."""
    for row in read_incompatible(chip.folder):
        if not row.symptom and row.holds(packages):
            severity = BROKEN if row.sure else DOUBTFUL
            yield row.cause or row.name, severity, row.named(packages), row.source


def base(version: str) -> str:
    """`2.5.1.dev20250218` and `2.5.1+cpu` → `2.5.1`; empty where it can't be read."""
    try:
        return ".".join(map(str, Version(version).release))
    except InvalidVersion:
        return ""
