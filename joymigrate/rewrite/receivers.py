"""Whose method `x.cuda()` calls, in a project with classes that define one of that name themselves.

A receiver is torch's where it can be seen: made by torch, by a class of another package, or by one
of the project that is a module without such a method, annotated as a tensor, or asked for what
tensors alone have. Names are followed inside of a file, attributes of `self` inside of a class. All
else may be one of those classes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from joymigrate.rewrite.module import Module

# Methods that modules of torch have and containers of tensors have not.
OF_MODULES = ("eval", "train", "parameters", "named_parameters", "state_dict", "load_state_dict")
# Methods of tensors whose results are tensors; they count where no such class defines them.
OF_TENSORS = frozenset((
    "unsqueeze", "squeeze", "view", "reshape", "permute", "transpose", "contiguous", "repeat",
    "expand", "detach", "flatten", "clone", "long", "float", "half", "double", "int", "bool",
))  # fmt: skip
OF_TENSORS_ALONE = OF_TENSORS - {"float", "half", "double", "clone"}
TENSORS = re.compile(r"torch\.(?:\w+\.)*(?:\w*Tensor|nn\.Parameter|nn\.parameter\.Parameter)")
FIELDS = ("data", "grad", "T", "mT")  # of a tensor; they are tensors themselves


def doubtful(module: Module, node: ast.Attribute, own: frozenset[str] | None = None) -> bool:
    """Whether the receiver may be an instance of a project class with its own method."""
    own = module.project.own_methods if own is None else own
    if not own | classes_here(module, node.attr):
        return False
    value = node.value
    if getattr(module.names.enclosing(node, (ast.FunctionDef,)), "name", "") == node.attr:
        return True  # such a method itself, which goes with its callers
    if node.attr == module.context.origin.tensor["cuda"] and is_other(module, value):
        return False
    return not is_torchs(module, value, set())


def is_other(module: Module, value: ast.expr) -> bool:
    """Whether a value is none of the project's own classes, where those are plain containers.

    `Net(…).eval()`, `Net(…)`, and what is trained or saved by that name.
    """
    plain = module.project.own_plain
    if not plain:
        return False
    if isinstance(value, ast.Call):
        name = str(getattr(value.func, "attr", getattr(value.func, "id", "")))
        return name in OF_MODULES or (name[:1].isupper() and name not in plain)
    text = module.text(value)
    asked = (each for each in module.names.nodes[ast.Attribute] if each.attr in OF_MODULES)
    return any(module.text(each.value) == text for each in asked)


def classes_here(module: Module, method: str) -> frozenset[str]:
    """Classes of this module that define `method`, which is no property."""
    owners = (
        getattr(node, "parent", None)
        for node in module.names.nodes[ast.FunctionDef]
        if node.name == method
        and not any(getattr(each, "id", "") == "property" for each in node.decorator_list)
    )
    return frozenset(owner.name for owner in owners if isinstance(owner, ast.ClassDef))


def is_torchs(module: Module, value: ast.expr | None, asked: set[ast.expr]) -> bool:
    """Whether a value is seen to be a tensor or a module with torch's own methods.

    `asked` are the values on the way here: `x = x.half()` says nothing that `x` has not said.
    """
    if value is None or value in asked:
        return value is not None
    asked.add(value)
    if is_from_torch(module, value):
        return True
    if isinstance(value, ast.IfExp):
        return all(is_torchs(module, each, asked) for each in (value.body, value.orelse))
    if isinstance(value, ast.Call):
        func = value.func
        if isinstance(func, ast.Attribute) and is_torchs_method(module, func, asked):
            return True
        if not isinstance(func, (ast.Name, ast.Attribute)):
            return False
        return is_module_class(module, func) or is_class_outside(module, func)
    if isinstance(value, ast.Subscript):  # a part of a tensor, not of a list of modules
        owner = value.value
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        return isinstance(owner, ast.Call) and is_from_torch(module, owner, lower=True)
    if isinstance(value, ast.Name):
        found = module.names.lookup(value.id, value)
        bindings = found[1] if found else []
        seen = [
            is_tensor_type(module, getattr(each.node, "annotation", None))
            if each.kind == "parameter"
            else each.kind == "assign" and is_torchs(module, each.value, asked)
            for each in bindings
        ]
        return bool(seen) and all(seen)
    if isinstance(value, ast.Attribute):
        if value.attr in FIELDS and is_torchs(module, value.value, asked):
            return True
        kept = list(find_kept(module, value))
        return bool(kept) and all(is_torchs(module, each, asked) for each in kept)
    return False


def is_from_torch(module: Module, value: ast.expr | None, *, lower: bool = False) -> bool:
    """Whether an expression is a call of torch itself, whose results have torch's methods.

    With `lower`, of a function of torch's and not of a class.
    """
    while isinstance(value, (ast.Call, ast.Attribute)):
        dotted = module.names.dotted(value.func if isinstance(value, ast.Call) else value)
        if dotted and dotted.split(".")[0] == "torch":
            return not lower or dotted.rpartition(".")[2].islower()
        value = value.func if isinstance(value, ast.Call) else value.value
    return False


def is_torchs_method(module: Module, func: ast.Attribute, asked: set[ast.expr]) -> bool:
    """Whether a method that is called gives what torch's methods give: `x.unsqueeze(0)`."""
    taken = module.project.own_names
    if func.attr in OF_TENSORS_ALONE and not {func.attr, "__getattr__"} & taken:
        return not any(classes_here(module, name) for name in (func.attr, "__getattr__"))
    placed = func.attr in (*OF_TENSORS, "to", module.context.origin.tensor["cuda"], "cpu", "eval")
    return placed and is_torchs(module, func.value, asked)


