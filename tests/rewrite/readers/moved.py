"""One text through its reader: what is found, and what it becomes."""

from __future__ import annotations

from joymigrate import chips
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import readers
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.source import apply_edits, decode


def context_of(to: str = "ascend", origin: str = "nvidia", style: str = "direct") -> Context:
    return Context.between(chips.get(to), chips.get(origin), Style(style))


def found(
    path: str,
    text: str | bytes,
    *,
    to: str = "ascend",
    origin: str = "nvidia",
    style: str = "direct",
) -> list[Finding]:
    """Findings of one file. `path` decides on the reader."""
    data = text.encode() if isinstance(text, str) else text
    folder, _, name = path.rpartition("/")
    kind = readers.kind_of_name(name, folder) or readers.kind_of_head(data[:80])
    assert kind is not None, f"no reader for {path}"
    reader = readers.readers()[kind]
    source = decode(path, data, python=False)
    return list(reader.read(source, context_of(to, origin, style)))


def moved(
    path: str,
    text: str,
    *,
    unsafe: bool = False,
    to: str = "ascend",
    origin: str = "nvidia",
    style: str = "direct",
) -> str:
    """The text after its safe edits, and its unsafe ones on request."""
    return moved_bytes(
        path, text.encode(), unsafe=unsafe, to=to, origin=origin, style=style
    ).decode()


def moved_bytes(
    path: str,
    data: bytes,
    *,
    unsafe: bool = False,
    to: str = "ascend",
    origin: str = "nvidia",
    style: str = "direct",
) -> bytes:
    """`moved` for bytes."""
    tiers = {Tier.SAFE, Tier.UNSAFE} if unsafe else {Tier.SAFE}
    findings = found(path, data, to=to, origin=origin, style=style)
    return apply_edits(data, [edit for f in findings if f.tier in tiers for edit in f.edits])


def rules(path: str, text: str, **options: str) -> list[tuple[str, str, str]]:
    """(rule, tier, what was found) of every finding."""
    return [(f.rule, f.tier.value, f.before) for f in found(path, text, **options)]
