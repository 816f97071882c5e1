"""What the user asked for on the command line, checked and turned into settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from joymigrate import chips
from joymigrate.chips import calibration
from joymigrate.chips.versions import number
from joymigrate.config import load
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.rehearse.settings import (
    MEMORY_GIB,
    MODES,
    POLICIES,
    PRECISIONS,
    SERIES,
    SOCS,
    USUAL_MEMORY_GIB,
    RehearsalSettings,
)

PACKAGE = "torch_npu"  # the one package that this device can carry
DEFAULT_SOC = "910B3"
FAMILY = 4  # letters of a model's name that name its family
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
    "G": 1 << 30,
    "M": 1 << 20,
}


def read_options(
    *,
    to: str | None,
    soc: str | None,
    devices: int,
    memory: str | None,
    mode: str,
    precision: str,
    policy: str,
    inject: Sequence[str],
    strict: bool = False,
    cann: str | None = None,
    watch: bool = True,
) -> RehearsalSettings:
    """Settings without a session yet (`session`, `libraries` and `package` are empty)."""
    chip = rehearsable(to or load(Path.cwd())["to"])
    full_soc = soc_name(soc or DEFAULT_SOC)
    known = calibration.load(chip.name).memory_bytes if soc is None else None
    size = memory_bytes(memory) if memory else known or usual_memory(full_soc)
    return RehearsalSettings(
        session=Path(),
        libraries=Path(),
        package="",
        chip=chip.name,
        soc=full_soc,
        series=soc if soc and short_name(soc) in SERIES else "",
        devices=devices,
        memory_bytes=size,
        mode=one_of("--mode", mode, MODES),
        precision=one_of("--precision", precision, PRECISIONS),
        policy=one_of("--policy", policy, POLICIES),
        strict=strict,
        watch=watch,
        cann=cann_version(cann) if cann else "",
        inject=dict(injection(item) for item in inject),
    )


def cann_version(text: str) -> str:
    """A version of the chip's software as its package compares it: `8.3.RC1`, `9.2.0`."""
    plain = re.sub(r"^CANN[\s_-]*", "", text.strip(), flags=re.IGNORECASE)
    if re.fullmatch(r"\d+\.\d+(\.[A-Za-z0-9]+)*", plain):
        return re.sub(r"(?i)\brc(?=\d)", "RC", plain)
    raise JoyError(f"'{text}' is no version of CANN", help="--cann takes 8.3.RC1 or 9.2.0")


def with_cann(settings: RehearsalSettings, package: str) -> RehearsalSettings:
    """The settings with the version that was named, or that this release came out with.

    A build whose version is published nowhere has that of its neighbour for the same torch.
    """
    matrix = chips.target(settings.chip).matrix()
    if settings.cann:
        return replace(settings, cann_fits=matrix.judge_sdk(package, settings.cann)[0])
    row = matrix.release(package)
    rows = [row] if row else []
    rows += matrix.releases_for(row.torch if row else package.partition(".post")[0])
    rows += matrix.releases
    found = next((number(row.sdk) for row in rows if row.sdk), "")
    return replace(settings, cann=found, cann_fits="")


def rehearsable(name: str | None) -> chips.Chip:
    """The chip; `JoyError` for one whose package can't be had without its hardware."""
    chip = chips.target(name)
    if chip.package == PACKAGE:
        return chip
    lacks = f"{chip.distribution or chip.package} has no public wheel"
    raise JoyError(
        f"{chip.title} cannot be rehearsed: the rehearsal runs the vendor's own package, and "
        f"{lacks if chip.package else 'it has none'}",
        help="rewrite and coverage work for this chip: joymigrate scan --to "
        f"{chip.name}, joymigrate profile coverage --to {chip.name}",
    )


def short_name(soc: str) -> str:
    """The name of a chip model without the vendor's word."""
    return soc.upper().removeprefix("ASCEND").removeprefix("_")


def soc_name(text: str) -> str:
    """The vendor's name of a chip model, from its short or full name."""
    short = short_name(text)
    short = SERIES.get(short, short)
    if short in SOCS:
        return SOCS[short]
    known = list(SOCS)
    family = [one for one in known if one[:FAMILY] == short[:FAMILY]]  # 310B1 is no 910B1
    raise JoyError(
        f"unknown chip model '{text}'.{did_you_mean(short, family)}",
        help=f"--soc takes {', '.join(known)}",
    )


def usual_memory(soc: str) -> int:
    """Bytes on one device of a model."""
    return int(MEMORY_GIB.get(soc, USUAL_MEMORY_GIB)) << 30


def memory_bytes(text: str) -> int:
    """Bytes from `64GiB`, `32GB`, `500 MiB` or a plain number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = UNITS.get(match.group(2).upper()) if match else None
    size = int(float(match.group(1)) * unit) if match and unit else 0
    if size <= 0:
        raise JoyError(f"'{text}' is no amount of memory", help="--memory takes 64GiB or 512MiB")
    return size


def one_of(option: str, value: str, known: Sequence[str]) -> str:
    """`value` when it is one of the known ones."""
    if value in known:
        return value
    raise JoyError(
        f"{option} cannot be '{value}'.{did_you_mean(value, known)}",
        help=f"{option} takes {', '.join(known)}",
    )


def injection(text: str) -> tuple[str, float]:
    """`op=1e-2` as operator and relative error."""
    name, separator, value = text.partition("=")
    try:
        if not separator or not name:
            raise ValueError
        return name.strip(), float(value)
    except ValueError:
        raise JoyError(
            f"'{text}' names no faulty operator", help="--inject takes gelu=1e-2"
        ) from None
