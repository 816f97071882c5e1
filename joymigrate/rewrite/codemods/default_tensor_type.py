"""`torch.set_default_tensor_type("torch.cuda.FloatTensor")`: a default device and data type.

torch takes a typed tensor of the host or of its own CUDA build there, and of no other device
(torch 2.13, `invalid type object`). What is written instead does not reach `torch.Tensor(…)`, which
stays on the host (torch 2.13, `_device_constructors`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.codemods.device_names import need, render
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.portable.words import place, torch_at

SETTER = "torch.set_default_tensor_type"
CONSTRUCTOR = "torch.Tensor("
UNREACHED = (
    "the project calls torch.Tensor(…), which torch.set_default_device(…) leaves on the host"
)
TYPES = {
    "FloatTensor": None,  # torch's own default
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "DoubleTensor": "float64",
}


def find(module: Module) -> Iterator[Finding]:
    """Findings for the calls that set a typed tensor of the origin as the default."""
    if module.vocabulary.same_device or module.context.style is Style.SHIM:
        return
    for call in module.names.nodes[ast.Call]:
        if module.names.dotted(call.func) != SETTER or len(call.args) != 1 or call.keywords:
            continue
        given = call.args[0]
        parts = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
        kinds = [read_type(module, part) for part in parts]
        names = {name for _, name in kinds}
        if not any(origin for origin, _ in kinds):
            continue
        module.handled.update(each for part in parts for each in ast.walk(part))
        reason = module.guarded(call)
        statement = isinstance(getattr(call, "parent", None), ast.Expr)
        if reason is None and (len(names) > 1 or not names <= set(TYPES) or not statement):
            reason = "write torch.set_default_device(…) and torch.set_default_dtype(…)"
        if reason is not None:
            yield module.find("JM106", call, tier=Tier.REPORT, reason=reason)
            continue
        edits = [(*module.span(call.func), render(module, "torch.set_default_device"))]
        for part, (origin, _) in zip(parts, kinds, strict=True):
            edits.append((*module.span(part), device(module, part) if origin else '"cpu"'))
        dtype = TYPES[names.pop()]
        if dtype:
            torch, end = torch_at(module, call)[0], module.span(call)[1]
            edits.append((end, end, f"; {torch}.set_default_dtype({torch}.{dtype})"))
        found = module.find("JM106", call, edits=edits, needs=need(module, call))
        yield found.doubt(UNREACHED) if module.project.speaks_of(CONSTRUCTOR) else found


def read_type(module: Module, node: ast.expr) -> tuple[bool, str]:
    """Whether an expression is a typed tensor of the origin (or of the host), and its name."""
    text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    dotted = text if isinstance(text, str) else module.names.dotted(node) or ""
    home, _, name = dotted.rpartition(".")
    return home == module.vocabulary.module, name if home.startswith("torch") else ""


def device(module: Module, node: ast.expr) -> str:
    """The device as the style writes it."""
    if module.context.style is Style.AGNOSTIC:
        return f"{module.helper}.device_type()"
    if module.context.style is Style.ACCELERATOR:
        chosen = isinstance(getattr(node, "parent", None), ast.IfExp)
        text = place(module, node)
        return f"({text})" if chosen and " or " in text else text
    return f'"{module.vocabulary.to_device}"'
