"""`x.cuda()`, `x.is_cuda` and classes that define such a method themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import foreign, own_kernels, under_shim
from joymigrate.rewrite.codemods.device_names import need
from joymigrate.rewrite.device_texts import last_name
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.portable.moves import may_be_none, write_move
from joymigrate.rewrite.portable.words import torch_at, word
from joymigrate.rewrite.receivers import classes_here, doubtful, is_torchs
from joymigrate.rewrite.values.graph import SETTINGS

OWN = "a class of this project defines its own {method}(); the receiver may be one of them"

# What a test asks of a method that it replaced: `batch["x"].cuda.assert_called_once()`.
MOCKED = (
    "assert_called", "assert_called_once", "assert_called_with", "assert_called_once_with",
    "assert_any_call", "assert_not_called", "return_value", "side_effect", "called", "call_count",
)  # fmt: skip

OWN_FLAG = "a class of this project has a {flag} of its own; the receiver may be one of them"


def find(module: Module) -> Iterator[Finding]:
    """Findings for the origin's tensor methods and attributes."""
    if module.vocabulary.same_device:
        return
    tensor = module.vocabulary.relation.tensor
    origin = module.context.origin.tensor
    method, flag = origin["cuda"], origin["is_cuda"]
    for node in module.names.nodes[ast.Attribute]:
        if node.attr == method:
            yield from device_method(module, node, tensor[method])
        elif node.attr == flag and isinstance(node.ctx, ast.Load):
            yield from device_flag(module, node, tensor[flag])
        elif node.attr == flag:
            module.handled.add(node)  # no tensor's: that one can't be set
    for call in module.names.nodes[ast.Call]:
        if getattr(call.func, "id", "") == "getattr" and name_asked(call) == method:
            yield from method_by_name(module, call, tensor[method])
    for node in module.names.nodes[ast.FunctionDef]:
        owner = getattr(node, "parent", None)
        if node.name == method and isinstance(owner, ast.ClassDef):
            yield module.find(
                "JM110",
                name_span(module, node),
                tier=Tier.REPORT,
                reason=Text(
                    "{owner} defines {method}() itself: rename it with its callers",
                    owner=owner.name,
                    method=method,
                ),
            )


def name_span(module: Module, node: ast.FunctionDef) -> tuple[int, int]:
    """Span of a function's name."""
    start, _ = module.span(node)
    at = module.source.text.index(node.name, start + len("def "))
    return at, at + len(node.name)


