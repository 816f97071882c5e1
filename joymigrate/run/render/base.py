"""The base image of a chip, chosen by SDK, model and Python from `image.yaml` of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joymigrate.chips import Chip, all_chips
from joymigrate.chips.versions import UNPROVEN, ImageLine, number
from joymigrate.errors import JoyError
from joymigrate.schema import document, read_file, setting

FILE = "image.yaml"
HELP = "see docs/how-to/chips.md"


@dataclass(frozen=True, slots=True)
class BuildFields:
    """Images without an SDK that were seen."""

    pythons: tuple[str, ...] = setting(help="their Pythons", words=True)
    source: str = setting(help="where they were seen")


@dataclass(frozen=True, slots=True)
class DeviceFields:
    """How a container gets its devices."""

    card: str = setting("", "the device file of a card: `/dev/acc{card}`")
    shared: tuple[str, ...] = setting((), "device files that every container needs")
    mounts: tuple[str, ...] = setting((), "files of the host's driver")
    reservation: Mapping[str, Any] | None = setting(None, "instead: compose's own reservation")
    source: str = setting("", "where this was read")


@dataclass(frozen=True, slots=True)
class RuntimeFields:
    """The vendor's container runtime."""

    name: str = setting(help="what --runtime takes")
    environment: Mapping[str, str] = setting(make=dict, help="variables that choose cards")
    source: str = setting("", "where this was read")


@dataclass(frozen=True, slots=True)
class UserFields:
    """Who runs in the container."""

    uid: int = setting(1000, "the user's number", least=0)
    gid: int = setting(1000, "the group's number", least=0)
    note: str = setting("", "what to know about them")
    source: str = setting("", "where this was read")


@document("image", "The container that a project runs in: `image.yaml` of a chip's folder.")
@dataclass(frozen=True, slots=True)
class ImageFile:
    """Base image, devices and driver; images with an SDK stand in `versions.yaml`."""

    VERSIONED = True

    base: str = setting(help="the image: `acme/base:{version}-{model}-py{python}`")
    devices: DeviceFields = setting(help="devices and driver of the host")
    holds: str = setting("", "what the image brings")
    models: Mapping[str, tuple[str, ...]] = setting(make=dict, help="SKUs by their part of the tag")
    builds: tuple[BuildFields, ...] = setting((), "images without an SDK")
    index: str = setting("", "what to know about package indexes")
    runtime: RuntimeFields | None = setting(None, "the vendor's container runtime")
    user: UserFields | None = setting(None, "who runs in the container")
    date: str = setting("", "when it was read", words=True)


@dataclass(frozen=True, slots=True)
class Base:
    """What a container starts from. `image` is the full name; `data` the chip's `image.yaml`."""

    image: str
    python: str
    source: str
    data: Mapping[str, Any]
    sdk: str = ""


def data_of(chip: Chip) -> Mapping[str, Any]:
    """The chip's `image.yaml`, checked; `JoyError` where it has none."""
    raw = chip.data(FILE)
    where = str(chip.folder / FILE)
    if raw is None:
        known = sorted(one.name for one in all_chips().values() if (one.folder / FILE).is_file())
        raise JoyError(
            f"no container image is known for {chip.title}",
            help=f"name one with --base IMAGE; known for {', '.join(known)}",
        )
    read_file(ImageFile, chip.folder / FILE, "image", HELP)
    found: Mapping[str, Any] = raw
    if not builds_of(chip, found):
        raise JoyError(
            "no image was seen", where=where, help="`images` of versions.yaml, or `builds`"
        )
    return found


def builds_of(chip: Chip, data: Mapping[str, Any]) -> tuple[ImageLine, ...]:
    """The images that were seen: of `versions.yaml`, else `builds` of images without an SDK."""
    listed = chip.matrix().images
    if listed or not data.get("builds"):
        return listed
    return tuple(
        ImageLine("", tuple(one["pythons"]), (), str(one["source"]), str(data.get("date", "")))
        for one in data["builds"]
    )


def choose(chip: Chip, torch: str | None, python: str | None, sku: str | None = None) -> Base:
    """The image for this torch, Python and model; an image that nobody saw is an error."""
    data = data_of(chip)
    model = model_of(chip, data, sku)
    sdk = sdk_of(chip, torch)
    builds = [one for one in builds_of(chip, data) if not model or model in one.models]
    fitting = [one for one in builds if not sdk or one.sdk in ("", sdk)]
    if not fitting:
        seen = ", ".join(dict.fromkeys(one.sdk for one in builds))
        raise JoyError(
            f"no image with {sdk} for {model} is known", help=f"known: {seen}; or --base IMAGE"
        )
    pythons = [one for build in fitting for one in build.pythons]
    chosen = python or max(pythons, key=lambda text: tuple(map(int, text.split("."))))
    build = next((one for one in fitting if chosen in one.pythons), None)
    if build is None:
        raise JoyError(
            f"no image with Python {chosen} is known",
            help=f"known: {', '.join(dict.fromkeys(pythons))}; lock for one of them with "
            "--python, or --base IMAGE",
        )
    image = str(data["base"]).format(version=build.sdk, model=model, python=chosen)
    return Base(image, chosen, build.source, data, build.sdk)


def custom_base(chip: Chip, image: str, python: str | None) -> Base:
    """An image of the user's own; devices are still those that the chip's data names."""
    launch = chip.launch
    nodes = [str(node) for node in launch.get("device_nodes") or ()]
    plain = {"devices": {"card": "", "shared": nodes, "source": str(launch.get("source", ""))}}
    data = data_of(chip) if (chip.folder / FILE).is_file() else plain
    kept = {key: value for key, value in data.items() if key not in ("holds", "index")}
    return Base(image, python or "", "given with --base", kept)


def model_of(chip: Chip, data: Mapping[str, Any], sku: str | None) -> str:
    """The part of the tag that stands for a SKU; the first where none is named."""
    models: Mapping[str, list[str]] = data.get("models") or {}
    if not models:
        return ""
    if sku is None:
        return str(next(iter(models)))
    found = chip.sku(sku)
    for model, skus in models.items():
        if found is not None and found.name in skus:
            return str(model)
    known = ", ".join(one for skus in models.values() for one in skus)
    raise JoyError(f"no image is known for '{sku}'", help=f"known: {known}; or --base IMAGE")


def release_of(chip: Chip, torch: str | None) -> tuple[str, str]:
    """The chip's package for this torch and the SDK under it, as an image is known for; empty
    texts where none is listed.

    A release whose own SDK has an image comes before a newer one that is only compatible with one.
    """
    matrix = chip.matrix()
    rows = matrix.releases_for(torch) if torch else ()
    data = chip.data(FILE) or {}
    seen = list(dict.fromkeys(build.sdk for build in builds_of(chip, data)))
    for row in rows:
        if row.sdk and number(row.sdk).lower() in seen:
            return row.package, number(row.sdk).lower()
    for row in rows:
        for sdk in seen:
            if sdk and matrix.judge_sdk(row.package, sdk)[0] != UNPROVEN:
                return row.package, sdk
    listed = [row for row in chip.versions if torch and str(row.get("torch")) == torch]
    for one in listed:
        if one.get("package"):
            return str(one["package"]), number(str(one.get("sdk", ""))).lower()
    return "", ""


def sdk_of(chip: Chip, torch: str | None) -> str:
    """The SDK that goes with the chip's package for this torch; empty where unknown."""
    return release_of(chip, torch)[1]


def package_of(chip: Chip, torch: str) -> str | None:
    """The version of the chip's package that belongs to this torch; None where none is listed."""
    return release_of(chip, torch)[0] or None
