"""conda's environment files: dependencies by conda's own names, with pip's inside."""

from __future__ import annotations

import re

from joymigrate.rewrite.readers._moves import Sites
from joymigrate.rewrite.readers._packages import RULE, package_advice
from joymigrate.rewrite.readers._tree import Mapping, Scalar, Sequence

HEAD = re.compile(r"^dependencies:", re.M)
FRAMEWORK = "pytorch"


def may_be(text: str) -> bool:
    """Whether a YAML file could be an environment file."""
    return bool(HEAD.search(text))


def environment(sites: Sites, root: Mapping) -> bool:
    """Read `root` as an environment file; False if it is something else."""
    listed = root.get("dependencies")
    if not isinstance(listed, Sequence) or not listed.items:
        return False
    if not isinstance(listed.items[0], Scalar) or not (root.get("channels") or root.get("name")):
        return plain(sites, listed)
    channels(sites, root)
    dependencies(sites, listed)
    return True


def plain(sites: Sites, listed: Sequence) -> bool:
    """A file of dependencies alone: conda's when its items are written as conda writes them."""
    conda = any(
        isinstance(item, Scalar) and re.match(r"(?:python|pip)(?:$|=)", item.value)
        for item in listed.items
    )
    if conda:
        dependencies(sites, listed)
    return conda


def channels(sites: Sites, root: Mapping) -> None:
    """The channel of the origin's vendor."""
    listed = root.get("channels")
    for item in listed.items if isinstance(listed, Sequence) else ():
        if isinstance(item, Scalar) and item.value.split("/")[0] == sites.context.origin.name:
            sites.add(RULE, item.start, item.end, reason="a channel of the origin's vendor")


def dependencies(sites: Sites, listed: Sequence) -> None:
    """Items of `dependencies:`, and the list below `pip:`."""
    for item in listed.items:
        if isinstance(item, Scalar):
            spec(sites, item)
        elif isinstance(item, Mapping):
            inner = item.get("pip")
            for each in inner.items if isinstance(inner, Sequence) else ():
                if isinstance(each, Scalar):
                    requirement(sites, each)


def spec(sites: Sites, item: Scalar) -> None:
    """`cudatoolkit=11.3`, `conda-forge::pytorch=2.1=cuda120*`."""
    name = re.split(r"[=<>! \[]", item.value.rpartition("::")[2])[0]
    context = sites.context
    if name == FRAMEWORK and context.chip.distribution != context.origin.distribution:
        reason = f"{context.chip.distribution} is installed with pip beside the plain build"
        sites.add(RULE, item.start, item.end, reason=reason)
        return
    change = package_advice(name, context)
    if change is not None:
        sites.add(RULE, item.start, item.end, reason=change.reason)


def requirement(sites: Sites, item: Scalar) -> None:
    """An item of the `pip:` list. A companion is named, not written: order matters to pip."""
    change = package_advice(item.value, sites.context)
    if change is None:
        return
    span = item.word.span(0, len(item.value))
    if change.after is None or span is None or change.after == item.value or change.also:
        also = f"; add {', '.join(change.also)}" if change.also else ""
        sites.add(RULE, item.start, item.end, reason=change.reason + also)
        return
    sites.add(RULE, *span, change.after, tier=change.tier, reason=change.reason)
