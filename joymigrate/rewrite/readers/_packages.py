"""Third-party distributions: which requirements tie a project to one vendor, and what to do.

One requirement string goes in, one `RequirementChange` comes out; files, commands and lists of
strings are the callers' business. Nothing is looked up in an index: what is known stands in the
chip's `packages.yaml`, with date and source.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from joymigrate.chips import PackageAdvice
from joymigrate.language import Text
from joymigrate.model import Tier
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.native import runs_unchanged

RULE = "JM191"
FRAMEWORK = "torch"
REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?P<extras>\[[^\]]*\])?\s*"
    r"(?P<versions>(?:\(?\s*(?:===?|[<>!~]=|[<>=])\s*[^\s;,#)]+\s*,?\s*)*\)?)"
    r"(?P<rest>\s*(?:@\s*\S+)?\s*(?:;.*)?)",
    re.DOTALL,
)
# `+cu121` of a version: a build against one version of the vendor's toolkit.
LOCAL = re.compile(r"\+(?:cu\d+|cuda[\d.]*)(?:\.?with\w+)?")
CPU_BUILD = "+cpu"
INDEX = re.compile(r"(?<=/whl/)cu\d+(?=[/\s\"']|$)|(?<=/whl/nightly/)cu\d+(?=[/\s\"']|$)")
WHEEL = re.compile(r"(?:%2B|\+)cu\d+[\w.]*-", re.I)


@dataclass(frozen=True, slots=True)
class RequirementChange:
    """What becomes of one requirement.

    `after` replaces the requirement's text (None: it is reported); `also` are requirements to put
    behind it. The caller decides how a further requirement is written.
    """

    name: str
    tier: Tier
    reason: str
    after: str | None = None
    also: tuple[str, ...] = ()


def package_advice(requirement: str, context: Context) -> RequirementChange | None:
    """What to do about one requirement such as `flash-attn>=2.3`; None for one that may stay."""
    text = requirement.strip()
    match = REQUIREMENT.fullmatch(text)
    if match is None:
        return url_advice(text)
    name = normalise_name(match["name"])
    ours = normalise_name(context.origin.distribution or FRAMEWORK)
    if name == FRAMEWORK:
        return framework(text, match, context) if ours == FRAMEWORK else None
    if name == ours:
        return companion(match, context)
    return (
        look_up(name, context, match)
        or local_version(text, name, context)
        or url_advice(match["rest"])
    )


def normalise_name(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def url_advice(text: str) -> RequirementChange | None:
    """A wheel named by its address that is built for the origin."""
    if WHEEL.search(text) or INDEX.search(text):
        return RequirementChange(text, Tier.REPORT, "a wheel built for the CUDA toolkit")
    return None


def look_up(name: str, context: Context, match: re.Match[str]) -> RequirementChange | None:
    """A distribution that the chip's data, or the common list, knows to be tied to the origin."""
    advice = context.chip.package_advice(name)
    if advice is not None:
        return change_of(name, advice, context, match)
    if context.origin.origin and list_tied(context).fullmatch(name):
        reason = Text(
            "needs {origin}; nothing is known about it on {chip}",
            origin=context.origin.title,
            chip=context.chip.title,
        )
        return RequirementChange(name, Tier.REPORT, reason)
    return None


def change_of(
    name: str, advice: PackageAdvice, context: Context, match: re.Match[str]
) -> RequirementChange | None:
    """The chip's own statement about a distribution."""
    free = runs_unchanged(name, context.chip) or not list_tied(context).fullmatch(name)
    if advice.to and normalise_name(advice.to) == name and free:
        return version_conflict(name, advice, match["versions"])
    simple = advice.to and re.fullmatch(r"[A-Za-z0-9][\w.-]*", advice.to)
    if advice.releases:
        return of_same_version(name, advice, match["versions"])
    writes = simple and advice.tier is not Tier.REPORT and not context.style.portable
    if not writes or advice.to is None:
        return RequirementChange(name, Tier.REPORT, describe(advice))
    after = advice.to + (match["extras"] or "") + advice.versions + match["rest"]
    return RequirementChange(name, Tier.UNSAFE, describe(advice), after)


