"""Devices and backends as expressions of torch's, for whichever accelerator is there.

`torch.accelerator.current_accelerator()` names the device that torch was *built* for, so a question
whether one is there stays a question.
"""

from __future__ import annotations

import ast

from joymigrate.rewrite.device_places import asks
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.scopes import FUNCTIONS, NameScope

HOST = 'torch.device("cpu")'


def torch_at(module: Module, node: ast.AST) -> tuple[str, str | None]:
    """What torch is called at a place, and `torch` where the file must import it first."""
    root = module.names.root.names
    for name in dict.fromkeys(("torch", *root)):
        found = module.names.lookup(name, node)
        if found is None or {one.dotted for one in found[1]} != {"torch"}:
            continue
        late = all(getattr(one.node, "lineno", 0) > getattr(node, "lineno", 0) for one in found[1])
        if not late or module.names.enclosing(node, FUNCTIONS) is not None:
            return name, None
    return "torch", "torch"


def current(torch: str) -> str:
    """The accelerator as a `torch.device`; None where torch was built without one."""
    return f"{torch}.accelerator.current_accelerator()"


def word(torch: str) -> str:
    """Its type to compare with: on a host alone it is equal to no device's."""
    return f"str({current(torch)})"


def there(module: Module, node: ast.AST) -> bool:
    """Whether code runs only where a question for the device was answered by yes."""
    at, parent = node, getattr(node, "parent", None)
    while parent is not None and not isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if isinstance(parent, ast.If) and at in parent.body and asks(module, parent.test):
            return True
        if isinstance(parent, ast.IfExp) and at is parent.body and asks(module, parent.test):
            return True
        at, parent = parent, getattr(parent, "parent", None)
    return False


def place(module: Module, node: ast.AST) -> str:
    """The device to place a value on: the program's own name for it, or torch's."""
    torch, _ = torch_at(module, node)
    own = own_device(module, node)
    if own is not None:
        return own[0]
    return current(torch) if there(module, node) else f"{current(torch)} or {host(torch)}"


def kind(module: Module, node: ast.AST) -> str:
    """The device's type as a text."""
    torch, _ = torch_at(module, node)
    own = own_device(module, node)
    if own is not None:
        return own[0] if own[1] else f"{own[0]}.type"
    if there(module, node):
        return f"{current(torch)}.type"
    return f"({current(torch)} or {host(torch)}).type"


def host(torch: str) -> str:
    """`torch.device("cpu")` as a module writes torch."""
    return HOST.replace("torch", torch, 1)


def backend(module: Module, node: ast.AST, compare: bool) -> str:
    """The collective backend of the accelerator."""
    torch, _ = torch_at(module, node)
    if compare:
        return f"{torch}.distributed.Backend.default_device_backend_map.get({word(torch)})"
    device = current(torch) if there(module, node) else f'{current(torch)} or "cpu"'
    return f"{torch}.distributed.get_default_backend_for_device({device})"


def own_device(module: Module, node: ast.AST) -> tuple[str, bool] | None:
    """A name of the file for the chosen device that is bound before a place, and whether it is
    a text: `device = torch.device("cuda" if torch.cuda.is_available() else "cpu")`."""
    scope: NameScope | None = module.names.scope_of(node)
    while scope is not None:
        for name, bindings in scope.names.items():
            found = module.names.lookup(name, node)
            if len(bindings) != 1 or found is None or found[0] is not scope:
                continue
            binding = bindings[0]
            if binding.kind == "function" and scope.parent is None:
                chosen = find_returned(binding.node)
                as_text = None if chosen is None else choice(module, chosen)
                inside = module.names.enclosing(node, (ast.FunctionDef,)) is binding.node
                if as_text is not None and not inside:
                    return f"{name}()", as_text
            if binding.kind != "assign" or binding.value is None:
                continue
            statement = getattr(binding.value, "parent", None)
            home = getattr(statement, "parent", None)
            early = getattr(statement, "end_lineno", 0) < getattr(node, "lineno", 0)
            if home is scope.node and early:
                as_text = choice(module, binding.value)
                if as_text is not None:
                    return name, as_text
        scope = scope.parent
    return None


def find_returned(node: ast.AST) -> ast.expr | None:
    """What a function without required parameters returns, where that is all it does."""
    if not isinstance(node, ast.FunctionDef) or len(node.args.args) > len(node.args.defaults):
        return None
    body = [
        each
        for each in node.body
        if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    ]
    only = body[0] if len(body) == 1 else None
    return only.value if isinstance(only, ast.Return) else None


def choice(module: Module, value: ast.expr) -> bool | None:
    """Whether a value is the choice between device and host as a text (True) or as a
    `torch.device` (False); None for anything else."""
    made = isinstance(value, ast.Call) and module.names.dotted(value.func) == "torch.device"
    inner = value.args[0] if made and len(value.args) == 1 and not value.keywords else value  # type: ignore[attr-defined]
    if not isinstance(inner, ast.IfExp) or not isinstance(inner.test, ast.Call):
        return None
    asked = module.names.dotted(inner.test.func) == f"{module.vocabulary.module}.is_available"
    words = (getattr(inner.body, "value", None), getattr(inner.orelse, "value", None))
    return not made if asked and words == (module.vocabulary.device, "cpu") else None


def stands_free(node: ast.AST | None) -> bool:
    """Whether an `or` or an `if` expression can take a node's place without parentheses."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, ast.Call):
        return node is not parent.func
    return isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return, ast.keyword))
