"""conda's environment files: dependencies by conda's own names, with pip's inside."""

from __future__ import annotations

import re

from joymigrate.language import Text
from joymigrate.rewrite.readers._migration_map import Sites
from joymigrate.rewrite.readers._packages import RULE, package_advice
from joymigrate.rewrite.readers._tree import Mapping, ScalarNode, SequenceNode

HEAD = re.compile(r"^dependencies:", re.M)
FRAMEWORK = "pytorch"


def may_be(text: str) -> bool:
    """Whether a YAML file could be an environment file."""
    return bool(HEAD.search(text))


def environment(sites: Sites, root: Mapping) -> bool:
    """Read `root` as an environment file; False if it is something else."""
    listed = root.get("dependencies")
    if not isinstance(listed, SequenceNode) or not listed.items:
        return False
    if not isinstance(listed.items[0], ScalarNode) or not (
        root.get("channels") or root.get("name")
    ):
        return plain(sites, listed)
    channels(sites, root)
    dependencies(sites, listed)
    return True


def plain(sites: Sites, listed: SequenceNode) -> bool:
    """A file of dependencies alone: conda's when its items are written as conda writes them."""
    conda = any(
        isinstance(item, ScalarNode) and re.match(r"(?:python|pip)(?:$|=)", item.value)
        for item in listed.items
    )
    if conda:
        dependencies(sites, listed)
    return conda


def channels(sites: Sites, root: Mapping) -> None:
    """The channel of the origin's vendor."""
    listed = root.get("channels")
    for item in listed.items if isinstance(listed, SequenceNode) else ():
        if isinstance(item, ScalarNode) and item.value.split("/")[0] == sites.context.origin.name:
            sites.add(RULE, item.start, item.end, reason="a channel of the old platform's vendor")


def dependencies(sites: Sites, listed: SequenceNode) -> None:
    """Items of `dependencies:`, and the list below `pip:`."""
    for item in listed.items:
        if isinstance(item, ScalarNode):
            spec(sites, item)
        elif isinstance(item, Mapping):
            inner = item.get("pip")
            for each in inner.items if isinstance(inner, SequenceNode) else ():
                if isinstance(each, ScalarNode):
                    requirement(sites, each)


def spec(sites: Sites, item: ScalarNode) -> None:
    """`cudatoolkit=11.3`, `conda-forge::pytorch=2.1=cuda120*`."""
    name = re.split(r"[=<>! \[]", item.value.rpartition("::")[2])[0]
    context = sites.context
    if name == FRAMEWORK and context.chip.distribution != context.origin.distribution:
        reason = Text(
            "{distribution} is installed with pip beside the plain build",
            distribution=context.chip.distribution,
        )
        sites.add(RULE, item.start, item.end, reason=reason)
        return
    change = package_advice(name, context)
    if change is not None:
        sites.add(RULE, item.start, item.end, reason=change.reason)


def requirement(sites: Sites, item: ScalarNode) -> None:
    """An item of the `pip:` list; what belongs beside it becomes an item of its own."""
    change = package_advice(item.value, sites.context)
    if change is None:
        return
    source = sites.source
    also = [each for each in change.also if re.split(r"[=<>~! ]", each)[0] not in source.text]
    if change.after == item.value and not also:
        return
    line = source.text.rfind("\n", 0, item.start) + 1
    head = source.text[line : item.start]
    span = item.word.span(0, len(item.value))
    if change.after is None or span is None or head.strip() != "-":
        names = Text("; add {names}", names=", ".join(change.also)) if change.also else ""
        sites.add(RULE, item.start, item.end, reason=Text.of(change.reason) + names)
        return
    edits = [(*span, change.after)] if change.after != item.value else []
    added = "".join(f"{source.newline}{head}{each}" for each in also)
    if also:
        end = line + len(source.line_text(source.position(item.start)[0]))
        edits.append((end, end, added))
    sites.add(
        RULE,
        *span,
        "\n".join([change.after, *also]),
        tier=change.tier,
        reason=change.reason,
        edits=edits,
    )