def of_same_version(name: str, advice: PackageAdvice, versions: str) -> RequirementChange:
    """A distribution whose counterpart has a release for some of its versions."""
    try:
        wanted = SpecifierSet(versions.strip(" ()"))
    except InvalidSpecifier:
        return RequirementChange(name, Tier.REPORT, describe(advice))
    fits = [one for one in advice.releases if wanted.contains(Version(one).base_version)]
    if fits:
        given = replace(advice, versions=f"=={fits[-1]}")
        return RequirementChange(name, Tier.REPORT, describe(given))
    listed = ", ".join(advice.releases)
    none = Text(
        "{to} has no release for {name}{versions} (releases: {listed})",
        to=advice.to or "", name=name, versions=versions.strip(), listed=listed,
    )  # fmt: skip
    parts = [none, Text("as of {date}", date=advice.date)] if advice.date else [none]
    return RequirementChange(name, Tier.REPORT, Text.join("; ", parts))


def version_conflict(name: str, advice: PackageAdvice, versions: str) -> RequirementChange | None:
    """A distribution that works on the target from some version on, pinned to another one."""
    pinned = re.search(r"={2,3}\s*([\d.]+)(?![\d.*])", versions)
    if pinned is None or not advice.versions:
        return None
    try:
        fits = SpecifierSet(advice.versions).contains(pinned[1].rstrip("."))
    except (InvalidSpecifier, InvalidVersion):
        return None
    return None if fits else RequirementChange(name, Tier.REPORT, describe(advice))


def describe(advice: PackageAdvice) -> str:
    """One line out of the parts of an advice, with its date."""
    parts: list[str] = []
    if advice.to:
        wanted = f"{advice.to} {advice.versions}" if advice.versions else advice.to
        parts.append(Text("use {to}", to=wanted))
    if advice.covers:
        parts.append(Text("covers {covers}", covers=advice.covers))
    if advice.note:
        parts.append(advice.note)
    if advice.aarch64 is not None:
        parts.append("a wheel for aarch64" if advice.aarch64 else "no wheel for aarch64")
    if advice.date:
        parts.append(Text("as of {date}", date=advice.date))
    return Text.join("; ", parts) if parts else "depends on the current accelerator"


@functools.lru_cache(maxsize=8)
def tied_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for names and wildcards."""
    return re.compile("|".join(map(fnmatch.translate, names)) or r"(?!)")


def list_tied(context: Context) -> re.Pattern[str]:
    """Distributions that need the origin's hardware, from the rule's data."""
    rule = context.rules.get(RULE)
    items: list[Mapping[str, Any]] = list(rule.match) if rule else []
    return tied_pattern(tuple(name for item in items for name in item.get("packages", ())))


def local_version(text: str, name: str, context: Context) -> RequirementChange | None:
    """`torchvision==0.16.0+cu121`: the same version without the origin's build."""
    after = LOCAL.sub("", text)
    if after == text:
        return None
    if context.chip.keeps_device:
        return RequirementChange(
            name, Tier.REPORT, Text("{chip} has builds of its own", chip=context.chip.title)
        )
    if context.style.portable:
        return RequirementChange(name, Tier.REPORT, "a build for the CUDA toolkit")
    reason = "a build for the CUDA toolkit; the plain version has the same interface"
    return RequirementChange(name, Tier.UNSAFE, reason, after)


