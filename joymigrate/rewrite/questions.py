"""Questions for the origin's device, and whether code for the device is seen behind them.

if torch.cuda.is_available(): model.cuda()                  it is
device = "cuda" if torch.cuda.is_available() else "cpu"     it is
if x.is_cuda: return fused_scan(x)                          it is not
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from joymigrate.model import Style
from joymigrate.rewrite.expressions import called_name, leaving
from joymigrate.rewrite.for_people import SPOKEN, is_for_eyes
from joymigrate.rewrite.groups import Groups
from joymigrate.rewrite.kernel_names import operator
from joymigrate.rewrite.kernel_tests import SKIPS, find_scopes, skips_with_device
from joymigrate.rewrite.own_kernels import behind
from joymigrate.rewrite.scopes import FUNCTIONS

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

# Parameters that take an answer and mean the device that is there.
# Methods of tensors and modules that change a type or a place, on any device.
PLACING = ("half", "float", "bfloat16", "double", "to", "cpu", "contiguous", "type", "clone")
NEUTRAL = ("pin_memory", "enabled", "default", "non_blocking")


def find_idle(groups: Groups) -> Iterator[int]:
    """Findings of questions behind which no code for the device is seen to move."""
    for question in find(groups.module):
        at = groups.expression_at(groups.module.span(question)[0])
        numbers = groups.members.get(at, []) if at is not None else []
        if any(n not in groups.stay for n in numbers) and is_idle(groups, question):
            yield from numbers


def find_loads(groups: Groups) -> Iterator[tuple[list[int], ast.Call]]:
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


def is_idle(groups: Groups, question: ast.expr) -> bool:
    """Whether no code for the device is seen behind a question about a tensor.

    A question for the platform has one answer in all of a project: it stays alone only where a
    test or a group of processes, which another file starts, stands behind it.
    """
    platform = isinstance(question, ast.Attribute) and (
        question.attr != groups.module.context.origin.tensor["is_cuda"]
    )
    if platform and not (decides_group(groups.module, question) or is_of_test(question)):
        return False
    return not leads_to_device(groups, question)


def decides_group(module: Module, question: ast.expr) -> bool:
    """Whether an expression chooses what a group of processes is asked: `get_world_size() if …`."""
    chosen = (each for each in around(question) if isinstance(each, ast.IfExp))
    return any(
        isinstance(call, ast.Call)
        and (module.names.dotted(call.func) or "").startswith("torch.distributed.")
        for each in chosen
        for branch in (each.body, each.orelse)
        for call in ast.walk(branch)
    )


def is_of_test(question: ast.expr) -> bool:
    """Whether a question decides if a test is skipped, which needs the device."""
    return not skips_with_device(question) and any(
        called_name(each) in SKIPS for each in around(question)
    )


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


def leads_to_device(groups: Groups, question: ast.expr) -> bool:
    """Whether code for the device moves where a question decides, or nothing but words is there."""
    module = groups.module
    at: ast.AST = question
    parent = getattr(question, "parent", None)
    while isinstance(parent, (ast.expr, ast.keyword, ast.comprehension)):
        if isinstance(parent, ast.IfExp) and at is parent.test:
            branches = [parent.body, parent.orelse]
            placed = any(is_general(module, branch) for branch in branches)
            plain = placed or all(is_plain(module, branch) for branch in branches)
            return plain or names_device(module, branches)
        if isinstance(parent, (ast.Lambda, ast.comprehension)):
            return True
        given = isinstance(parent, ast.Call) and at is not parent.func
        if given or isinstance(parent, ast.keyword):
            call = parent if given else getattr(parent, "parent", None)
            if called_name(call) in SKIPS:
                return opens_device_test(groups, question)
            if is_for_eyes(at):
                return True
            if getattr(parent, "arg", None) in NEUTRAL:
                return True
            if not hasattr(builtins, called_name(call)) and not calls_torch(module, call):
                return names_device(module, [call], without=question)  # type: ignore[list-item]
        at, parent = parent, getattr(parent, "parent", None)
    if isinstance(parent, ast.If) and at is parent.test:
        beside = names_device(module, [parent.test], without=question)
        return beside or branch_has_device(groups, parent)
    if isinstance(parent, ast.Assert):
        return moves(groups, find_rest(module, parent))
    if isinstance(parent, (ast.Assign, ast.AnnAssign)):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        return all(is_answer_used(groups, target) for target in targets)
    return True


def moves(groups: Groups, parts: Iterable[ast.AST]) -> bool:
    """Whether an edit is made inside of parts of the code, or the vendor's shim moves them."""
    parts = list(parts)
    if groups.module.context.style is Style.SHIM and names_device(groups.module, parts):
        return True
    return any(number not in groups.stay for number in groups._inside(parts))


def names_device(module: Module, parts: Iterable[ast.AST], without: ast.AST | None = None) -> bool:
    """Whether parts of the code name the origin's device as a value or call its module."""
    words = module.vocabulary
    left_out = set(ast.walk(without)) if without is not None else set()
    for part in parts:
        for each in ast.walk(part):
            if each in left_out:
                continue
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


def is_plain(module: Module, value: ast.expr) -> bool:
    """Whether a value is a constant or a name of torch's: `torch.float16`, `0`, `None`."""
    if isinstance(value, ast.Constant):
        return True
    dotted = module.names.dotted(value) or ""
    return dotted.startswith("torch.") and not dotted.startswith("torch.ops")