def is_tensor_type(module: Module, annotation: ast.expr | None) -> bool:
    """Whether an annotation is a tensor's, or says that there may be none."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return re.fullmatch(r"(?:torch\.)?Tensor(?: *\| *None)?", annotation.value) is not None
    if isinstance(annotation, ast.BinOp):
        sides = (annotation.left, annotation.right)
        kept = [each for each in sides if getattr(each, "value", 0) is not None]
        return len(kept) == 1 and is_tensor_type(module, kept[0])
    if isinstance(annotation, ast.Subscript):
        name = (module.names.dotted(annotation.value) or "").rpartition(".")[2]
        return name == "Optional" and is_tensor_type(module, annotation.slice)
    dotted = module.names.dotted(annotation) if annotation is not None else None
    return dotted is not None and TENSORS.fullmatch(dotted) is not None


def find_kept(module: Module, value: ast.Attribute) -> Iterator[ast.expr | None]:
    """What `self.x` is given in its class and in classes of the file that this one derives from.

    None for what is not written out: a part of a tuple, a loop.
    """
    home = module.names.enclosing(value, (ast.ClassDef,))
    if getattr(value.value, "id", "") != "self" or home is None:
        return
    homes = [home, *find_bases(module, home)]
    for each in module.names.nodes[ast.Attribute]:
        stored = each.attr == value.attr and isinstance(each.ctx, ast.Store)
        if not stored or getattr(each.value, "id", "") != "self":
            continue
        if module.names.enclosing(each, (ast.ClassDef,)) in homes:
            parent = getattr(each, "parent", None)
            yield parent.value if isinstance(parent, (ast.Assign, ast.AnnAssign)) else None


def find_bases(module: Module, owner: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """The classes of the file that a class derives from."""
    here = {each.name: each for each in module.names.nodes[ast.ClassDef]}
    todo, seen = [owner], {owner}
    while todo:
        for base in todo.pop().bases:
            found = here.get(getattr(base, "id", ""))
            if found is not None and found not in seen:
                seen.add(found)
                todo.append(found)
                yield found


def is_module_class(module: Module, func: ast.expr) -> bool:
    """Whether a class of the project that is called is a module of torch's, method and all."""
    method = module.context.origin.tensor["cuda"]
    if isinstance(func, ast.Name):
        found = module.names.lookup(func.id, func)
        nodes = [each.node for each in found[1]] if found else []
        if len(nodes) == 1 and isinstance(nodes[0], ast.ClassDef):
            return derives(module.source.text, func.id, method)
    dotted = module.names.dotted(func)
    place = module.project.locate(dotted) if dotted is not None else None
    if place is None or not place[1]:
        return False
    return derives(module.project.text_of(place[0]), place[1], method)


def is_class_outside(module: Module, func: ast.expr) -> bool:
    """Whether a class of a package outside of the project is called, by its name: `lpips.LPIPS`."""
    dotted = module.names.dotted(func) or ""
    root, _, name = dotted.partition(".")
    called = name.rpartition(".")[2][:1].isupper()
    own = module.project.owns(root) or module.project.locate(dotted) is not None
    return called and not own and module.project.locate(root) is None


def derives(text: str, name: str, method: str) -> bool:
    """Whether a class of a file is a module of torch's by its own bases, without a method.

    A base of another file is not looked for.
    """
    if f"def {method}" in text:
        return False
    found = re.search(rf"^class {re.escape(name)}\(([^)]*)\):", text, re.M)
    bases = [each.strip() for each in found[1].split(",")] if found is not None else []
    return any(
        each in ("nn.Module", "torch.nn.Module", "Module")
        or (each.isidentifier() and each != name and derives(text, each, method))
        for each in bases
    )
