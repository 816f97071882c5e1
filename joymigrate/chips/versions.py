"""Which versions go together: `versions.yaml` of a chip's folder, and the one reader of it.

A verdict is `fits` (released together), `compatible` (the source's table says so), `refused` (the
source says no), `unproven` (nobody who was read says either). A number stands for what begins with
it: `9.1` for 9.1.0 and 9.1.T5, `24.1` for 24.1.rc3.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar

from joymigrate.errors import JoyError
from joymigrate.schema import document, read_file, setting

FILE = "versions.yaml"
FITS, COMPATIBLE, REFUSED, UNPROVEN = "fits", "compatible", "refused", "unproven"


@dataclass(frozen=True, slots=True)
class PackageRelease:
    """A release of the chip's package."""

    package: str = setting(help="its version, with .postN")
    torch: str = setting(help="the torch it is built for")
    source: str = setting(help="where this stands")
    date: str = setting(help="when the source was read", pattern=r"\d{4}-\d\d-\d\d")
    adapter: str = setting("", help="the vendor's own number of the release", words=True)
    sdk: str = setting("", help="the SDK it was released with: CANN 9.1.0")
    triton: str = setting("", help="the Triton back end it was released with", words=True)


@dataclass(frozen=True, slots=True)
class AdapterLine:
    """The SDKs that releases of one `adapter` work with."""

    adapter: str = setting(words=True)
    sdk: tuple[str, ...] = setting(words=True)
    source: str = setting()
    date: str = setting(pattern=r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class DriverLine:
    """The drivers that an SDK works with, and those it does not."""

    sdk: str = setting(words=True)
    driver: tuple[str, ...] = setting(words=True)
    source: str = setting()
    date: str = setting(pattern=r"\d{4}-\d\d-\d\d")
    refused: tuple[str, ...] = setting((), words=True)


@dataclass(frozen=True, slots=True)
class WheelLine:
    """What the wheels of some releases ask pip for."""

    releases: str = setting(help="a range: >=2.1,<2.12")
    machine: str = setting(choices=("x86_64", "aarch64", "any"))
    requires: str = setting(help="torch=={torch}+cpu")
    source: str = setting()
    date: str = setting(pattern=r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class PythonLine:
    """The releases that have a wheel for a Python."""

    python: str = setting(words=True)
    releases: str = setting()
    source: str = setting()
    date: str = setting(pattern=r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class Companion:
    """A release of another package, and what it was built against."""

    version: str = setting(words=True)
    source: str = setting()
    date: str = setting(pattern=r"\d{4}-\d\d-\d\d")
    torch: str = setting("", words=True)
    package: str = setting("", words=True)
    sdk: str = setting("")
    adapter: str = setting("", words=True)
    python: str = setting("")
    transformers: str = setting("", words=True)
    beside: Mapping[str, str] = setting(make=dict, help="other packages and their versions")

    def parts(self) -> dict[str, str]:
        """What was given, without source and date."""
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        named |= named.pop("beside")
        return {k: v for k, v in named.items() if v and k not in ("source", "date")}


@dataclass(frozen=True, slots=True)
class FirmwareLine:
    """The firmware that comes with a driver; a number stands for what begins with it."""

    driver: str = setting(words=True)
    firmware: tuple[str, ...] = setting(words=True)
    source: str = setting()
    date: str = setting(pattern=r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class AddonLine:
    """An addition to the SDK that has the SDK's own number."""

    addon: str = setting(help="its name in doctor.yaml")
    source: str = setting()
    date: str = setting(pattern=r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class NumberedLine:
    """A package whose releases are counted beside torch's: 0.(minor + `ahead`).patch."""

    package: str = setting()
    ahead: int = setting(help="its second number less torch's")
    torch: str = setting(help="the range in which this holds: >=2.1,<2.15")
    source: str = setting()
    date: str = setting(pattern=r"\d{4}-\d\d-\d\d")

    def release_for(self, torch: str) -> str | None:
        """The release that goes with a torch; None outside of the range."""
        numbers = torch.split("+")[0].split(".")
        if len(numbers) != 3 or not all(map(str.isdigit, numbers)) or not within(torch, self.torch):
            return None
        return f"0.{int(numbers[1]) + self.ahead}.{numbers[2]}"


@dataclass(frozen=True, slots=True)
class ImageLine:
    """A container image that was seen: the SDK in it, its Pythons and the models it is for."""

    sdk: str = setting(words=True)
    pythons: tuple[str, ...] = setting(words=True)
    models: tuple[str, ...] = setting(help="parts of the tag, as image.yaml names them", words=True)
    source: str = setting()
    date: str = setting(pattern=r"\d{4}-\d\d-\d\d")


Line = (
    PackageRelease | AdapterLine | DriverLine | FirmwareLine | AddonLine | NumberedLine | WheelLine
    | PythonLine | ImageLine | Companion
)  # fmt: skip
L = TypeVar("L", AdapterLine, DriverLine)


@document("versions", "Which versions of a chip's software go together: versions.yaml.")
@dataclass(frozen=True, slots=True)
class Matrix:
    """All of it, newest release first."""

    default: str = setting("", help="the version that is assumed when none is named", words=True)
    stale_days: int = setting(183, help="a line older than this warns", above=0)
    sources: Mapping[str, str] = setting(make=dict, help="texts that lines refer to")
    releases: tuple[PackageRelease, ...] = setting(())
    adapters: tuple[AdapterLine, ...] = setting(())
    drivers: tuple[DriverLine, ...] = setting(())
    firmware: tuple[FirmwareLine, ...] = setting(())
    addons: tuple[AddonLine, ...] = setting(())
    numbered: tuple[NumberedLine, ...] = setting(())
    wheels: tuple[WheelLine, ...] = setting(())
    pythons: tuple[PythonLine, ...] = setting(())
    images: tuple[ImageLine, ...] = setting(())
    companions: Mapping[str, tuple[Companion, ...]] = setting(make=dict)
    path: str = field(default="", metadata={"hidden": True})

    def lines(self) -> Iterator[Line]:
        """Every line that has a source and a date."""
        groups: tuple[tuple[Line, ...], ...] = (
            self.releases, self.adapters, self.drivers, self.firmware, self.addons,
            self.numbered, self.wheels, self.pythons, self.images,
            *self.companions.values(),
        )  # fmt: skip
        for group in groups:
            yield from group

    def is_stale(self, line: Line, today: datetime.date) -> bool:
        """Whether a line is older than `stale_days`."""
        return (today - datetime.date.fromisoformat(line.date)).days > self.stale_days

    def release(self, package: str) -> PackageRelease | None:
        """The line of a release; builds of a day (`.dev…`) and candidates have none."""
        plain = package.split("+")[0]
        return next((row for row in self.releases if row.package == plain), None)

    def names(self, package: str) -> bool:
        """Whether any line names a release, its own or that of a package built against it."""
        rows = (row for group in self.companions.values() for row in group)
        return self.release(package) is not None or any(
            row.package == package.split("+")[0] for row in rows
        )

    def releases_for(self, torch: str) -> tuple[PackageRelease, ...]:
        """The releases built for a torch, the newest first. A build's label does not count."""
        plain = torch.split("+")[0]
        return tuple(row for row in self.releases if row.torch == plain)

    def companion(self, name: str, version: str) -> Companion | None:
        """The line of another package's release."""
        plain = version.split("+")[0]
        return next((row for row in self.companions.get(name, ()) if row.version == plain), None)

    def judge_sdk(self, package: str, sdk: str) -> tuple[str, Line | None]:
        """Whether a release works with an SDK, and the line that says so."""
        row = self.release(package)
        if row is None:
            return UNPROVEN, None
        if row.sdk and begins(sdk, number(row.sdk)):
            return FITS, row
        line = nearest(self.adapters, row.adapter, "adapter") if row.adapter else None
        if line and any(begins(sdk, one) for one in line.sdk):
            return COMPATIBLE, line
        if row.sdk and number(row.sdk).split(".")[:2] == sdk.split(".")[:2]:
            return COMPATIBLE, row  # another patch of the SDK it was released with
        return UNPROVEN, line or row

    def judge_driver(self, sdk: str, driver: str) -> tuple[str, DriverLine | None]:
        """Whether a driver works with an SDK, and the line that says so."""
        line = nearest(self.drivers, sdk, "sdk")
        if line is None:
            return UNPROVEN, None
        if any(begins(driver, one) for one in line.refused):
            return REFUSED, line
        if any(begins(driver, one) for one in line.driver):
            return FITS, line
        return UNPROVEN, line

    def judge_firmware(self, driver: str, firmware: str) -> tuple[str, FirmwareLine | None]:
        """Whether a firmware came with a driver, and the line that says so."""
        line = next((row for row in self.firmware if begins(driver, row.driver)), None)
        if line is None:
            return UNPROVEN, None
        good = any(begins(firmware, one) for one in line.firmware)
        return (FITS if good else UNPROVEN), line

    def requirement(self, package: str, torch: str, machine: str) -> WheelLine | None:
        """What the wheel of a release asks for on a kind of machine."""
        for line in self.wheels:
            if line.machine in (machine, "any") and within(package, line.releases):
                return line
        return None


def read(folder: Path) -> Matrix | None:
    """The matrix of a chip's folder; None where it has none. Raises JoyError."""
    path = folder / FILE
    if not path.is_file():
        return None
    return read_file(Matrix, path)


def nearest(lines: tuple[L, ...], version: str, key: str) -> L | None:
    """The line whose number is the longest beginning of `version`."""
    fitting = [line for line in lines if begins(version, getattr(line, key))]
    return max(fitting, key=lambda line: len(getattr(line, key)), default=None)


def number(sdk: str) -> str:
    """`CANN 9.1.0` → `9.1.0`."""
    return re.sub(r"^\D*\s", "", sdk)


def begins(version: str, start: str) -> bool:
    """Whether a version is `start`, or begins with it: 9.1.0 with 9.1, not 9.10 with 9.1."""
    have = re.split(r"[.\-+]", number(version).casefold())
    want = re.split(r"[.\-+]", number(start).casefold())
    return have[: len(want)] == want


def within(version: str, span: str) -> bool:
    """Whether a version lies in a range; raises JoyError where the range can't be read."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # not for every command
    from packaging.version import InvalidVersion, Version

    try:
        known = SpecifierSet(span)
    except InvalidSpecifier:
        raise JoyError(f"{span!r} is not a range such as >=2.1,<2.14") from None
    try:
        return known.contains(Version(version).public, prereleases=True)
    except InvalidVersion:
        return False
