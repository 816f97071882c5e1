"""Questions for the origin's device that code elsewhere answers or asks as well."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

from joymigrate.rewrite import flow_sinks

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module


def is_shared(module: Module, node: ast.AST) -> bool:
    """Whether a name, attribute or call asks what another function or file may ask as well.

    `has_gpu()`, `env.has_gpu`, an imported `HAS_GPU`; not what torch is asked, nor a variable.
    """
    name = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name, (ast.Name, ast.Attribute)):
        return False
    dotted = module.names.dotted(name)
    if dotted is not None:
        place = module.project.locate(dotted)
        return place is not None and bool(place[1])
    if isinstance(name, ast.Name):
        found = module.names.lookup(name.id, name)
        return isinstance(node, ast.Call) and found is not None and found[0] is module.names.root
    origin = module.context.origin
    asked = flow_sinks.load(origin.device).everyday | {origin.tensor["is_cuda"]}
    bare = not isinstance(node, ast.Call) or not (node.args or node.keywords)
    return bare and name.attr not in asked


def of_library(module: Module, dotted: str) -> bool:
    """Whether a name is another package's question for the origin's device, which stays.

    `mmengine.device.is_cuda_available`, `transformers.utils.is_torch_cuda_available`.
    """
    asked = f".{module.vocabulary.device}.is_available"  # `numba.cuda.is_available`
    named = question_names(module.vocabulary.device).fullmatch(dotted.rpartition(".")[2])
    if not named and not dotted.endswith(asked):
        return False
    return not dotted.startswith("torch.") and module.project.locate(dotted) is None


@functools.cache
def question_names(device: str) -> re.Pattern[str]:
    """Names of questions for a device."""
    return re.compile(rf"_?(?:is|has)_(?:torch_)?{re.escape(device)}(?:_is)?_available", re.I)
