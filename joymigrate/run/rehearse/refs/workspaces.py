"""How much workspace a kernel needs, asked before its graph is captured.

Computing here needs none: one element, so that the tensor has an address. What a chip answers is
decided in the kernel's tiling, and its memory is missing in the rehearsal's peak.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference, signatures


def declare(name: str) -> None:
    """The reference of one such operator; attention's workspaces take the dtype of the query."""

    @reference(name, source="op-plugin: a tensor as long as the kernel says")
    def one_element(**given: Any) -> Tensor:
        query = given.get("query")
        if name.startswith("npu::") and isinstance(query, Tensor):
            return query.new_zeros(1)
        return torch.zeros(1, dtype=torch.uint8)


for _name in signatures():
    if _name.partition(".")[0].endswith(("_get_max_workspace", "_get_workspace")):
        declare(_name)