def device_method(module: Module, node: ast.Attribute, to: str) -> Iterator[Finding]:
    """`x.cuda(…)`; a bare `x.cuda` that is no name of a module is only reported."""
    dotted = module.names.dotted(node)
    if dotted in (f"torch.Tensor.{node.attr}", f"torch.nn.Module.{node.attr}"):
        yield find_unbound(module, node, to)
        return
    if dotted is not None and not project_value(module, dotted):
        return  # `torch.cuda`, `numba.cuda`: a name, not a method
    call = getattr(node, "parent", None)
    token = module.token(node)
    if token is None:
        yield module.find("JM110", node, tier=Tier.REPORT, reason="inside a multi-line f-string")
        return
    if not isinstance(call, ast.Call) or call.func is not node:
        if isinstance(call, ast.Attribute) and call.attr in MOCKED:
            yield find_mocked(module, node, token, to)
        elif plain_value(module, node):
            yield module.find("JM110", node, tier=Tier.REPORT, reason="not called here")
        return
    whole = module.span(call)
    span = (token[0] - 1, whole[1])
    reason = module.guarded(node)
    if reason is not None:
        yield module.find("JM110", span, tier=Tier.REPORT, reason=reason)
        return
    tier, needs = Tier.SAFE, need(module, node)
    edits = [(*token, to)]
    if module.context.style is Style.SHIM:
        if not under_shim.takes_device(module, call):
            return
        edits = [(*token, "to")]
        module.unreached.add(module.source.position(span[0]))
        if len(call.args) > 1:
            reason = under_shim.BY_NUMBER
            yield module.find("JM110", span, tier=Tier.REPORT, reason=reason)
            return
    elif module.context.style is Style.DIRECT and is_given_device(module, call):
        edits, needs = [(*token, "to")], None  # who made the device has the package
    if doubtful(module, node) and module.context.style is not Style.ACCELERATOR:
        if not call.args and not call.keywords and placed_by_to(module, node.attr):
            edits = [(token[0], whole[1], f'to("{module.vocabulary.to_device}")')]
        else:
            tier, reason = Tier.UNSAFE, Text(OWN, method=node.attr)
    if module.context.style is Style.ACCELERATOR:
        given, look = write_move(module, call, token)
        if given is None or (call.args and is_storage(node.value)):
            yield module.find("JM110", span, tier=Tier.REPORT, reason="write `.to(device)`")
            return
        if doubtful(module, node):
            look = Text(OWN, method=node.attr)
        tier = Tier.UNSAFE if look else Tier.SAFE
        yield module.find("JM110", span, edits=given, tier=tier, reason=look, needs=needs)
        return
    if module.context.style is Style.AGNOSTIC:
        placed = placement(module, call, token)
        if placed is None:
            yield module.find("JM110", span, tier=Tier.REPORT, reason="arguments are unpacked")
            return
        edits = placed
    yield module.find("JM110", span, edits=edits, tier=tier, reason=reason, needs=needs)


def is_given_device(module: Module, call: ast.Call) -> bool:
    """Whether `x.cuda(device)` is given a device, or its name, and nothing else.

    A module's method of the target may take a card's number alone (`by_number` of the chip's data),
    where a tensor's takes both. What may be None stays, as `to(None)` moves nothing.
    """
    given = under_shim.given_by_number(module, call)
    if len(given) != 1 or len(call.args) + len(call.keywords) != 1:
        return False
    (value,) = given
    if under_shim.is_made_device(module, value):
        return True
    name = last_name(value)
    return name.lower().endswith("device") and not may_be_none(module, value, name)


def find_mocked(module: Module, node: ast.Attribute, token: tuple[int, int], to: str) -> Finding:
    """A test's question for the method of a mock, which the code under test calls."""
    asked = node.parent  # type: ignore[attr-defined]
    call = getattr(asked, "parent", None)
    if not module.context.style.portable:
        return module.find("JM110", node, edits=[(*token, to)], needs=need(module, node))
    edits = [(*token, "to")]
    if asked.attr.endswith(("_with", "any_call")) and isinstance(call, ast.Call):
        if call.args:
            reason = "the arguments of the call that is asked for; write them with the device"
            return module.find("JM110", node, tier=Tier.REPORT, reason=reason)
        at = module.source.text.index("(", module.span(asked)[1]) + 1
        comma = ", " if call.keywords else ""
        edits.append((at, at, f"{module.helper}.device(){comma}"))
    return module.find("JM110", node, edits=edits, needs=need(module, node))


def name_asked(call: ast.Call) -> str | None:
    """The name that `getattr(x, "name")` asks for."""
    name = call.args[1] if len(call.args) > 1 else None
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


