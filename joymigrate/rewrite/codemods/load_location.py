"""`torch.load(path)` without map_location: the file names the device it was saved from."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module


def find(module: Module) -> Iterator[Finding]:
    """Findings for loads that would look for the origin's device."""
    if module.vocabulary.same_device:
        return
    for call in module.names.nodes[ast.Call]:
        if module.names.dotted(call.func) != "torch.load":
            continue
        if len(call.args) != 1 or any(k.arg in ("map_location", None) for k in call.keywords):
            continue
        if isinstance(call.args[0], ast.Starred):
            continue
        _, end = module.span(call.args[0])
        yield module.find(
            "JM213", call, edits=[(end, end, ', map_location="cpu"')], tier=Tier.UNSAFE
        )
