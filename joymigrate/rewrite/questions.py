"""Questions for the device of a tensor, and what stands behind them.

if x.is_cuda: x = x * 2              torch alone stands behind it
if x.is_cuda: return fused_scan(x)   what is called may be the origin's own
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from joymigrate.rewrite.groups import FindingGroups
from joymigrate.rewrite.kernel_names import operator
from joymigrate.rewrite.own_kernels import behind
from joymigrate.rewrite.third_party import is_foreign

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module


def find_open(groups: FindingGroups) -> Iterator[tuple[list[int], str]]:
    """Findings of a tensor's questions before what may be the origin's own, with its name."""
    module = groups.module
    platform = f"{module.vocabulary.module}."
    for question in find(module):
        at = groups.expression_at(module.span(question)[0])
        numbers = groups.members.get(at, []) if at is not None else []
        asks = not (module.names.dotted(question) or "").startswith(platform)
        if asks and any(number not in groups.stay for number in numbers):
            name = next(find_unknown(module, find_decided(question)), None)
            if name is not None:
                yield numbers, name


def find_decided(question: ast.expr) -> list[ast.AST]:
    """What runs where a question is answered with yes."""
    at: ast.AST = question
    while isinstance(at, (ast.expr, ast.keyword)):
        parent = getattr(at, "parent", None)
        if isinstance(parent, (ast.If, ast.IfExp)) and parent.test is at:
            return behind(parent)[1:]
        at = parent  # type: ignore[assignment]
    return []


def find_unknown(module: Module, parts: Iterable[ast.AST]) -> Iterator[str]:
    """Functions that are called and that neither torch, Python nor the project's text defines."""
    for call in (node for part in parts for node in ast.walk(part)):
        func = getattr(call, "func", None)
        if isinstance(func, (ast.Name, ast.Attribute)) and is_unknown(module, func):
            yield ast.unparse(func)


def is_unknown(module: Module, func: ast.Name | ast.Attribute) -> bool:
    """Whether nobody knows what a called name does on the target."""
    root: ast.expr = func
    while isinstance(root, ast.Attribute):
        root = root.value
    found = module.names.lookup(root.id, func) if isinstance(root, ast.Name) else None
    names = [module.names.dotted(func), *(b.dotted for b in found[1])] if found else []
    if any(name is not None and is_elsewhere(module, name) for name in names):
        return True
    plain = isinstance(func, ast.Name) and not hasattr(builtins, func.id)
    return plain and found is None


def is_elsewhere(module: Module, dotted: str) -> bool:
    """Whether neither the project's text nor a known package defines a name."""
    place = module.project.locate(dotted)
    if place is None:
        return operator(module, dotted) or is_foreign(module, dotted)
    name = place[1].partition(".")[0]
    return bool(name) and not module.project.defines(place[0], name)


def find_loads(groups: FindingGroups) -> Iterator[tuple[list[int], ast.Call]]:
    """Findings of questions before a load that is given no place, which the other branch gives.

    `if torch.cuda.is_available(): torch.load(p)`, `else: torch.load(p, map_location="cpu")`: a file
    of the origin's is loaded in the second one alone.
    """
    module = groups.module
    if "map_location" not in module.source.text:
        return
    for branch in module.names.nodes[ast.If]:
        placed = {
            ast.unparse(call.func)
            for call in find_calls(branch.orelse)
            if any(keyword.arg == "map_location" for keyword in call.keywords)
        }
        bare = [
            call
            for call in find_calls(branch.body if placed else [])
            if not any(keyword.arg == "map_location" for keyword in call.keywords)
            and len(call.args) == 1
            and ast.unparse(call.func) in placed
        ]
        if bare and names_device(module, [branch.test]):
            yield [*groups._inside([branch.test]), *groups._inside(branch.body)], bare[0]


def find_calls(part: Iterable[ast.stmt]) -> Iterator[ast.Call]:
    """The calls in some statements."""
    nodes = (node for statement in part for node in ast.walk(statement))
    return (node for node in nodes if isinstance(node, ast.Call))


def find(module: Module) -> Iterator[ast.expr]:
    """The questions of a module: for the platform, for a tensor's device, for a device's kind.

    The number of cards is one where it is compared.
    """
    flag, device = module.context.origin.tensor["is_cuda"], module.vocabulary.device
    available, count = (
        f"{module.vocabulary.module}.{name}" for name in ("is_available", "device_count")
    )
    for node in module.names.nodes[ast.Attribute]:
        if node.attr not in (flag, "is_available", "device_count"):
            continue
        dotted = module.names.dotted(node)
        compared = dotted == count and any(isinstance(e, ast.Compare) for e in around(node))
        asked = dotted == available and isinstance(getattr(node, "parent", None), ast.Call)
        if node.attr == flag or asked or compared:
            yield node
    for compare in module.names.nodes[ast.Compare]:
        operands = (compare.left, *compare.comparators)
        texts = (e.value for e in operands if isinstance(e, ast.Constant))
        told = any(isinstance(text, str) and device in text for text in texts)
        if told and any(is_of_tensor(each) for each in operands):
            yield compare


def is_of_tensor(value: ast.expr) -> bool:
    """Whether a value is the kind of a tensor's own device: `x.device.type`.

    Any other text or device moves with what it is compared with.
    """
    owner = value.value if isinstance(value, ast.Attribute) and value.attr == "type" else None
    return (
        isinstance(owner, ast.Attribute)
        and owner.attr == "device"
        and (getattr(owner.value, "id", "") != "self")
    )


def around(node: ast.AST) -> Iterator[ast.AST]:
    """What is above a node inside of its statement."""
    at = getattr(node, "parent", None)
    while isinstance(at, (ast.expr, ast.keyword)):
        yield at
        at = getattr(at, "parent", None)


def names_device(module: Module, parts: Iterable[ast.AST]) -> bool:
    """Whether parts of the code name the origin's device as a value or call its module."""
    words = module.vocabulary
    for part in parts:
        for each in ast.walk(part):
            if isinstance(each, ast.Attribute) and each.attr == words.device:
                return True
            value = each.value if isinstance(each, ast.Constant) else None
            if isinstance(value, str) and (
                words.exact_device.match(value)
                or words.device_prefix.match(value)
                or value == words.backend
            ):
                return True
    return False