def method_by_name(module: Module, call: ast.Call, to: str) -> Iterator[Finding]:
    """`getattr(x, "cuda")(…)`, or kept in a variable that is called; an option is never called."""
    parent = getattr(call, "parent", None)
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    called = isinstance(parent, ast.Call) and parent.func is call
    if isinstance(target, ast.Name):
        uses = (each.func for each in module.names.nodes[ast.Call])
        named = (use for use in uses if isinstance(use, ast.Name) and use.id == target.id)
        scope = module.names.lookup(target.id, target)
        called = any(module.names.lookup(use.id, use) == scope for use in named)
    name = call.args[1]
    start, end = module.span(name)
    if not called or module.names.dotted(call.args[0]) is not None:
        return
    reason = module.guarded(call)
    if reason is None and (
        module.project.own_methods | classes_here(module, name_asked(call) or "")
    ):
        reason = Text(OWN, method=name_asked(call) or "")
    if reason is None and module.context.style is not Style.DIRECT:
        reason = "the method is looked up by name; write `.to(device)`"
    if reason is not None:
        yield module.find("JM110", name, tier=Tier.REPORT, reason=reason)
        return
    text = module.text(name)
    edits = [(start, end, text[0] + to + text[-1])]
    yield module.find("JM110", name, edits=edits, needs=need(module, name))


def find_unbound(module: Module, node: ast.Attribute, to: str) -> Finding:
    """The method taken from its class: `map(torch.Tensor.cuda, batch)`."""
    token = module.token(node)
    if token is None or module.context.style.portable or module.guarded(node):
        return module.find("JM110", node, tier=Tier.REPORT, reason="the method itself, not called")
    return module.find("JM110", node, edits=[(*token, to)], needs=need(module, node))


def project_value(module: Module, dotted: str) -> bool:
    """Whether a chain that starts at an import ends in a value of this project's modules."""
    return module.project.locate(dotted.rpartition(".")[0]) is not None


def plain_value(module: Module, node: ast.Attribute) -> bool:
    """Whether an uncalled `x.cuda` is likely the method and not a module or a flag of options."""
    parent = getattr(node, "parent", None)
    return (
        isinstance(parent, ast.Call)
        and node in parent.args
        and not isinstance(node.value, ast.Name)
    )


def placed_by_to(module: Module, method: str) -> bool:
    """Whether `x.to(device)` is right for tensors and for each class with a method of its own."""
    here = classes_here(module, method) <= classes_here(module, "to")
    return here and module.project.own_placing


def placement(
    module: Module, call: ast.Call, token: tuple[int, int]
) -> list[tuple[int, int, str]] | None:
    """Edits from `.cuda(…)` to `.to(…)` with the helper's device; None for unpacked arguments."""
    helper = module.helper
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        return None
    edits = [(*token, "to")]
    given = call.args[0] if call.args else None
    named = "device=" if is_storage(call.func.value) else ""  # type: ignore[attr-defined]
    for keyword in call.keywords:
        if keyword.arg == "device":
            given, named = keyword.value, ""
    if given is not None:
        start, end = module.span(given)
        text = module.source.text[start:end]
        if isinstance(given, ast.Constant) and given.value is None:
            return [*edits, (start, end, f"{named}{helper}.device()")]
        # The argument may hold sites of its own, so it is wrapped, not replaced.
        if text.startswith("(") and not text.endswith(")"):
            return None
        return [*edits, (start, start, f"{named}{helper}.device("), (end, end, ")")]
    _, func_end = module.span(call.func)
    opening = module.source.text.index("(", func_end) + 1
    comma = ", " if call.keywords else ""
    return [*edits, (opening, opening, f"{named}{helper}.device(){comma}")]


def is_storage(value: ast.expr) -> bool:
    """Whether a value is what `torch.load` hands to its `map_location`: no tensor.

    A storage's `to` takes the device by its name alone (torch 2.13, `_StorageBase.to`).
    """
    if not isinstance(value, ast.Name):
        return False
    at = getattr(value, "parent", None)
    while isinstance(at, ast.expr) and not isinstance(at, ast.Lambda):
        at = getattr(at, "parent", None)
    given = getattr(at, "parent", None) if isinstance(at, ast.Lambda) else None
    first = at.args.args[0].arg if isinstance(at, ast.Lambda) and at.args.args else ""
    handed = getattr(given, "arg", "") == "map_location" or (
        getattr(getattr(given, "func", None), "attr", "") == "load"
    )
    return value.id == "storage" or (handed and value.id == first)


