"""A lock's packages for another chip: what stays, what joins, and what is left out and why."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from joymigrate import __version__, chips
from joymigrate.chips import Chip
from joymigrate.chips.advice import normalise_name
from joymigrate.errors import JoyError
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers._packages import package_advice
from joymigrate.run.render.base import package_of
from joymigrate.run.render.lock import Lock, Pin

FRAMEWORK = "torch"


@dataclass(frozen=True, slots=True)
class PackageLine:
    """One package of the image: `kept`, `changed`, `added` or `left out`. `requirement` is empty
    for one that is left out; `was` what the lock says."""

    kind: str
    requirement: str
    was: str = ""
    reason: str = ""


def translate(lock: Lock, chip: Chip) -> list[PackageLine]:
    """Every package of the lock, and what joins them, in the lock's order."""
    origin = chips.origin()
    if lock.pin(FRAMEWORK) is None:
        raise JoyError(
            "the lock has no torch", where=str(lock.path), help="lock the environment that trains"
        )
    context = Context.between(chip, origin)
    found: list[PackageLine] = []
    for pin in lock.pins:
        if pin.name == FRAMEWORK:
            found += framework(pin, chip, lock)
        else:
            found.append(line(pin, chip, context))
    return [*found, *(PackageLine("left out", "", was, reason) for was, reason in lock.left_out)]


def line(pin: Pin, chip: Chip, context: Context) -> PackageLine:
    """What becomes of one package."""
    if stranger := of_another_chip(pin, chip):
        return PackageLine("left out", "", pin.requirement, stranger)
    if pin.name == normalise_name(chip.distribution or ""):
        return PackageLine("kept", pin.requirement)
    if chip.origin:
        plain = without_local(pin)
        return PackageLine(
            "kept" if plain == pin.requirement else "changed", plain, pin.requirement
        )
    change = package_advice(pin.requirement, context)
    if change is None:
        return PackageLine("kept", pin.requirement)
    if change.after is not None:
        return PackageLine("changed", change.after, pin.requirement, str(change.reason))
    if stays(pin, chip):
        return PackageLine("kept", pin.requirement, "", str(change.reason))
    return PackageLine("left out", "", pin.requirement, str(change.reason))


def framework(pin: Pin, chip: Chip, lock: Lock) -> list[PackageLine]:
    """torch itself, and the package that brings the chip to it."""
    plain = without_local(pin)
    kept = PackageLine("kept" if plain == pin.requirement else "changed", plain, pin.requirement)
    other = chip.distribution
    if other is None or other == FRAMEWORK or lock.pin(normalise_name(other)):
        return [kept]
    version = public(pin.version)
    package = package_of(chip, version)
    if package is None:
        listed = dict.fromkeys(str(row["torch"]) for row in chip.versions if row.get("package"))
        raise JoyError(
            f"no {other} for torch {version} is known",
            help=f"lock torch {', '.join(listed)}" if listed else "name an image with --base",
        )
    return [
        kept,
        PackageLine("added", f"{other}=={package}", "", f"brings the device of {chip.title}"),
    ]


def torch_of(lock: Lock) -> str | None:
    """The public version of the lock's torch."""
    pin = lock.pin(FRAMEWORK)
    return public(pin.version) if pin else None


def with_server(found: list[PackageLine], lock: Lock) -> list[PackageLine]:
    """The packages with joymigrate's server among them."""
    if lock.pin("joymigrate"):
        return found
    reason = "serves the model; from your index, or as a wheel that you copy into the image"
    return [*found, PackageLine("added", f"joymigrate[serve]=={__version__}", "", reason)]


def stays(pin: Pin, chip: Chip) -> bool:
    """Whether the chip's data says that this version of a package tied to the origin works."""
    advice = chip.package_advice(pin.name)
    if (
        advice is None
        or not advice.to
        or normalise_name(advice.to) != pin.name
        or not advice.versions
    ):
        return False
    try:
        return SpecifierSet(advice.versions).contains(public(pin.version))
    except (InvalidSpecifier, InvalidVersion):
        return False


def of_another_chip(pin: Pin, chip: Chip) -> str:
    """Why a package is left out that belongs to another chip than the image is for; else empty."""
    words = set(pin.name.split("-"))
    for other in chips.all_chips().values():
        if other.origin or other.name == chip.name:
            continue
        mine = {chip.name, chip.device, normalise_name(chip.distribution or "")}
        distribution = normalise_name(other.distribution or "")
        names = {other.name, other.device, *sdk_words(other)} - mine - {"cuda", "torch"}
        if (distribution == pin.name and distribution not in mine) or names & words:
            return f"belongs to {other.title}"
    return ""


def sdk_words(chip: Chip) -> set[str]:
    """The names of a chip's SDK, as a package's name may hold them."""
    found = {str(row.get("sdk", "")).split(" ")[0].lower() for row in chip.versions}
    return {word for word in found if len(word) > 3 or word.isalpha()} - {""}


def without_local(pin: Pin) -> str:
    """The requirement without a build's label (`+cu121`, `+cpu`)."""
    if pin.url:
        return pin.requirement
    return Pin(pin.name, public(pin.version), pin.extras, pin.marker).requirement


def public(version: str) -> str:
    """A version without its local part."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version.partition("+")[0]
