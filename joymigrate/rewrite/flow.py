"""Where values go: from a string literal through names, parameters and attributes to a sink.

A graph of strings. A key names one variable: `function#name` (`#name` at module level),
`Class.attr` for `self.attr`, `.attr` for an attribute or option of any other object,
`function()` for what a function returns, `path::key` for a key of another file of the project.
The graph over-approximates (it ignores order and branches), which is right for the question
asked: may this literal be a device? What it can't follow, it does not claim.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from joymigrate.rewrite import flow_fields, flow_tables
from joymigrate.rewrite.flow_graph import SINK, FlowGraph
from joymigrate.rewrite.flow_sinks import DEVICE, Sinks
from joymigrate.rewrite.option_calls import OPTION_CALLS, looked_up, option_name
from joymigrate.rewrite.scopes import COMPREHENSIONS, FUNCTIONS, Binding, ModuleScopes, NameScope

# Calls that give a value to a name that is written as a string, and where the value stands.
NAMING = {"setattr": 2, "parametrize": 1, "setenv": 1, "putenv": 1, "setitem": 2}
GROWING = ("append", "add", "insert", "extend", "appendleft")
SEVERAL = ("pytest.param", "zip", "itertools.product", "itertools.chain")  # each argument goes on
SELVES = ("self", "cls")
STEPS = 8  # classes that an inherited method is looked for in
STAND_INS = ("contextlib.nullcontext", "contextlib.suppress")
Locate = Callable[[str], tuple[str, str] | None]


class Flow(FlowGraph):
    """The value flow of one module.

    `locate(dotted)` says which file of the project a dotted name lives in, and the rest of the
    name there: `("config.py", "DEVICE")`; None for names outside the project.
    """

    def __init__(
        self,
        names: ModuleScopes,
        sinks: Sinks,
        locate: Locate,
        same_as: Callable[[str, str], str] = lambda path, name: "",
    ) -> None:
        super().__init__(sinks)
        self.names = names
        self.locate = locate
        self._qualified: dict[ast.AST, str] = {}
        self.same_as = same_as
        self.by_kind = knows_accelerators(names)
        self.literals: dict[ast.expr, set[str]] = defaultdict(set)
        self.device_like: set[str] = set()  # variables assigned from a device expression
        self.loaded: set[str] = set()  # tables that are read from files
        self.options: set[str] = set()  # names of options that the module defines
        self.methods: dict[str, list[str]] = defaultdict(list)  # name → methods of classes here
        self.classes: dict[str, ast.ClassDef] = {}
        for scope in list(names.scopes.values()):
            self._scope(scope)
        for call in names.nodes[ast.Call]:
            self._call(call)
        for node in (*names.nodes[ast.Assign], *names.nodes[ast.AnnAssign]):
            self._assign(node)
        for node in names.nodes[ast.NamedExpr]:
            self._into_target(node.value, node.target)
        for node in names.nodes[ast.AugAssign]:
            if isinstance(node.op, (ast.Add, ast.BitOr)) and not text(node.value):
                self._into_target(node.value, node.target)  # `devices += ["cuda:1"]`
        for node in (*names.nodes[ast.Return], *names.nodes[ast.Yield]):
            self._return(node)
        for node in names.nodes[ast.YieldFrom]:
            self._return(node)
        for node in (*names.nodes[ast.For], *names.nodes[ast.AsyncFor]):
            self._into_target(node.iter, node.target)
        for node in names.nodes[ast.comprehension]:
            self._into_target(node.iter, node.target)
        for node in names.nodes[ast.Dict]:
            self._dict(node)
        self._spread_device_like()
        flow_tables.draw(self)

    # -- building ----------------------------------------------------------------------------

    def qualified(self, scope: NameScope) -> str:
        """Dotted path of a scope inside its module, empty for the module itself."""
        known = self._qualified.get(scope.node)
        if known is None:
            known = ""
            if scope.parent is not None:
                node, above = scope.node, self.qualified(scope.parent)
                name = getattr(node, "name", None)
                name = name or f"<{type(node).__name__}:{getattr(node, 'lineno', 0)}>"
                known = f"{above}.{name}" if above else name
            self._qualified[scope.node] = known
        return known

    def _scope(self, scope: NameScope) -> None:
        node = scope.node
        if isinstance(node, ast.ClassDef):
            self.classes[self.qualified(scope)] = node
        if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
            return
        qualified = self.qualified(scope)
        self.functions[qualified] = node
        if isinstance(node, ast.Lambda):
            self.into(node.body, f"{qualified}()")
        elif scope.parent is not None and isinstance(scope.parent.node, ast.ClassDef):
            self.methods[node.name].append(qualified)
        if isinstance(node, FUNCTIONS):
            flow_fields.follow_validator(self, node, qualified)
        for name, bindings in scope.names.items():
            for binding in bindings:
                if binding.kind != "parameter":
                    continue
                key = f"{qualified}#{name}"
                kind = self.sinks.names.get(name)
                annotation = getattr(binding.node, "annotation", None)
                if kind is None and annotation is not None and self.is_device_type(annotation):
                    kind = DEVICE
                if kind:
                    self.edges[key].add(SINK + kind)
                    if kind == DEVICE:
                        self.device_like.add(key)
                if binding.value is not None:
                    self.into(binding.value, key)

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            self._into_target(node.value, target)
        if isinstance(node, ast.AnnAssign) and self.is_device_type(node.annotation):
            self.into(node.value, SINK + DEVICE)

    def _into_target(self, value: ast.expr, target: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts: list[ast.expr]
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                parts = value.elts
            else:
                parts = [value] * len(target.elts)
            for part, item in zip(parts, target.elts, strict=True):
                self._into_target(part, item)
            return
        for key in self.target_keys(target):
            self.into(value, key)

    def target_keys(self, target: ast.expr) -> list[str]:
        """Keys that an assignment to `target` writes."""
        if isinstance(target, ast.Name):
            key = self.key(target)
            keys = [key] if key else []
            scope = self.names.scope_of(target)
            if isinstance(scope.node, ast.ClassDef):
                # A class attribute is also an attribute of whatever object holds an instance.
                keys += [f".{target.id}", f"{self.qualified(scope)}.{target.id}"]
            kind = self.sinks.names.get(target.id)
            return [*keys, *([SINK + kind] if kind else [])]
        if isinstance(target, ast.Attribute):
            kind = self.sinks.names.get(target.attr)
            if target.attr == "type" and self.is_device(target.value):
                kind = DEVICE  # `fake.device.type = "cuda"`
            key = self.key(target)
            return [*([SINK + kind] if kind else []), *([key] if key else [])]
        if not isinstance(target, ast.Subscript):
            return []
        name = target.slice.value if isinstance(target.slice, ast.Constant) else None
        if isinstance(name, str) and name.isidentifier():
            kind = self.sinks.keyword(name)
            return [f".{name}", *([SINK + kind] if kind else [])]
        # `device_map[key] = …`: a value of the table, whatever its key.
        if not isinstance(target.value, (ast.Name, ast.Attribute)):
            return []
        kind = self.sinks.keyword(getattr(target.value, "id", getattr(target.value, "attr", "")))
        table = self.key(target.value)
        return [*([SINK + kind] if kind else []), *([table] if table else [])]

    def _return(self, node: ast.Return | ast.Yield | ast.YieldFrom) -> None:
        function = self.names.enclosing(node, (*FUNCTIONS, ast.Lambda))
        if node.value is not None and function is not None:
            key = self.qualified(self.names.scopes[function])
            self.into(node.value, key + "()")
            if isinstance(getattr(function, "parent", None), ast.ClassDef):
                self.into(node.value, f".{function.name}()")
            returns = getattr(function, "returns", None)
            if returns is not None and self.is_device_type(returns):
                self.into(node.value, SINK + DEVICE)
            if any("property" in ast.unparse(d) for d in getattr(function, "decorator_list", ())):
                # A property is read like an attribute.
                kind = self.sinks.names.get(function.name)
                for target in (key, f".{function.name}", *([SINK + kind] if kind else [])):
                    self.into(node.value, target)

    def _dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                kind = self.sinks.keyword(key.value)
                for target in flow_fields.field_keys(self, node) if key.value == "choices" else ():
                    self.into(value, target)
                if kind:
                    self.into(value, SINK + kind)
                elif key.value.isidentifier() and key.value not in self.sinks.everyday:
                    self.into(value, f".{key.value}")  # read by `d["key"]`

    def is_device_type(self, annotation: ast.expr) -> bool:
        """Whether an annotation says `torch.device`, alone or as one of several types."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            return re.search(r"\btorch\.device\b", annotation.value) is not None
        return any(
            self.dotted(each) == "torch.device"
            for each in ast.walk(annotation)
            if isinstance(each, (ast.Name, ast.Attribute))
        )

    def dotted(self, node: ast.expr) -> str | None:
        """The full name of a name; `torch.device` for one that the project gives it: `Device`."""
        found = self.names.dotted(node)
        if found is None or found[-6:].lower() != "device" or found == "torch.device":
            return found
        if found.rpartition(".")[2].lower() != "device":
            return found
        place = self.locate(found)
        other = self.same_as(*place) if place is not None and place[1] else ""
        return "torch.device" if other in ("torch.device", "device") else found

    def _call(self, call: ast.Call) -> None:
        callee = self.dotted(call.func)
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name in OPTION_CALLS:
            self._option(call, name)
        self._defaulted(call, callee)
        if name in NAMING:
            self._named(call, name)
        fixture, ours = name == "fixture", self._may_be_ours(call, callee)
        for keyword in call.keywords:
            if goes_nowhere(keyword.value):
                continue
            if fixture and keyword.arg == "params":
                self.into(keyword.value, ".param")  # read as `request.param`
            if keyword.arg is None:
                self._forward(call, callee, keyword.value)
                continue
            if callee is None and getattr(call.func, "id", "") == "dict":
                self.into(keyword.value, f".{keyword.arg}")
            kind = self.sinks.keyword(keyword.arg)
            if keyword.arg == "type" and (callee == "torch.device" or self._stands_in(call)):
                kind = DEVICE
            if kind:
                self.into(keyword.value, SINK + kind)
            for key in self._parameter_keys(call, callee, keyword.arg) if ours else ():
                self.into(keyword.value, key)
        positions = dict(self.sinks.calls.get(callee or "", {}) or self._alternatives(call.func))
        if callee is not None and callee.startswith(self.sinks.modules):
            # Every text that a function of a device module takes for a device is one.
            positions = dict.fromkeys(range(len(call.args)), DEVICE) | positions
        if isinstance(call.func, ast.Attribute) and call.func.attr in GROWING:
            self._grown(call, call.func)
        if isinstance(call.func, ast.Attribute):
            positions = {**self.sinks.methods.get(call.func.attr, {}), **positions}
        for index, argument in enumerate(call.args):
            if isinstance(argument, ast.Starred):
                break
            if goes_nowhere(argument):
                continue
            if index in positions:
                self.into(argument, SINK + positions[index])
            for key in self._parameter_keys(call, callee, index) if ours else ():
                self.into(argument, key)

    def _may_be_ours(self, call: ast.Call, callee: str | None) -> bool:
        """Whether a callee can have parameters that are known: not of a package outside."""
        if callee is None or getattr(getattr(call.func, "value", None), "id", "") in SELVES:
            return True
        found = self.locate(callee)
        return found is not None and bool(found[1])

    def _stands_in(self, call: ast.Call) -> bool:
        """Whether a call makes what is given as a device: `device=MagicMock(type="cuda")`."""
        holder = getattr(call, "parent", None)
        name = holder.arg if isinstance(holder, ast.keyword) else None
        return self.sinks.names.get(name or "") == DEVICE

    def _forward(self, call: ast.Call, callee: str | None, value: ast.expr) -> None:
        """`f(**kwargs)`: the keywords of a function, or a table of this file, that go on."""
        for name, entry in self._written_table(value):
            for key in self._parameter_keys(call, callee, name):
                self.into(entry, key)
        function = self.rest_of(value)
        for key in self._parameter_keys(call, callee, "") if function is not None else ():
            self.forwards[function or ""].add(key.removesuffix("#"))

    def _written_table(self, value: ast.expr) -> Iterable[tuple[str, ast.expr]]:
        """Keys and values of a table that is written out here, or in what a name stands for."""
        tables = [value]
        if isinstance(value, ast.Name):
            found = self.names.lookup(value.id, value)
            tables = [each.value for each in found[1] if each.value is not None] if found else []
        for table in tables:
            if isinstance(table, ast.Dict):
                for key, entry in zip(table.keys, table.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, entry
            elif isinstance(table, ast.Call) and getattr(table.func, "id", "") == "dict":
                yield from ((k.arg, k.value) for k in table.keywords if k.arg is not None)

    def rest_of(self, value: ast.expr) -> str | None:
        """The function whose `**kwargs` a name is; None for other values."""
        found = self.names.lookup(value.id, value) if isinstance(value, ast.Name) else None
        scope = found[0] if found is not None else None
        arguments = getattr(scope.node, "args", None) if scope is not None else None
        rest = arguments.kwarg if isinstance(arguments, ast.arguments) else None
        named = isinstance(value, ast.Name) and rest is not None and rest.arg == value.id
        return self.qualified(scope) if named and scope is not None else None

    def _grown(self, call: ast.Call, func: ast.Attribute) -> None:
        """`devices.append(f"cuda:{i}")`: what a list takes in."""
        key = self.key(func.value) if isinstance(func.value, (ast.Name, ast.Attribute)) else None
        for argument in call.args if key else ():
            self.into(argument, key or "")

    def _alternatives(self, func: ast.expr) -> Mapping[int, str]:
        """Sinks of a callee like `autocast if amp else nullcontext`."""
        found = self.names.lookup(func.id, func) if isinstance(func, ast.Name) else None
        if found is None or len(found[1]) != 1 or not isinstance(found[1][0].value, ast.IfExp):
            return {}
        choice = found[1][0].value
        callees = [self.names.dotted(part) or "" for part in (choice.body, choice.orelse)]
        real = [name for name in callees if name not in STAND_INS]
        known = [self.sinks.calls.get(name, {}) for name in real]
        return known[0] if len(known) == 1 and len(callees) == 2 else {}

    def _option(self, call: ast.Call, name: str) -> None:
        """`add_argument("--device", default=…, choices=[…])`, and the options of click and absl."""
        keywords = {k.arg: k.value for k in call.keywords}
        dest = option_name(call, keywords, clicks=name in ("option", "argument"))
        if dest is None:
            return
        self.options.add(dest)
        kind = self.sinks.names.get(dest)
        targets = [f".{dest}", *([SINK + kind] if kind else [])]
        decorated = getattr(call, "parent", None)
        if isinstance(decorated, FUNCTIONS):
            targets.append(f"{self.qualified(self.names.scopes[decorated])}#{dest}")
        given = [keywords[k] for k in ("default", "choices", "const") if k in keywords]
        given += call.args[1 : OPTION_CALLS[name]]
        chosen = keywords.get("type")
        if isinstance(chosen, ast.Call):
            given += chosen.args[:1]  # click.Choice([…])
        for value in given:
            for target in targets:
                self.into(value, target)

    def _parameter_keys(self, call: ast.Call, callee: str | None, which: int | str) -> list[str]:
        """Keys of the parameter that an argument goes to, for functions of this project."""
        suffix = f"#{which}" if isinstance(which, str) else f"@{which}"
        if isinstance(call.func, ast.Name):
            local = self._local_function(call.func)
            if local is not None:
                owner = (
                    self.classes.get(local) if f"{local}.__init__" not in self.functions else None
                )
                inherited = self._inherited(owner, "__init__", which) if owner is not None else []
                return [self.parameter(local, which), *inherited]
            starred = self._unbound(call.func)
            if starred is not None:
                return [f"{starred}{suffix}"]
        if (
            isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id in ("self", "cls")
        ):
            owner = self.names.enclosing(call, (ast.ClassDef,))
            if owner is not None:
                method = f"{self.qualified(self.names.scopes[owner])}.{call.func.attr}"
                shift = which + 1 if isinstance(which, int) else which
                return [self.parameter(method, shift)]
        if callee is not None:
            found = self.locate(callee)
            if found is not None and found[1]:
                return [f"{found[0]}::{found[1]}{suffix}"]
            return []
        if isinstance(call.func, ast.Attribute) and called_name(call.func.value) == "super":
            owner = self.names.enclosing(call, (ast.ClassDef,))
            return self._inherited(owner, call.func.attr, which) if owner is not None else []
        if isinstance(call.func, ast.Attribute) and call.func.attr not in self.sinks.everyday:
            # A method of whatever object: those of this file's classes that are called so.
            shift = which + 1 if isinstance(which, int) else which
            return [self.parameter(each, shift) for each in self.methods.get(call.func.attr, ())]
        return []

    def parameters(self, call: ast.Call, which: int | str) -> list[str]:
        """Keys of the parameter that an argument goes to, for functions of this project."""
        return self._parameter_keys(call, self.names.dotted(call.func), which)

    def _inherited(
        self, owner: ast.ClassDef, method: str, which: int | str, depth: int = 0
    ) -> list[str]:
        """Keys of a parameter of the method that the bases of a class give it."""
        which = which + 1 if isinstance(which, int) else which
        suffix = f"#{which}" if isinstance(which, str) else f"@{which}"
        keys = []
        for base in owner.bases:
            local = self._local_function(base) if isinstance(base, ast.Name) else None
            if local is not None:
                keys += self.of_class(local, method, which, depth + 1)
                continue
            dotted = self.names.dotted(base)
            found = self.locate(dotted) if dotted is not None else None
            if found is not None and found[1]:
                keys.append(f"{found[0]}::{found[1]}.{method}{suffix}")
        return keys

    def of_class(self, name: str, method: str, which: int | str, depth: int = 0) -> list[str]:
        """Keys of a parameter of a class's method, its own or an inherited one.

        `which` counts from the method's `self`.
        """
        if f"{name}.{method}" in self.functions:
            return [self.parameter(f"{name}.{method}", which)]
        owner = self.classes.get(name)
        if owner is None or depth > STEPS:
            return []
        return self._inherited(owner, method, which - 1 if isinstance(which, int) else which, depth)

    def _unbound(self, name: ast.Name) -> str | None:
        """A function that a name bound nowhere here stands for, through `import *`."""
        return self._starred(name.id, "") if self.names.lookup(name.id, name) is None else None

    def _local_function(self, name: ast.Name) -> str | None:
        """Qualified name of the function or class of this module that `name` means."""
        found = self.names.lookup(name.id, name)
        if found is None:
            return None
        if len(found[1]) != 1 and any(each.kind != "function" for each in found[1]):
            return None
        binding = found[1][-1]  # of several functions of one name: overloads and what they are for
        if isinstance(binding.value, ast.Lambda) and binding.kind == "assign":
            return self.qualified(self.names.scopes[binding.value])
        if binding.kind not in ("function", "class"):
            return None
        prefix = self.qualified(found[0])
        return f"{prefix}.{name.id}" if prefix else name.id

    def parameter(self, function: str, which: int | str) -> str:
        """`function#name` for a parameter given by name or position (of a class: its __init__)."""
        node = self.functions.get(function)
        if node is None and f"{function}.__init__" in self.functions:
            function += ".__init__"
            node = self.functions[function]
            which = which + 1 if isinstance(which, int) else which
        if isinstance(which, str):
            return f"{function}#{which}"
        arguments = getattr(node, "args", None)
        if arguments is None:
            # A class without __init__: a dataclass takes its fields in order.
            return f"{function}@{which}"
        positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        return (
            f"{function}#{positional[which]}" if which < len(positional) else f"{function}@{which}"
        )

    def into(self, value: ast.expr, target: str) -> None:
        """`value` may become the value of `target`."""
        if goes_nowhere(value):
            return
        for leaf in self.leaves(value):
            if isinstance(leaf, str):
                if leaf != target:
                    self.edges[leaf].add(target)
            else:
                self.literals[leaf].add(target)
        if not target.startswith(SINK) and self.is_device(value):
            self.device_like.add(target)

    def leaves(self, value: ast.expr, depth: int = 0) -> Iterable[str | ast.expr]:
        """Keys and string literals that an expression's value may be."""
        if depth > 20:
            return
        if isinstance(value, ast.Constant):
            yield value
        elif isinstance(value, ast.Call):  # the kinds that are frequent come first
            yield from self._called(value, depth)
        elif isinstance(value, ast.JoinedStr):
            yield value
            if value.values and isinstance(value.values[0], ast.FormattedValue):
                yield from self.leaves(value.values[0], depth + 1)  # f"{kind}:{index}"
        elif isinstance(value, (ast.Name, ast.Attribute)):
            if isinstance(value, ast.Attribute) and value.attr == "value":
                yield from self.leaves(value.value, depth + 1)  # of an enumeration's member
            key = self.key(value)
            if key:
                yield key
        elif isinstance(value, ast.IfExp):
            yield from self.leaves(value.body, depth + 1)
            yield from self.leaves(value.orelse, depth + 1)
        elif isinstance(value, ast.BoolOp):
            for part in value.values:
                yield from self.leaves(part, depth + 1)
        elif isinstance(value, (ast.List, ast.Tuple, ast.Set)):
            for part in value.elts:
                yield from self.leaves(part, depth + 1)
        elif isinstance(value, ast.Dict):
            for part in value.values:
                yield from self.leaves(part, depth + 1)
        elif isinstance(value, COMPREHENSIONS):
            part = value.value if isinstance(value, ast.DictComp) else value.elt
            yield from self.leaves(part, depth + 1)
        elif isinstance(value, ast.NamedExpr):
            yield from self.leaves(value.value, depth + 1)
            yield from self.leaves(value.target, depth + 1)
        elif isinstance(value, (ast.Starred, ast.Await, ast.FormattedValue)):
            yield from self.leaves(value.value, depth + 1)
        elif isinstance(value, ast.BinOp):
            yield from self.leaves(value.left, depth + 1)
            if isinstance(value.op, (ast.Add, ast.BitOr)) and is_list(value.right):
                yield from self.leaves(value.right, depth + 1)  # `["cpu"] + ["cuda"]`
        elif isinstance(value, ast.Subscript):
            yield from self._subscript(value, depth)

    def _subscript(self, value: ast.Subscript, depth: int) -> Iterable[str | ast.expr]:
        if isinstance(value.slice, ast.Constant) and isinstance(value.slice.value, str):
            if value.slice.value.isidentifier():
                yield self._entry(value.value, value.slice.value)
            return
        yield from self.leaves(value.value, depth + 1)

    def _called(self, call: ast.Call, depth: int) -> Iterable[str | ast.expr]:
        callee = self.names.dotted(call.func) or getattr(call.func, "id", None)
        if callee in SEVERAL:
            for argument in call.args:
                yield from self.leaves(argument, depth + 1)
            return
        position = self.sinks.through_calls.get(callee or "")
        if position is not None and position < len(call.args):
            yield from self.leaves(call.args[position], depth + 1)
            return
        default = self.sinks.default_calls.get(callee or "")
        if default is None and isinstance(call.func, ast.Attribute) and call.args:
            default = self.sinks.default_methods.get(call.func.attr)
        if default is not None:
            yield from self._defaults(call, default, depth)
            return
        if isinstance(call.func, ast.Attribute):
            if call.func.attr == "join" and call.args:
                yield from self.leaves(call.args[0], depth + 1)  # `":".join(["cuda", "1"])`
                return
            if call.func.attr in self.sinks.through_methods or (
                call.func.attr == "format" and isinstance(call.func.value, ast.Constant)
            ):
                yield from self.leaves(call.func.value, depth + 1)
                return
            if isinstance(call.func.value, ast.Name) and call.func.value.id in ("self", "cls"):
                owner = self.names.enclosing(call, (ast.ClassDef,))
                if owner is not None:
                    method = f"{self.qualified(self.names.scopes[owner])}.{call.func.attr}"
                    yield f"{method}()"
                    if method not in self.functions and call.func.attr not in self.sinks.everyday:
                        yield f".{call.func.attr}()"  # inherited
                return
            if callee is None and call.func.attr not in self.sinks.everyday:
                yield f".{call.func.attr}()"  # a method of whatever object
        if isinstance(call.func, ast.Name):
            local = self._local_function(call.func) or self._unbound(call.func)
            if local is not None:
                yield f"{local}()"
                return
        if callee is not None:
            found = self.locate(callee)
            if found is not None and found[1]:
                yield f"{found[0]}::{found[1]}()"

    def _named(self, call: ast.Call, name: str) -> None:
        """`setattr(o, "device", …)` and `parametrize("device", […])`."""
        position = NAMING[name]
        first = call.args[position - 1] if position < len(call.args) else None
        named = first.value if isinstance(first, ast.Constant) else None
        if isinstance(first, (ast.List, ast.Tuple)):
            named = ",".join(str(getattr(each, "value", "")) for each in first.elts)
        if not isinstance(named, str):
            return
        parameters = [each.strip() for each in named.split(",")]
        for at, parameter in enumerate(parameters):
            kind = self.sinks.names.get(parameter)
            targets = [SINK + kind] if kind else []
            decorated = getattr(call, "parent", None)
            if isinstance(decorated, FUNCTIONS):
                targets.append(f"{self.qualified(self.names.scopes[decorated])}#{parameter}")
            elif name != "parametrize":
                targets.append(f".{parameter}")
            given = [call.args[position]]
            if len(parameters) > 1:  # `parametrize("device, size", [("cuda", 1), …])`
                rows = getattr(given[0], "elts", [])
                kinds = (ast.List, ast.Tuple, ast.Set, ast.Call)
                rows = [row for row in rows if isinstance(row, kinds)]
                columns = (getattr(row, "elts", getattr(row, "args", [])) for row in rows)
                given = [each[at] for each in columns if at < len(each)]
            for value in given:
                for target in targets:
                    self.into(value, target)

    def _defaulted(self, call: ast.Call, callee: str | None) -> None:
        """`cfg.get("device", "cuda")`: the default of an option that is a sink by its name."""
        position = self.sinks.default_calls.get(callee or str(getattr(call.func, "id", "")))
        if position is None and isinstance(call.func, ast.Attribute):
            position = self.sinks.default_methods.get(call.func.attr)
        kind = self.sinks.names.get(looked_up(call) or "") if position is not None else None
        if kind and position is not None and 0 < position < len(call.args):
            self.into(call.args[position], SINK + kind)

    def _defaults(self, call: ast.Call, position: int, depth: int) -> Iterable[str | ast.expr]:
        """The value of `get(key, default)`: the option `key`, or the default."""
        for keyword in call.keywords:
            if keyword.arg in ("default", "default_value"):
                yield from self.leaves(keyword.value, depth + 1)
            elif keyword.arg == "default_factory":
                made = keyword.value.body if isinstance(keyword.value, ast.Lambda) else None
                named = keyword.value if isinstance(keyword.value, ast.Name) else None
                local = self._local_function(named) if named is not None else None
                yield from self.leaves(made, depth + 1) if made is not None else ()
                yield from (f"{local}()",) if local is not None else ()
        if 0 <= position < len(call.args):
            yield from self.leaves(call.args[position], depth + 1)
        name = looked_up(call)
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if name is not None:
            yield self._entry(owner, name)
        elif isinstance(owner, (ast.Name, ast.Attribute, ast.Dict)) and not isinstance(
            call.args[0] if call.args else None, (ast.Constant, type(None))
        ):
            yield from self.leaves(owner, depth + 1)  # `TABLE.get(device)`: any of its values

    def _entry(self, owner: ast.expr | None, name: str) -> str:
        """The key of `owner["name"]`: a keyword of the function for its `**kwargs`."""
        function = self.rest_of(owner) if owner is not None else None
        return f"{function}#{name}" if function is not None else f".{name}"

    def key(self, node: ast.expr) -> str | None:
        """The key of a variable or attribute, None for what can't be named."""
        if isinstance(node, ast.Name):
            found = self.names.lookup(node.id, node)
            if found is None:
                return self._starred(node.id, "#")
            imports = [b.dotted for b in found[1] if b.kind == "import"]
            if imports and imports[0]:
                return self._foreign(imports[0])
            return f"{self.qualified(found[0])}#{node.id}"
        if not isinstance(node, ast.Attribute):
            return None
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            owner = self.names.enclosing(node, (ast.ClassDef,))
            if owner is not None:
                return f"{self.qualified(self.names.scopes[owner])}.{node.attr}"
        dotted = self.names.dotted(node)
        if dotted is not None:
            return self._foreign(dotted)
        return f".{node.attr}"

    def _starred(self, name: str, mark: str) -> str | None:
        """The key of a name that only `from … import *` of the project can give; else None."""
        homes = self.names.starred(name)
        return f"{homes[0]}::{mark}{name}" if len(homes) == 1 else None

    def _foreign(self, dotted: str) -> str | None:
        found = self.locate(dotted)
        if found is None or not found[1]:
            return None
        _, inside, name = found[1].rpartition(".")
        return f".{name}" if inside else f"{found[0]}::#{name}"  # an attribute of a class

    # -- asking ------------------------------------------------------------------------------

    def is_device(self, value: ast.expr, depth: int = 0) -> bool:
        """Whether an expression is a device, a device type or the name of one, by its form."""
        if depth > 10 or isinstance(value, ast.Constant):
            return False
        if isinstance(value, ast.Name):
            return self.key(value) in self.device_like
        if isinstance(value, ast.Attribute):
            if value.attr in self.sinks.device_attributes:
                return True
            if value.attr in ("type", "index"):
                return self.is_device(value.value, depth + 1)
            return self.key(value) in self.device_like
        if isinstance(value, ast.IfExp):
            return self.is_device(value.body, depth + 1) or self.is_device(value.orelse, depth + 1)
        if isinstance(value, COMPREHENSIONS) and not isinstance(value, ast.DictComp):
            return self.is_device(value.elt, depth + 1)
        if isinstance(value, (ast.List, ast.Tuple, ast.Set)) and value.elts:
            return all(self.is_device(each, depth + 1) for each in value.elts)
        if isinstance(value, ast.NamedExpr):
            return self.is_device(value.value, depth + 1)
        if isinstance(value, ast.Call):
            callee = self.dotted(value.func) or getattr(value.func, "id", None)
            if callee == "torch.device":
                return True
            if callee == "str" and value.args:
                return self.is_device(value.args[0], depth + 1)
            unchanged = (*self.sinks.through_methods, "split", "replace")
            if isinstance(value.func, ast.Attribute) and value.func.attr in unchanged:
                return self.is_device(value.func.value, depth + 1)
            local = self._local_function(value.func) if isinstance(value.func, ast.Name) else None
            return local is not None and f"{local}()" in self.device_like
        return isinstance(value, ast.Subscript) and self.is_device(value.value, depth + 1)

    def _spread_device_like(self) -> None:
        """Follow device expressions forward through assignments."""
        todo = list(self.device_like)
        while todo:
            for target in self.edges.get(todo.pop(), ()):
                if target not in self.device_like and not target.startswith(SINK):
                    self.device_like.add(target)
                    todo.append(target)


def goes_nowhere(value: ast.expr) -> bool:
    """Whether a value is a number, a truth value or None: no device, and no name of one."""
    return isinstance(value, ast.Constant) and not isinstance(value.value, str)


def knows_accelerators(names: ModuleScopes) -> bool:
    """Whether a file knows a framework that names its accelerators."""
    return any(map(names_accelerators, names.root.names.items()))


def names_accelerators(bound: tuple[str, list[Binding]]) -> bool:
    """Whether a name of a file is Lightning's, or a class like its `CUDAAccelerator`."""
    name, bindings = bound
    dotted = bindings[0].dotted or ""
    framework = dotted.split(".")[0] in ("lightning", "pytorch_lightning", "lightning_fabric")
    return framework or (name.endswith("Accelerator") and name != "Accelerator")


def text(value: ast.expr) -> bool:
    """Whether an expression is a text by its form, as what is added to a text."""
    return isinstance(value, (ast.Constant, ast.JoinedStr, ast.BinOp))


def called_name(value: ast.expr) -> str:
    """The plain name that is called here; empty for any other expression."""
    return str(getattr(value.func, "id", "")) if isinstance(value, ast.Call) else ""


def is_list(value: ast.expr) -> bool:
    """Whether an expression is a list by its form."""
    if isinstance(value, ast.IfExp):
        return is_list(value.body) or is_list(value.orelse)
    if isinstance(value, ast.BinOp):
        return is_list(value.left) or is_list(value.right)
    return isinstance(value, (ast.List, ast.Tuple, ast.Set, ast.ListComp, ast.SetComp))