def device_flag(module: Module, node: ast.Attribute, to: str) -> Iterator[Finding]:
    """`x.is_cuda` of a tensor, storage or module."""
    dotted = module.names.dotted(node)
    token = module.token(node)
    if dotted is not None and not project_value(module, dotted):
        return
    if token is None:
        yield module.find("JM111", node, tier=Tier.REPORT, reason="inside a multi-line f-string")
        return
    if own_flag(module, node):
        module.handled.add(node)  # it says nothing of a tensor
        return
    guard = module.guarded(node) or own_kernels.decides(module, node, tensor=True)
    if module.context.style is Style.SHIM and node.attr in (
        module.context.chip.shim.get("attributes") or ()
    ):
        if guard is not None and module.guarded(node) is None:
            yield under_shim.find_yes(module, node, guard)
        return
    guard = guard or foreign.refuse_portable(module, node.value)
    if guard is not None:
        yield module.find("JM111", node, tier=Tier.REPORT, reason=guard)
        return
    tier, reason = Tier.SAFE, None
    if doubtful(module, node, module.project.own_flags):
        tier, reason = Tier.UNSAFE, Text(OWN_FLAG, flag=node.attr)
    edits = [(*token, to)]
    if module.context.style is Style.ACCELERATOR:
        start, value_end = module.span(node)[0], module.span(node.value)[1]
        torch, _ = torch_at(module, node)
        left, right = ("", "") if compares_freely(node) else ("(", ")")
        asked = f".device.type == {word(torch)}{right}"
        edits = [(start, start, left), (value_end, token[1], asked)]
    elif module.context.style is Style.AGNOSTIC:
        start, _ = module.span(node)
        _, value_end = module.span(node.value)
        edits = [(start, start, f"{module.helper}.is_accel("), (value_end, token[1], ")")]
    yield module.find(
        "JM111", node, edits=edits, tier=tier, reason=reason, needs=need(module, node)
    )


def compares_freely(node: ast.expr) -> bool:
    """Whether a comparison can take a node's place without parentheses."""
    return isinstance(
        getattr(node, "parent", None),
        (ast.If, ast.While, ast.BoolOp, ast.IfExp, ast.Assert, ast.Assign, ast.Return, ast.keyword),
    )


def own_flag(module: Module, node: ast.Attribute) -> bool:
    """Whether a flag is what the project itself gives a value: a class, an option, an assignment.

    `self.is_cuda` of such a class of this file, `args.is_cuda` of a program with that option,
    `hparams.is_cuda` of a class or module that is imported, `opt.is_cuda` where this file sets it.
    """
    owner = module.text(node.value)
    stores = (each for each in module.names.nodes[ast.Attribute] if isinstance(each.ctx, ast.Store))
    if any(each.attr == node.attr and module.text(each.value) == owner for each in stores):
        return True
    if owner == "self":
        return bool(classes_here(module, node.attr))
    own = module.project.own_flags
    if not own:
        return False
    if SETTINGS.search(last_name(node.value)):
        return not is_torchs(module, node.value, set())
    homes = {locate_class(module, each) for each in (node.value, *find_makers(module, node.value))}
    return bool(homes & own)


def find_makers(module: Module, value: ast.expr) -> Iterator[ast.expr]:
    """What is called to make an object: `Settings` of `given = Settings()`."""
    found = module.names.lookup(value.id, value) if isinstance(value, ast.Name) else None
    for binding in found[1] if found else ():
        if isinstance(binding.value, ast.Call):
            yield binding.value.func


def locate_class(module: Module, value: ast.expr) -> str:
    """The file of the project where a class or an object is defined; empty for none."""
    found = module.names.lookup(value.id, value) if isinstance(value, ast.Name) else None
    if found and any(isinstance(each.node, ast.ClassDef) for each in found[1]):
        return module.source.path
    place = module.project.locate(module.names.dotted(value) or "")
    return place[0] if place is not None else ""
