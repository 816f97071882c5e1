"""`torch.cuda.X` in torch's portable words, by the table."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.codemods.integer_devices import is_number
from joymigrate.rewrite.guards import branches
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.portable.table import PortableForm, forms, unknown
from joymigrate.rewrite.portable.words import kind, stands_free, there, torch_at

FAILS = "without an accelerator {name} fails, where the origin's did not: ask for one before"
SEEDS = "torch.manual_seed also seeds the host, which this line did not"
SEEDED = "torch.manual_seed seeds every device with this value already"
NO_STREAM = "None is no stream to `with`, where torch.cuda.stream(None) did nothing"
NUMBER = "torch.accelerator.device_index takes a card's number alone"
LIMITS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.For, ast.AsyncFor, ast.While)
MADE = ("Stream", "current_stream", "default_stream")


@dataclass(frozen=True, slots=True)
class PortableName:
    """What becomes of one name; without edits torch has no portable form of it."""

    node: ast.AST
    edits: tuple[tuple[int, int, str], ...] = ()
    tier: Tier = Tier.SAFE
    reason: str | None = None
    needs: str | None = None


def write_name(module: Module, rule: str, node: ast.expr, known: str) -> Finding:
    """`torch.cuda.<known>` in torch's portable words; a report where it has none."""
    new = write(module, node, known)
    if not new.edits:
        return module.find(rule, node, tier=Tier.REPORT, reason=new.reason)
    edits = list(new.edits)
    after = "" if new.reason == SEEDED else None  # the line goes away
    return module.find(
        rule, new.node, after=after, edits=edits, tier=new.tier, reason=new.reason, needs=new.needs
    )


def write(module: Module, node: ast.expr, known: str) -> PortableName:
    """The edits of one use of a name; `node` is the chain that stands for it."""
    form = forms().get(known)
    if form is None or "\n" in module.text(node):
        return PortableName(node, reason=unknown(known))
    root = root_of(node)
    torch, needs = torch_at(module, node)
    if module.names.dotted(root) == "torch":
        torch, needs = module.text(root), None
    call = getattr(node, "parent", None)
    call = call if isinstance(call, ast.Call) and call.func is node else None
    span, to = module.span(node), form.to.replace("torch", torch, 1)
    new = PortableName(node, ((*span, to),), needs=needs)
    if form.kind == "module":
        to = f"{torch}.get_device_module().{known.rpartition('.')[2]}"
    if form.kind in ("name", "module"):
        new = replace(new, edits=((*span, to),))
        return new if form.host is None or there(module, node) else behind(module, new, call, form)
    if form.kind == "decorated":
        edits = write_decorated(module, node, call, to)
        return replace(new, edits=tuple(edits or ()), reason=unknown(known))
    if call is None:
        return PortableName(node, reason=unknown(known))
    if form.kind == "index":
        number = bool(call.args) and is_number(call.args[0])
        return new if number else replace(new, tier=Tier.UNSAFE, reason=NUMBER)
    if form.kind == "seeded":
        if not is_seeded(module, call):
            return replace(new, tier=Tier.UNSAFE, reason=SEEDS)
        line = whole_line(module, call.parent)  # type: ignore[attr-defined]
        return PortableName(node, ((*line, ""),) if line is not None else (), reason=SEEDED)
    if form.kind == "entered":
        inside = tuple(write_entered(module, call) or ())
        new = replace(new, node=call, edits=inside, reason=unknown(known), needs=None)
        sure = bool(inside) and is_stream(module, call.args[0])
        return new if sure or not inside else replace(new, tier=Tier.UNSAFE, reason=NO_STREAM)
    return replace(new, edits=((*span, to), *write_typed(module, call, form)))


def behind(
    module: Module, new: PortableName, call: ast.Call | None, form: PortableForm
) -> PortableName:
    """A call that a host alone answers otherwise, behind the question for an accelerator."""
    torch, _ = torch_at(module, new.node)
    asked = f"{torch}.accelerator.is_available()"
    (first, last, to), *_ = new.edits
    statement = getattr(call, "parent", None)
    if call is not None and isinstance(statement, ast.Expr):
        start = module.source.starts[statement.lineno - 1]
        indent = module.source.text[start : module.span(statement)[0]]
        if not indent.strip():
            head = f"if {asked}:{module.source.newline}{indent}    "
            return replace(new, edits=((first, last, head + to),))
    elif call is not None and form.host != "nothing":
        left, right = ("", "") if stands_free(call) else ("(", ")")
        end = module.span(call)[1]
        tail = f" if {asked} else {form.host}{right}"
        return replace(new, edits=((first, last, left + to), (end, end, tail)))
    return replace(new, tier=Tier.UNSAFE, reason=Text(FAILS, name=to))


def whole_line(module: Module, node: ast.stmt) -> tuple[int, int] | None:
    """The line of a statement with its end; None where it is not alone there or in its block."""
    owner = getattr(node, "parent", None)
    if not any(
        node in b and len(b) > 1 for b in (getattr(owner, "body", []), getattr(owner, "orelse", []))
    ):
        return None
    (start, end), starts = module.span(node), module.source.starts
    first = starts[node.lineno - 1]
    if module.source.text[first:start].strip() or node.end_lineno >= len(starts):  # type: ignore[operator]
        return None
    last = starts[node.end_lineno or node.lineno]
    return None if module.source.text[end:last].strip() else (first, last)


