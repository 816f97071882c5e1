"""`doctor.yaml` of a chip's folder: what to record, what an error's words mean, what helps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from joymigrate.chips import Chip
from joymigrate.schema import document, read_file, setting

FILE = "doctor.yaml"


@dataclass(frozen=True, slots=True)
class SdkPlaces:
    """Where the SDK lies and what shows its version and parts. Paths may hold `*`."""

    variables: tuple[str, ...] = setting((), help="variables that a sourced script sets")
    homes: tuple[str, ...] = setting(())
    versions: tuple[str, ...] = setting((), help="files below a home that name the version")
    kernels: tuple[str, ...] = setting((), help="compiled kernels below a home")
    script: str = setting("", help="what to source")
    addons: Mapping[str, tuple[str, ...]] = setting(make=dict, help="name → its folders")
    needed_by: Mapping[str, tuple[str, ...]] = setting(
        make=dict, help="addition → distributions that do not run without it"
    )


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """What a record looks at."""

    distributions: tuple[str, ...] = setting(())
    variables: tuple[str, ...] = setting(())
    cards: str = setting("", help="device files of the cards")
    shared: tuple[str, ...] = setting((), help="device files that every program needs")
    sdk: SdkPlaces = field(default_factory=SdkPlaces)
    driver_versions: tuple[str, ...] = setting(())
    firmware_versions: tuple[str, ...] = setting(())
    driver_libraries: tuple[str, ...] = setting(())
    smi: tuple[str, ...] = setting((), help="the command that lists the cards")
    smi_version: str = setting("", help="its version: a pattern with one group")
    smi_card: str = setting("", help="a line of a card: groups id, name and health")
    network: tuple[str, ...] = setting((), help="asks the address of `{card}`")
    network_address: str = setting(r"([\d.]+)", help="the address: a pattern with one group")
    link: tuple[str, ...] = setting((), help="asks the state of the link of `{card}`")
    link_state: str = setting("", help="the state, UP or DOWN: a pattern with one group")
    visible: str = setting("", help="the variable that hides cards")
    shown: Mapping[str, str] = setting(
        make=dict,
        help="sdk, driver or firmware → its version in files and paths: a pattern with one group",
    )
    told: Mapping[str, str] = setting(
        make=dict, help="the same part → how a line `LABEL version: VERSION` calls it: a pattern"
    )


@dataclass(frozen=True, slots=True)
class Sign:
    """Words of an error, and the cause they stand for. The first that fits a text counts; where
    `fact` is named, only beside that fact, and then before all others."""

    cause: str = setting()
    pattern: str = setting(help="a regular expression")
    source: str = setting(help="where the words come from")
    fact: str = setting("", help="what else has to be shown: a name of `facts`")


@dataclass(frozen=True, slots=True)
class EnvironmentCause:
    """What is wrong, how to mend it, and how deep it lies (0 the hardware, 90 the program)."""

    layer: int = setting(least=0, most=99)
    what: str = setting()
    fix: str = setting()


@document("doctor-rules", "What `joymigrate doctor` records and knows of a chip: doctor.yaml.")
@dataclass(frozen=True, slots=True)
class DoctorRules:
    """All of a chip's doctor.yaml."""

    record: RecordPlaces = field(default_factory=RecordPlaces)
    causes: Mapping[str, EnvironmentCause] = setting(make=dict)
    signs: tuple[Sign, ...] = setting(())
    facts: Mapping[str, str] = setting(
        make=dict, help="what a message may show beside its errors → a pattern of the line"
    )

    def cause_of(self, text: str, facts: Mapping[str, str] | None = None) -> Sign | None:
        """The sign that the words of an error fit, beside `facts`: names with their lines."""
        known = facts or {}
        first = [sign for sign in self.signs if sign.fact in known]
        rest = [sign for sign in self.signs if not sign.fact]
        return next((one for one in [*first, *rest] if re.search(one.pattern, text)), None)


def rules_of(chip: Chip) -> DoctorRules | None:
    """The chip's doctor.yaml, None where it has none."""
    path = chip.folder / FILE
    return read_file(DoctorRules, path) if path.is_file() else None