def is_general(module: Module, value: ast.expr | None) -> bool:
    """Whether torch itself is called, or a type or place is changed: `x.half()`.

    Not a group of processes: how many there are another file decides.
    """
    func = value.func if isinstance(value, ast.Call) else None
    dotted = (module.names.dotted(func) or "") if func is not None else ""
    if dotted.startswith("torch."):
        return not dotted.startswith("torch.distributed") and not operator(module, dotted)
    return isinstance(func, ast.Attribute) and func.attr in PLACING


def calls_torch(module: Module, call: ast.AST | None) -> bool:
    """Whether torch itself is called."""
    func = getattr(call, "func", None)
    return func is not None and (module.names.dotted(func) or "").startswith("torch.")


def branch_has_device(groups: Groups, branch: ast.If) -> bool:
    """Whether code for the device moves behind a condition, or it only speaks to people."""
    parts = [*behind(branch)[1:], *branch.body]
    if moves(groups, parts) or names_device(groups.module, parts):
        return True
    asked = find_asked(branch.test)
    if asked and any(is_handed_on(part, asked) for part in parts):
        return True
    plain = all(is_plain_statement(groups.module, s) for s in (*branch.body, *branch.orelse))
    if plain and not isinstance(branch.body[-1], ast.Raise):
        return True
    inside = set(groups._inside([branch]))
    rest = groups._inside(find_rest(groups.module, branch)) if leaving(branch) else []
    return any(number not in groups.stay and number not in inside for number in rest)


def is_plain_statement(module: Module, statement: ast.stmt) -> bool:
    """Whether a statement speaks to people, keeps a constant, or asks torch alone."""
    if isinstance(statement, (ast.Pass, ast.Raise)):
        return True
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Expr) and called_name(value) in SPOKEN:
        return True
    if isinstance(statement, ast.Assign) and isinstance(value, ast.Constant):
        return True
    asks = isinstance(statement, (ast.Return, ast.Assign, ast.Expr))
    return asks and is_general(module, value)


def find_asked(test: ast.expr) -> set[str]:
    """Devices whose kind a condition compares: `self._device` of `self._device.type != "cuda"`."""
    found = set()
    for compare in (each for each in ast.walk(test) if isinstance(each, ast.Compare)):
        left = compare.left
        if isinstance(left, ast.Attribute) and left.attr == "type":
            left = left.value
        if isinstance(left, (ast.Name, ast.Attribute)):
            found.add(ast.unparse(left))
    return found


def is_handed_on(part: ast.AST, names: set[str]) -> bool:
    """Whether one of the variables is an argument of a call."""
    return any(
        isinstance(value, (ast.Name, ast.Attribute)) and ast.unparse(value) in names
        for call in ast.walk(part)
        if isinstance(call, ast.Call)
        for value in (*call.args, *(keyword.value for keyword in call.keywords))
    )


def find_rest(module: Module, statement: ast.stmt) -> list[ast.AST]:
    """The function around a statement with its decorators and without it, else the file."""
    function: ast.AST | None = None
    at: ast.AST | None = statement
    while at is not None:
        function = at if isinstance(at, FUNCTIONS[:2]) else function
        at = getattr(at, "parent", None)
    if function is None:
        return [each for each in module.tree.body if each is not statement]
    body = [each for each in function.body if each is not statement]  # type: ignore[attr-defined]
    return [*function.decorator_list, *body]  # type: ignore[attr-defined]


def is_answer_used(groups: Groups, target: ast.expr) -> bool:
    """Whether a variable with an answer decides about code for the device somewhere in the file."""
    module = groups.module
    if isinstance(target, ast.Name):
        name = key = target.id
    elif isinstance(target, ast.Attribute):
        name, key = target.attr, f".{target.attr}"
    else:
        return True  # an entry of a table: told, or read elsewhere
    if moves(groups, groups._guarded_by(key)):
        return True
    nodes = module.names.nodes
    uses = [n for n in nodes[ast.Name] if n.id == name] + [
        n for n in nodes[ast.Attribute] if n.attr == name
    ]
    uses = [use for use in uses if isinstance(use.ctx, ast.Load)]
    if not uses:
        return True  # other files decide
    for use in uses:
        for each in around(use):
            if isinstance(each, ast.IfExp) and names_device(module, [each.body, each.orelse]):
                return True
            if isinstance(each, ast.keyword) and each.arg in NEUTRAL:
                return True
        statement: ast.AST = use
        while not isinstance(statement, ast.stmt):
            statement = getattr(statement, "parent")  # noqa: B009
        if isinstance(statement, ast.If) and names_device(module, [statement]):
            return True
    return False


def opens_device_test(groups: Groups, question: ast.expr) -> bool:
    """Whether code for the device moves in the test that a condition skips."""
    at: ast.AST = question
    while not isinstance(at, ast.stmt):
        above = getattr(at, "parent", None)
        if at in getattr(above, "decorator_list", ()):
            marks = getattr(above, "decorator_list", ())
            within = moves(groups, getattr(above, "body", ()))
            return within or names_device(groups.module, marks, without=question)
        if isinstance(at, ast.Call) and called_name(at) == "param":
            return names_device(groups.module, [at], without=question)
        if above is None:
            break
        at = above
    scopes = find_scopes(groups.module, question)
    return moves(groups, (part for scope in scopes for part in getattr(scope, "body", ())))
