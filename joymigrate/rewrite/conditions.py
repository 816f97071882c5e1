"""Conditions that a project defines once and asks everywhere: `is_cuda_available()`, `HAS_GPU`.

They are named by key, as in `flow`: `path::name()` for a function, `path::#name` for a variable,
`.name()` for a method and `.name` for a property, of whatever class (`across` follows those that
the project defines once). Whether one asks for the origin's device is decided in the file that
defines it.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

from joymigrate.rewrite import flow_sinks
from joymigrate.rewrite.guards import branches

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module


def keys_in(module: Module, test: ast.AST) -> frozenset[str]:
    """Keys of the project's functions and variables that a condition asks."""
    if test not in module._keys:
        module._keys[test] = frozenset(find_keys(module, test))
    return module._keys[test]


def find_keys(module: Module, test: ast.AST) -> set[str]:
    """The same, looked for in the condition's tree."""
    found = set()
    for node in ast.walk(test):
        called = isinstance(node, ast.Call)
        name = node.func if isinstance(node, ast.Call) else node
        if not isinstance(name, (ast.Name, ast.Attribute)):
            continue
        if not called and getattr(getattr(name, "parent", None), "func", None) is name:
            continue
        key = key_of(module, name, called=called)
        if key is not None:
            found.add(key)
    return found


def key_of(module: Module, name: ast.Name | ast.Attribute, *, called: bool) -> str | None:
    """The key of a name of this file, of another file through imports, or of a method."""
    dotted = module.names.dotted(name)
    if dotted is not None:
        place = module.project.locate(dotted)
        if place is None or not place[1]:
            return None
        if "." in place[1]:  # of a class: `Env.has_gpu()`
            return (
                method_of(module, name, called=called) if isinstance(name, ast.Attribute) else None
            )
        return f"{place[0]}::{place[1]}()" if called else f"{place[0]}::#{place[1]}"
    if isinstance(name, ast.Attribute):
        return method_of(module, name, called=called)
    found = module.names.lookup(name.id, name)
    if found is None or found[0] is not module.names.root or not called:
        return None  # variables of the file itself are followed in `groups`
    return f"{module.source.path}::{name.id}()"


def method_of(module: Module, name: ast.Attribute, *, called: bool) -> str | None:
    """The key of a method that is asked without arguments, or of a property; None for others."""
    origin = module.context.origin
    if (
        name.attr in flow_sinks.load(origin.device).everyday
        or name.attr == origin.tensor["is_cuda"]
    ):
        return None
    if not called:
        return f".{name.attr}"
    call = getattr(name, "parent", None)
    bare = isinstance(call, ast.Call) and not call.args and not call.keywords
    return f".{name.attr}()" if bare else None


def methods(module: Module) -> dict[str, ast.AST]:
    """The methods and properties of a file's classes, by key."""
    found: dict[str, ast.AST] = {}
    for node in module.names.nodes[ast.FunctionDef]:
        if isinstance(getattr(node, "parent", None), ast.ClassDef):
            read = any("property" in ast.unparse(each) for each in node.decorator_list)
            found[f".{node.name}" if read else f".{node.name}()"] = node
    return found


def find_definitions(module: Module) -> dict[str, ast.AST]:
    """The functions and variables at a file's top level, and its methods, by key."""
    found = methods(module)
    for node in top_level(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[f"{module.source.path}::{node.name}()"] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[f"{module.source.path}::#{target.id}"] = node
    return found


def gives_texts(node: ast.AST) -> bool:
    """Whether a function returns texts: what it asks is no condition of its own."""
    returned = (each.value for each in ast.walk(node) if isinstance(each, ast.Return))
    return any(
        isinstance(value, ast.JoinedStr)
        or (isinstance(value, ast.Constant) and isinstance(value.value, str))
        for value in returned
    )


def top_level(tree: ast.Module) -> list[ast.stmt]:
    """Statements of a file, with those inside its `if` and `try`."""
    found: list[ast.stmt] = []
    todo = list(tree.body)
    while todo:
        node = todo.pop(0)
        found.append(node)
        if isinstance(node, (ast.If, ast.Try)):
            todo += [
                each for block in branches(node) for each in block if isinstance(each, ast.stmt)
            ]
            for handler in getattr(node, "handlers", ()):
                todo += handler.body
    return found


def of_library(module: Module, dotted: str) -> bool:
    """Whether a name is another package's question for the origin's device, which stays.

    `mmengine.device.is_cuda_available`, `transformers.utils.is_torch_cuda_available`.
    """
    asked = f".{module.vocabulary.device}.is_available"  # `numba.cuda.is_available`
    named = library_words(module).fullmatch(dotted.rpartition(".")[2])
    if not named and not dotted.endswith(asked):
        return False
    return not dotted.startswith("torch.") and module.project.locate(dotted) is None


def library_words(module: Module) -> re.Pattern[str]:
    """Names of questions for the origin's device."""
    return question_names(module.vocabulary.device)


@functools.cache
def question_names(device: str) -> re.Pattern[str]:
    """The same for a device."""
    return re.compile(rf"_?(?:is|has)_(?:torch_)?{re.escape(device)}(?:_is)?_available", re.I)


def asks(module: Module, node: ast.AST) -> bool:
    """Whether a definition answers if the origin's device is there."""
    platform, device = module.vocabulary.module, module.vocabulary.device
    questions = (f"{platform}.is_available", f"{platform}.device_count")
    answers = isinstance(node, (ast.Assign, ast.AnnAssign))
    found = False
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            found = found or module.names.dotted(each) in questions
            found = found or each.attr == module.context.origin.tensor["is_cuda"]
            found = found or of_library(module, module.names.dotted(each) or "")
        elif isinstance(each, ast.Name):
            found = found or of_library(module, module.names.dotted(each) or "")
        elif isinstance(each, ast.Compare):
            texts = (e.value for e in (each.left, *each.comparators) if isinstance(e, ast.Constant))
            found = found or device in texts
        elif isinstance(each, ast.Return) and each.value is not None:
            answers = True
    return found and answers
