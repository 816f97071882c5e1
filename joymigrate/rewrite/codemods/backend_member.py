"""`torch.distributed.Backend.NCCL`: the origin's collective backend as a member of torch's class.

A backend that is registered with torch gets a member of its own name in capitals.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.codemods.device_names import need
from joymigrate.rewrite.module import Module

CLASSES = ("torch.distributed.Backend", "torch.distributed.distributed_c10d.Backend")


def find(module: Module) -> Iterator[Finding]:
    """Findings for the member that stands for the origin's backend."""
    words = module.vocabulary
    if words.backend == words.to_backend or words.backend.upper() not in module.source.text:
        return
    members = {f"{name}.{words.backend.upper()}" for name in CLASSES}
    for top, dotted in module.names.imported_chains():
        if dotted not in members or not isinstance(top, ast.Attribute):
            continue
        token, guard = module.token(top), module.guarded(top)
        if token is None or guard is not None:
            yield module.find("JM130", top, tier=Tier.REPORT, reason=guard or "inside an f-string")
            continue
        edit = (*token, words.to_backend.upper())
        if module.context.style is Style.AGNOSTIC:
            compared = isinstance(getattr(top, "parent", None), ast.Compare)
            name = "accelerator_backend" if compared else "dist_backend"
            edit = (*module.span(top), f"{module.helper}.{name}()")
        yield module.find("JM130", top, edits=[edit], needs=need(module, top))