def root_of(node: ast.expr) -> ast.expr:
    """The name at the start of a chain."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def is_seeded(module: Module, call: ast.Call) -> bool:
    """Whether torch is seeded with the same value wherever a call runs, in its block or in one
    around it: once more changes nothing. A loop seeds each time."""
    at: ast.AST = call
    while not isinstance(at, LIMITS):
        above = getattr(at, "parent", None)
        if above is None:
            return False
        block = next((each for each in branches(above) if at in each), [])
        if any(each is not at and seeds_same(module, each, call) for each in block):
            return True
        at = above
    return False


def seeds_same(module: Module, statement: ast.AST, call: ast.Call) -> bool:
    """Whether a statement seeds torch with the arguments of a call."""
    other = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(other, ast.Call)
        and module.names.dotted(other.func) == "torch.manual_seed"
        and ast.dump(ast.Tuple(other.args)) == ast.dump(ast.Tuple(call.args))
    )


def write_entered(module: Module, call: ast.Call) -> list[tuple[int, int, str]] | None:
    """`with torch.cuda.stream(s):` as `with s:`."""
    item = getattr(call, "parent", None)
    given = call.args[0] if len(call.args) == 1 and not call.keywords else None
    if not isinstance(item, ast.withitem) or given is None or item.optional_vars is not None:
        return None
    (start, end), (left, right) = module.span(call), module.span(given)
    return [(start, left, ""), (right, end, "")]


def is_stream(module: Module, given: ast.expr) -> bool:
    """Whether a value is seen to be a stream: made as one, or a parameter that is called one."""
    homes = {f"{module.vocabulary.module}.{each}" for each in MADE}
    values: list[ast.expr | None] = [given]
    if isinstance(given, ast.Name):
        found = module.names.lookup(given.id, given)
        values = (
            [one.value or getattr(one.node, "annotation", None) for one in found[1]]
            if found
            else []
        )
    elif isinstance(given, ast.Attribute):
        values = [
            each.value for each in module.names.nodes[ast.Assign]
            if any(getattr(t, "attr", None) == given.attr for t in each.targets)
        ]  # fmt: skip
    made = [each.func if isinstance(each, ast.Call) else each for each in values]
    return bool(made) and all(each and module.names.dotted(each) in homes for each in made)


def write_typed(
    module: Module, call: ast.Call, form: PortableForm | None = None
) -> list[tuple[int, int, str]]:
    """Edits inside the call of autocast or a gradient scaler: the device's type in front, and
    `enabled`, so that on a host alone it stays off as it was."""
    torch, _ = torch_at(module, call)
    edits: list[tuple[int, int, str]] = []
    if form is not None:
        opening = module.source.text.index("(", module.span(call.func)[1]) + 1
        comma = ", " if call.args or call.keywords else ""
        edits.append((opening, opening, kind(module, call) + comma))
        for name, value in zip(form.order, call.args, strict=False):
            at = module.span(value)[0]
            edits.append((at, at, f"{name}="))
    return [*edits, *ask_enabled(module, call, form, torch)]


def ask_enabled(
    module: Module, call: ast.Call, form: PortableForm | None, torch: str
) -> list[tuple[int, int, str]]:
    """The edit that asks for an accelerator in `enabled`; none where one is known to be there."""
    if there(module, call) or any(word.arg is None for word in call.keywords):
        return []
    asked = f"{torch}.accelerator.is_available()"
    given = next((each.value for each in call.keywords if each.arg == "enabled"), None)
    if given is None and form is not None and form.order and call.args:
        given = call.args[0]
    if given is None:
        if module.source.text[: module.span(call)[1] - 1].rstrip().endswith(","):
            at = module.span(call)[1] - 1
            return [(at, at, f" enabled={asked}")]
        at = module.span(call)[1] - 1
        comma = ", " if call.args or call.keywords or form is not None else ""
        return [(at, at, f"{comma}enabled={asked}")]
    start, end = module.span(given)
    if isinstance(given, ast.Constant):
        return [(start, end, asked)] if given.value is True else []
    plain = isinstance(given, (ast.Name, ast.Attribute, ast.Call))
    left, right = ("", "") if plain else ("(", ")")
    return (
        [(start, start, f"{asked} and {left}"), (end, end, right)]
        if right
        else [(start, start, f"{asked} and ")]
    )


def write_decorated(
    module: Module, node: ast.expr, call: ast.Call | None, to: str
) -> list[tuple[int, int, str]] | None:
    """`@torch.cuda.amp.custom_fwd` with its device type."""
    name = f"device_type={kind(module, node)}"
    if call is None:
        function = getattr(node, "parent", None)
        if node not in getattr(function, "decorator_list", ()):
            return None
        return [(*module.span(node), f"{to}({name})")]
    if call.args:
        return None
    opening = module.source.text.index("(", module.span(node)[1]) + 1
    return [(*module.span(node), to), (opening, opening, name + (", " if call.keywords else ""))]
