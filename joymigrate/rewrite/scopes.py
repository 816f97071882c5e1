"""Names of one module: who binds them, in which scope, and what dotted name they stand for.

Python's own scope rules on the standard `ast`, in one walk. What another file gives it is told; a
name that is bound to several different things stands for none of them.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from joymigrate.rewrite.scope_fields import FIELDS, LEAVES

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BUILTINS = frozenset(dir(builtins))
UNKNOWN = "?"  # no name that was looked for yet
SCOPES = (ast.Module, *FUNCTIONS, ast.Lambda, ast.ClassDef, *COMPREHENSIONS)


@dataclass(slots=True, eq=False)  # not frozen: that makes each three times as dear
class Binding:
    """One place that gives a name its meaning.

    `kind`: import, assign, parameter, function, class, loop, other. `dotted` is what an import
    stands for. `value` is the expression of an assignment, or a parameter's default.
    """

    kind: str
    node: ast.AST
    dotted: str | None = None
    value: ast.expr | None = None


@dataclass(slots=True)
class NameScope:
    """The names bound in one scope."""

    node: ast.AST
    parent: NameScope | None
    names: dict[str, list[Binding]] = field(default_factory=dict)
    outer: dict[str, str] = field(default_factory=dict)  # name → "global" or "nonlocal"

    def bind(self, name: str, binding: Binding) -> None:
        """Add a binding, in the scope that a global or nonlocal statement points at."""
        home = self
        where = self.outer.get(name)
        if where == "global":
            while home.parent is not None:
                home = home.parent
        elif where == "nonlocal" and self.parent is not None:
            home = self.parent
        home.names.setdefault(name, []).append(binding)


class ModuleScopes:
    """Scopes and bindings of a module, and the nodes that rules look at, by type."""

    def __init__(
        self,
        tree: ast.Module,
        package: tuple[str, ...] = (),
        given: Callable[[str, str], str | None] = lambda base, name: None,
        star_homes: Callable[[Sequence[str], str], Sequence[str]] = lambda stars, name: (),
        given_by: Callable[[Sequence[str], str], str | None] = lambda homes, name: None,
    ) -> None:
        """Walk `tree` once. `package` is the dotted path of the module's package; `given` tells
        what a name of another file of the project stands for, where that file imports it, and so
        does `given_by` of the files that `star_homes` knows to give a name by `import *`."""
        self.tree = tree
        self.package = package
        self.given, self.star_homes, self.given_by = given, star_homes, given_by
        self.nodes: dict[type, list[Any]] = defaultdict(list)
        self.scopes: dict[ast.AST, NameScope] = {}
        self.star_imports: list[ast.ImportFrom] = []
        self.adopted: list[ast.AST] = []  # nodes with a parent that stand in no list of `nodes`
        self.imported: set[str] = set()  # names bound by an import anywhere
        self.docstrings: set[ast.AST] = set()
        self._where: dict[ast.AST, NameScope] = {}  # names that are read → the scope around them
        self._dotted: dict[ast.AST, str | None] = {}
        self._chains: list[tuple[ast.expr, str]] | None = None
        self._given: dict[str, str | None] = {}  # by other files of the project
        self._homes: dict[str, Sequence[str]] = {}  # what is bound here by `import *` alone
        self.root = self._enter(tree, None)
        for statement in tree.body:
            self._visit(statement, tree, self.root)
        self._docstring(tree)

    # -- walking -----------------------------------------------------------------------------

    def _enter(self, node: ast.AST, parent: NameScope | None) -> NameScope:
        scope = NameScope(node, parent)
        self.scopes[node] = scope
        return scope

    def _docstring(self, node: Any) -> None:
        body = node.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            self.docstrings.add(body[0].value)

    def _visit(self, node: ast.AST, parent: ast.AST, scope: NameScope) -> None:
        node.parent = parent  # type: ignore[attr-defined]
        kind = type(node)
        self.nodes[kind].append(node)
        while kind is ast.Attribute:  # the most frequent kind with a part
            parent, node = node, node.value  # type: ignore[attr-defined]
            node.parent = parent  # type: ignore[attr-defined]
            kind = type(node)
            self.nodes[kind].append(node)
        if kind is ast.Name:
            self._where[node] = scope
            return
        if kind is ast.Constant:
            return
        special = SPECIAL.get(kind)
        if special is not None:
            special(self, node, scope)
            return
        for name, many in FIELDS[kind]:
            child = getattr(node, name, None)
            if not many:
                if child is not None:
                    self._visit(child, node, scope)
                continue
            for item in child or ():
                if item is not None:
                    self._visit(item, node, scope)

    def _children(self, items: list[Any], parent: ast.AST, scope: NameScope) -> None:
        for item in items:
            if item is not None:
                self._visit(item, parent, scope)

    def _function(self, node: Any, scope: NameScope) -> None:
        if not isinstance(node, ast.Lambda):
            scope.bind(node.name, Binding("function", node))
            self._children(node.decorator_list, node, scope)
            if node.returns is not None:
                self._visit(node.returns, node, scope)
        inner = self._enter(node, scope)
        self._children(getattr(node, "type_params", []), node, scope)
        node.args.parent = node
        self.adopted.append(node.args)
        self._parameters(node.args, scope, inner)
        if isinstance(node, ast.Lambda):
            self._visit(node.body, node, inner)
            return
        for statement in node.body:
            if isinstance(statement, (ast.Global, ast.Nonlocal)):
                self._outer(statement, inner)
        self._children(node.body, node, inner)
        self._docstring(node)

    def _parameters(self, args: ast.arguments, scope: NameScope, inner: NameScope) -> None:
        positional = [*args.posonlyargs, *args.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
        for arg, default in zip(positional, [*defaults, *args.defaults], strict=True):
            self._parameter(arg, default, args, scope, inner)
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            self._parameter(arg, default, args, scope, inner)
        for arg_or_none in (args.vararg, args.kwarg):
            if arg_or_none is not None:
                self._parameter(arg_or_none, None, args, scope, inner)

    def _parameter(
        self,
        arg: ast.arg,
        default: ast.expr | None,
        args: ast.AST,
        scope: NameScope,
        inner: NameScope,
    ) -> None:
        arg.parent = args  # type: ignore[attr-defined]
        self.adopted.append(arg)
        inner.bind(arg.arg, Binding("parameter", arg, value=default))
        if arg.annotation is not None:
            self._visit(arg.annotation, arg, scope)
        if default is not None:
            self._visit(default, args, scope)

    def _class(self, node: ast.ClassDef, scope: NameScope) -> None:
        scope.bind(node.name, Binding("class", node))
        self._children(getattr(node, "type_params", []), node, scope)
        self._children([*node.decorator_list, *node.bases, *node.keywords], node, scope)
        inner = self._enter(node, scope)
        self._children(node.body, node, inner)
        self._docstring(node)

    def _comprehension(self, node: Any, scope: NameScope) -> None:
        inner = self._enter(node, scope)
        for index, generator in enumerate(node.generators):
            generator.parent = node
            self.nodes[ast.comprehension].append(generator)
            self._visit(generator.iter, generator, scope if index == 0 else inner)
            self._target(generator.target, generator, inner, "loop", generator.iter)
            self._children(generator.ifs, generator, inner)
        if isinstance(node, ast.DictComp):
            self._children([node.key, node.value], node, inner)
        else:
            self._visit(node.elt, node, inner)

    def _import(self, node: ast.Import, scope: NameScope) -> None:
        for alias in node.names:
            alias.parent = node  # type: ignore[attr-defined]
            self.adopted.append(alias)
            name = alias.asname or alias.name.split(".")[0]
            self.imported.add(name)
            dotted = alias.name if alias.asname else name
            scope.bind(name, Binding("import", node, dotted))

    def _import_from(self, node: ast.ImportFrom, scope: NameScope) -> None:
        base = self.absolute(node)
        for alias in node.names:
            alias.parent = node  # type: ignore[attr-defined]
            self.adopted.append(alias)
            if alias.name == "*":
                self.star_imports.append(node)
                continue
            name = alias.asname or alias.name
            self.imported.add(name)
            before = scope.names.get(name)
            if before and directly_after(node, before[-1].node):
                before.pop()  # imported anew by the very next statement: the first says nothing
            scope.bind(name, Binding("import", node, f"{base}.{alias.name}" if base else None))

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that a `from` import names, with leading dots resolved.

        A relative import that leaves the known package starts with a dot, so that it never looks
        like an installed module.
        """
        if not node.level:
            return node.module or ""
        keep = len(self.package) - (node.level - 1)
        if keep < 0 or not self.package:
            return "." * node.level + (node.module or "")
        return ".".join([*self.package[:keep], *([node.module] if node.module else [])])

    def _assign(self, node: ast.Assign, scope: NameScope) -> None:
        self._visit(node.value, node, scope)
        for target in node.targets:
            self._target(target, node, scope, "assign", node.value)

    def _annotated(self, node: ast.AnnAssign, scope: NameScope) -> None:
        self._visit(node.annotation, node, scope)
        if node.value is not None:
            self._visit(node.value, node, scope)
        self._target(node.target, node, scope, "assign", node.value)

    def _augmented(self, node: ast.AugAssign, scope: NameScope) -> None:
        self._visit(node.value, node, scope)
        self._target(node.target, node, scope, "other", None)

    def _walrus(self, node: ast.NamedExpr, scope: NameScope) -> None:
        self._visit(node.value, node, scope)
        home = scope
        while isinstance(home.node, COMPREHENSIONS) and home.parent is not None:
            home = home.parent
        self._target(node.target, node, home, "assign", node.value)

    def _for(self, node: Any, scope: NameScope) -> None:
        self._visit(node.iter, node, scope)
        self._target(node.target, node, scope, "loop", node.iter)
        self._children([*node.body, *node.orelse], node, scope)

    def _with_item(self, node: ast.withitem, scope: NameScope) -> None:
        self._visit(node.context_expr, node, scope)
        if node.optional_vars is not None:
            self._target(node.optional_vars, node, scope, "other", None)

    def _handler(self, node: ast.ExceptHandler, scope: NameScope) -> None:
        if node.type is not None:
            self._visit(node.type, node, scope)
        if node.name:
            scope.bind(node.name, Binding("other", node))
        self._children(node.body, node, scope)

    def _outer(self, node: ast.Global | ast.Nonlocal, scope: NameScope) -> None:
        for name in node.names:
            scope.outer[name] = "global" if isinstance(node, ast.Global) else "nonlocal"

    def _capture(self, node: Any, scope: NameScope) -> None:
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if name:
            scope.bind(name, Binding("other", node))
        for child in ast.iter_child_nodes(node):
            self._visit(child, node, scope)

    def _target(
        self, target: ast.expr, parent: ast.AST, scope: NameScope, kind: str, value: ast.expr | None
    ) -> None:
        target.parent = parent  # type: ignore[attr-defined]
        self.adopted.append(target)
        if isinstance(target, ast.Name):
            self.nodes[ast.Name].append(target)
            scope.bind(target.id, Binding(kind, target, value=value))
            return
        if isinstance(target, (ast.Tuple, ast.List)):
            for index, item in enumerate(target.elts):
                same_shape = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(
                    target.elts
                )
                part = value.elts[index] if same_shape and kind == "assign" else None  # type: ignore[union-attr]
                self._target(item, target, scope, kind if part is not None else "other", part)
            return
        if isinstance(target, ast.Starred):
            self._target(target.value, target, scope, "other", None)
            return
        self._visit(target, parent, scope)

    def release(self) -> None:
        """Take the tree apart, so that it is freed without a search for circles.

        Names and constants hold no other node: they go with the node above them.
        """
        for kind, nodes in (*self.nodes.items(), (ast.arg, self.adopted)):
            for node in nodes if kind not in LEAVES else ():
                node.__dict__.clear()

    # -- asking ------------------------------------------------------------------------------

    def scope_of(self, node: ast.AST) -> NameScope:
        """The scope in which an expression is evaluated."""
        known = self._where.get(node)
        if known is not None:
            return known
        before: ast.AST = node
        child: ast.AST = node
        parent = getattr(node, "parent", None)
        while parent is not None:
            if isinstance(parent, SCOPES) and evaluated_inside(child, parent, before):
                return self.scopes[parent]
            before, child, parent = child, parent, getattr(parent, "parent", None)
        return self.root

    def lookup(self, name: str, node: ast.AST) -> tuple[NameScope, list[Binding]] | None:
        """The scope that `name` means at `node`, and its bindings there; None when unbound."""
        scope: NameScope | None = self.scope_of(node)
        first = True
        while scope is not None:
            # A class body's names are not seen from its functions.
            visible = first or not isinstance(scope.node, ast.ClassDef)
            if visible and name in scope.names and name not in scope.outer:
                return scope, scope.names[name]
            first = False
            scope = scope.parent
        return None

    def dotted(self, node: ast.AST, _depth: int = 0) -> str | None:
        """The dotted name that a Name or an attribute chain stands for, through imports.

        `cuda = torch.cuda` counts as an alias when it is the only binding of `cuda`. None for
        anything that a local name shadows, and for names bound more than one way.
        """
        known = self._dotted.get(node, UNKNOWN)
        if known is not UNKNOWN:
            return known
        attributes: list[str] = []
        at = node
        while isinstance(at, ast.Attribute):
            attributes.append(at.attr)
            at = at.value
        root = self._root_name(at, _depth) if isinstance(at, ast.Name) else None
        found = ".".join([root, *reversed(attributes)]) if root else None
        self._dotted[node] = found
        return found

    def _root_name(self, node: ast.Name, depth: int) -> str | None:
        found = self.lookup(node.id, node)
        if found is None:
            return self._given_by_star(node.id)
        if depth > 8:
            return None
        targets = set()
        for binding in found[1]:
            if binding.kind == "import":
                targets.add(self._imported(binding.dotted or "") or binding.dotted)
            elif isinstance(binding.value, ast.Constant) and binding.value.value is None:
                continue  # `torch = None` after a failed import
            elif (
                binding.kind == "assign"
                and isinstance(binding.value, (ast.Attribute, ast.Name))
                and isinstance(binding.node, ast.Name)
            ):
                targets.add(self.dotted(binding.value, depth + 1))
            elif isinstance(binding.value, ast.Call) and self._loads(node.id, binding.value):
                targets.add(node.id)
            else:
                return None
        return targets.pop() if len(targets) == 1 else None

    def _given_by_star(self, name: str) -> str | None:
        """What a name that the file does not bind stands for by `import *` of the project."""
        homes = self.starred(name)
        return self.given_by(homes, name) if homes else None

    def starred(self, name: str) -> Sequence[str]:
        """The files of the project that give a name which the file does not bind by `import *`."""
        if not self.star_imports or name in BUILTINS:
            return ()
        if name not in self._homes:
            stars = [self.absolute(node) for node in self.star_imports]
            self._homes[name] = self.star_homes(stars, name)
        return self._homes[name]

    def _imported(self, dotted: str) -> str | None:
        """What a name of one of the project's files stands for, where that file imports it."""
        if dotted not in self._given:
            base, _, name = dotted.rpartition(".")
            self._given[dotted] = self.given(base, name) if base else None
        return self._given[dotted]

    def _loads(self, name: str, call: ast.Call) -> bool:
        """Whether a call gives the module of this name, perhaps when it is first used.

        `torch = import_module("torch")`, `torch = Lazy("torch", …)`, or `torch = Lazy()` of a
        class here whose `__getattr__` imports torch.
        """
        if any(isinstance(each, ast.Constant) and each.value == name for each in call.args):
            return True
        found = self.root.names.get(call.func.id, []) if isinstance(call.func, ast.Name) else []
        for made in (each.node for each in found if isinstance(each.node, ast.ClassDef)):
            for method in made.body:
                if getattr(method, "name", "") in ("__getattr__", "__getattribute__"):
                    imports = (n for n in ast.walk(method) if isinstance(n, ast.Import))
                    return any(alias.name == name for each in imports for alias in each.names)
        return False

    def imported_chains(self) -> list[tuple[ast.expr, str]]:
        """Every maximal attribute chain (or bare name) that starts at an import, with its name."""
        if self._chains is None:
            self._chains = list(self._imported_chains())
        return self._chains

    def _imported_chains(self) -> Iterator[tuple[ast.expr, str]]:
        aliases = self._alias_names()
        for name in self.nodes[ast.Name]:
            if name.id not in aliases or not isinstance(name.ctx, ast.Load):
                continue
            top: ast.expr = name
            parent = getattr(top, "parent", None)
            while isinstance(parent, ast.Attribute):
                top, parent = parent, getattr(parent, "parent", None)
            dotted = self.dotted(top)
            if dotted is not None:
                yield top, dotted

    def _alias_names(self) -> set[str]:
        """Names that may stand for something imported."""
        names = set(self.imported)
        for scope in self.scopes.values():
            for name, bindings in scope.names.items():
                if name in names:
                    continue
                if any(isinstance(b.value, (ast.Attribute, ast.Name)) for b in bindings) or any(
                    isinstance(b.value, ast.Call) and self._loads(name, b.value) for b in bindings
                ):
                    names.add(name)
        if self.star_imports:
            read = {node.id for node in self.nodes[ast.Name]} - names
            names |= {name for name in read if self._given_by_star(name)}
        return names

    def enclosing(self, node: ast.AST, kinds: tuple[type, ...]) -> Any:
        """The nearest ancestor of one of `kinds`, or None."""
        parent = getattr(node, "parent", None)
        while parent is not None and not isinstance(parent, kinds):
            parent = getattr(parent, "parent", None)
        return parent