def framework(text: str, match: re.Match[str], context: Context) -> RequirementChange | None:
    """torch itself: the plain build, and beside it the distribution that brings the device."""
    chip = context.chip
    other = chip.distribution
    if other is None or other == FRAMEWORK:
        return local_version(text, FRAMEWORK, context)
    if "@" in match["rest"].partition(";")[0]:
        return RequirementChange(
            FRAMEWORK,
            Tier.REPORT,
            Text("named by its address; add {other} of that version", other=other),
        )
    if context.style.portable:
        return RequirementChange(
            FRAMEWORK,
            Tier.REPORT,
            Text("on {chip} {other} of this version joins it", chip=chip.title, other=other),
        )
    marker = match["rest"]
    versions = LOCAL.sub("", match["versions"]).replace(CPU_BUILD, "").strip()
    pinned = re.fullmatch(r"={2,3}\s*([\d.]+)", versions)
    beside = f"=={pinned[1].rstrip('.')}.*" if pinned and not versions.endswith("*") else versions
    note = warn_unlisted(pinned[1], context) if pinned else outside(versions, context)
    device: str = Text("{other} of the same version brings the device", other=other)
    if note:
        # What can't be installed is not written.
        return RequirementChange(FRAMEWORK, Tier.REPORT, Text.join("; ", (device, note)))
    if pinned and needs_cpu_build(pinned[1].rstrip("."), context):
        exact = f"torch=={pinned[1].rstrip('.')}+cpu"
        more = Text("its x86 wheels need {exact}, from PyTorch's index of CPU builds", exact=exact)
        device = Text.join("; ", (device, more))
    return RequirementChange(
        FRAMEWORK,
        Tier.UNSAFE,
        device,
        LOCAL.sub("", text),
        (f"{other}{beside}{marker}",),
    )


def companion(match: re.Match[str], context: Context) -> RequirementChange:
    """The distribution that brings the origin's device: the target's takes its place, or none."""
    name, other = match["name"], context.chip.distribution
    if other is None or other == FRAMEWORK or context.style.portable:
        return RequirementChange(
            name,
            Tier.REPORT,
            Text("brings the device of {origin} only", origin=context.origin.title),
        )
    after = f"{other}{match['versions']}{match['rest']}"
    return RequirementChange(
        name,
        Tier.UNSAFE,
        Text("{other} brings the device of {chip}", other=other, chip=context.chip.title),
        after,
    )


def needs_cpu_build(version: str, context: Context) -> bool:
    """Whether the chip's x86 wheels for this torch ask for its build `+cpu`."""
    advice = context.chip.package_advice(FRAMEWORK)
    try:
        return bool(advice and advice.cpu_builds) and SpecifierSet(
            advice.cpu_builds if advice else ""
        ).contains(version)
    except (InvalidSpecifier, InvalidVersion):
        return False


def outside(versions: str, context: Context) -> str:
    """A warning where no known version of the chip's package is in a range; empty otherwise."""
    given = {str(each["torch"]) for each in context.chip.versions if each.get("torch")}
    try:
        wanted = SpecifierSet(versions.strip(" ()"))
    except InvalidSpecifier:
        return ""
    if not given or any(wanted.contains(each) for each in given):
        return ""
    return Text(
        "no build for torch {wanted} is known (known: {listed})",
        wanted=versions,
        listed=", ".join(sorted(given, key=Version, reverse=True)),
    )


def warn_unlisted(version: str, context: Context) -> str:
    """A warning where the chip's list of versions lacks this one; empty otherwise."""
    given = {str(each["torch"]) for each in context.chip.versions if each.get("torch")}
    listed = sorted(given, key=Version, reverse=True)
    wanted = version.rstrip(".")
    if not listed or any(f"{each}.".startswith(f"{wanted}.") for each in listed):
        return ""
    return Text(
        "no build for torch {wanted} is known (known: {listed})",
        wanted=wanted,
        listed=", ".join(listed),
    )


def index_change(url: str, context: Context) -> tuple[int, int, str | None] | None:
    """`…/whl/cu121` → `…/whl/cpu`, as a span of `url`: the device comes with another package.

    The text is None where that is not so: the target has builds of its own, or both must work.
    """
    match = INDEX.search(url)
    if match is None or not context.origin.origin:
        return None
    stays = context.chip.keeps_device or context.style.portable
    return (*match.span(), None if stays else "cpu")


def index_reason(context: Context) -> str:
    """What to say about such an index."""
    if context.chip.keeps_device:
        return Text("{chip} has builds of its own, from another index", chip=context.chip.title)
    return "torch itself comes from the plain index; the device is another package"