def directly_after(node: ast.AST, before: ast.AST) -> bool:
    """Whether two import statements follow each other in one block."""
    if not isinstance(before, ast.ImportFrom):
        return False
    owner = getattr(node, "parent", None)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(owner, name, None)
        if isinstance(block, list) and before in block and node in block:
            return block.index(node) - block.index(before) == 1
    return False


def evaluated_inside(child: ast.AST, scope: ast.AST, before: ast.AST) -> bool:
    """Whether `child`, a direct child of a scope's node, is evaluated in that scope.

    `before` is the child of `child` that the question came from.
    """
    if isinstance(scope, ast.Module):
        return True
    if isinstance(scope, FUNCTIONS):
        return (
            child is not scope.args
            and child is not scope.returns
            and (child not in scope.decorator_list)
        )
    if isinstance(scope, ast.Lambda):
        return child is scope.body
    if isinstance(scope, ast.ClassDef):
        return (
            child not in scope.decorator_list
            and child not in scope.bases
            and (child not in scope.keywords)
        )
    if isinstance(child, ast.comprehension) and isinstance(scope, COMPREHENSIONS):
        # Only the first generator's iterable is evaluated outside.
        return child is not scope.generators[0] or before is not child.iter
    return True


SPECIAL: dict[type, Any] = {
    ast.FunctionDef: ModuleScopes._function,
    ast.AsyncFunctionDef: ModuleScopes._function,
    ast.Lambda: ModuleScopes._function,
    ast.ClassDef: ModuleScopes._class,
    ast.Import: ModuleScopes._import,
    ast.ImportFrom: ModuleScopes._import_from,
    ast.Assign: ModuleScopes._assign,
    ast.AnnAssign: ModuleScopes._annotated,
    ast.AugAssign: ModuleScopes._augmented,
    ast.NamedExpr: ModuleScopes._walrus,
    ast.For: ModuleScopes._for,
    ast.AsyncFor: ModuleScopes._for,
    ast.withitem: ModuleScopes._with_item,
    ast.ExceptHandler: ModuleScopes._handler,
    ast.Global: ModuleScopes._outer,
    ast.Nonlocal: ModuleScopes._outer,
    ast.MatchAs: ModuleScopes._capture,
    ast.MatchStar: ModuleScopes._capture,
    ast.MatchMapping: ModuleScopes._capture,
    **dict.fromkeys(COMPREHENSIONS, ModuleScopes._comprehension),
}
