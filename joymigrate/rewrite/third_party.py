"""Devices, and answers of questions for one, that go to packages outside of the project.

    WhisperModel(name, device=device)           such a package may know "cpu" and "cuda" alone,
    GradCAM(model, use_cuda="cuda" in device)   or call `.cuda()` where it is told that there is one

What arrives there needs review, unless the package is known to take any device of torch's
(`rules/common/third_party.yaml`, and the chip's file of that name). Values are followed inside of
the file, through names, attributes and functions; not through a function of another file.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from joymigrate.chips import read_yaml, rules_root
from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.context import Context, once_per_rules
from joymigrate.rewrite.flow import GROWING, Flow, goes_nowhere
from joymigrate.rewrite.flow_graph import SINK
from joymigrate.rewrite.guards import negative
from joymigrate.rewrite.option_calls import OPTION_CALLS
from joymigrate.rewrite.receivers import find_kept

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

FILE = "third_party.yaml"
BACKEND = "JM130"  # names of collective backends, which torch alone reads
DEVICE = "{package} is handed this device, and may know none but those that it names"
ANSWER = "{package} is handed this answer, and may use the origin's device by itself"
HOST = "this file uses {package}, which has kernels for the host and the origin alone"
ALONE = "this file uses {package}, which places what it gets on the origin's device by itself"
COUNTED = "it decides about {name}, by which libraries count the origin's cards"
ASKED = ("is_available", "device_count", "current_device")
# Objects whose `device` is a setting; a tensor's own is where it is already.
SETTINGS = re.compile(r"arg|opt|cfg|conf|param|flag|setting|self|cls|space|ctx|spec", re.I)
ANYBODYS = {
    "format", "update", "join", "replace", "startswith", "endswith", "split", "info", "debug",
    "warning", "error", "log", "print", "write", "encode", "cuda", "type", "device", "to_device",
    "state_dict", "load_state_dict", "assertEqual", "assertTrue", "assertFalse", "set_device",
    *GROWING, *OPTION_CALLS,
}  # fmt: skip
DEPTH = 4  # values that a name is looked for behind
Leaf = str | ast.expr


@dataclass(frozen=True, slots=True)
class PackageTable:
    """What is known about packages. `known`: those that may be handed a device."""

    known: frozenset[str]
    neutral: frozenset[str]  # parameters
    counts: tuple[str, ...]  # keys and parameters
    host_kernels: frozenset[str]  # packages with kernels for the host and the origin alone
    host_names: frozenset[str]  # and names that give their objects
    host_alone: frozenset[str]  # the same where a file can't do without them
    bound: frozenset[str]  # packages that do nothing without the origin's device
    placed: frozenset[str]  # names of others that choose the origin's device by themselves


class GroupedFindings(Protocol):
    """What is asked of the groups of a module's findings (`groups.Groups`)."""

    module: Module
    findings: list[Finding]
    stay: dict[int, str]

    def offset(self, finding: Finding) -> int:
        """Where a finding starts in the text."""


@once_per_rules
def table_of(context: Context) -> PackageTable:
    """The table of a move, from the rules for all chips and the chip's own."""
    common: dict[str, Any] = read_yaml(rules_root() / "common" / FILE)
    own = context.chip.data(FILE) or {}
    bound = [*common["bound"], *own.get("bound", ())]
    listed = [*common["passes_on"], *common["carries"], *own.get("knows", ())]
    return PackageTable(
        frozenset(name for item in listed for name in item["packages"]),
        frozenset(common["neutral_parameters"]),
        tuple(common["counts"]),
        frozenset(name for item in common["host_kernels"] for name in item["packages"]),
        frozenset(name for item in common["host_kernels"] for name in item["names"]),
        frozenset(name for item in common["host_alone"] for name in item["packages"]),
        frozenset(name for item in bound for name in item["packages"]),
        frozenset(name for item in common["origin_alone"] for name in item["names"]),
    )


def find(groups: GroupedFindings) -> dict[int, str]:
    """Findings whose value, or whose answer, a package outside of the project is handed."""
    module = groups.module
    moving = {
        number: finding
        for number, finding in enumerate(groups.findings)
        if finding.edits and finding.tier is Tier.SAFE and number not in groups.stay
        if finding.rule != BACKEND
    }
    table = table_of(module.context)
    counted = [word for word in table.counts if word in module.source.text]
    if not moving or module.context.chip.origin or not (counted or imports_foreign(module)):
        return {}
    places = find_places(module, {finding.line for finding in moving.values()})
    if not places:
        return {}
    arrivals = Arrivals(module)
    if not (counted or arrivals.packages):
        return {}
    found: dict[int, str] = {}
    compared: list[tuple[int, ast.Compare]] = []
    handed: set[str] = set()  # keys that hold a device which arrives
    for number in moving:
        for node in places.get(groups.offset(groups.findings[number]), ()):
            question = find_question(module, node)
            if question is None:
                keys = module.flow.literals.get(node, set())
                package = arrivals.of([node, *keys])
                if package is not None:
                    found[number] = Text(DEVICE, package=package)
                    handed |= spread(module.flow, keys)
                continue
            if isinstance(question, ast.Compare):
                compared.append((number, question))
            reason = AnswerFlow(module, arrivals, table).follow(question)
            if reason is not None:
                found[number] = reason
    for number, question in compared if handed else ():
        leaves = (module.flow.leaves(each) for each in (question.left, *question.comparators))
        if number not in found and any(leaf in handed for part in leaves for leaf in part):
            found[number] = Text("it is compared with a device that needs review")
    return found


def find_bound(module: Module) -> Text | None:
    """Why a file as a whole needs review: what it uses knows the host and the origin alone."""
    table = table_of(module.context)
    placed = (name.rpartition(".")[2] for name in table.placed)
    words = {*table.host_kernels, *table.host_names, *table.host_alone, *placed}
    if not any(word in module.source.text for word in words):
        return None
    for node in module.tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            base = module.names.absolute(node)
            names = [f"{base}.{alias.name}" for alias in node.names]
        parts = (part for name in names for part in name.split("."))
        package = next((part for part in parts if part in table.host_alone), None)
        if package is not None:
            return Text(HOST, package=package)
    for _, dotted in module.names.imported_chains():
        if dotted.partition(".")[0] in table.host_kernels:
            return Text(HOST, package=dotted.partition(".")[0])
        if dotted.rpartition(".")[2] in table.host_names:
            return Text(HOST, package=dotted)
        if dotted in table.placed:
            return Text(ALONE, package=dotted)
    return None


def find_places(module: Module, lines: set[int]) -> dict[int, list[ast.expr]]:
    """Expressions in some `lines` that a finding of a device or of a question may stand at.

    By their start.
    """
    nodes = module.names.nodes
    flag, platform = module.context.origin.tensor["is_cuda"], f"{module.vocabulary.module}."
    asking = (
        node
        for node in nodes[ast.Attribute]
        if node.attr == flag
        or (node.attr in ASKED and (module.names.dotted(node) or "").startswith(platform))
    )
    names = (node for node in nodes[ast.Name] if node.lineno in lines)
    named = (node for node in names if (module.names.dotted(node) or "")[:6] == "torch.")
    found: dict[int, list[ast.expr]] = {}
    for node in (*(node for node, _ in module.spoken), *nodes[ast.JoinedStr], *asking, *named):
        if node.lineno in lines:
            found.setdefault(module.span(node)[0], []).append(node)
    return found


def find_question(module: Module, node: ast.expr) -> ast.expr | None:
    """The expression whose value is the answer to a question at `node`; None for a device."""
    parent = getattr(node, "parent", None)
    if isinstance(node, (ast.Attribute, ast.Name)):
        dotted = module.names.dotted(node) or ""
        asked = dotted.rpartition(".")[2] in ASKED
        called = isinstance(parent, ast.Call) and parent.func is node
        return parent if asked and called else node
    if isinstance(parent, ast.Compare):
        return parent
    if isinstance(parent, ast.Call) and node in parent.args:
        method = getattr(parent.func, "attr", "")
        return parent if method in ("startswith", "endswith") else None
    return None


def spread(flow: Flow, keys: Iterable[str]) -> set[str]:
    """All keys of the file that values under `keys` go on to."""
    seen = {key for key in keys if not key.startswith(SINK)}
    todo = list(seen)
    while todo:
        key = todo.pop()
        onward = (*flow.edges.get(key, ()), *flow._same_attribute(key), *flow._forwarded(key))
        for each in onward:
            if each not in seen and not each.startswith(SINK):
                seen.add(each)
                todo.append(each)
    return seen


def imports_foreign(module: Module) -> bool:
    """Whether a file imports a package that may be handed no device."""
    return any(
        binding.dotted and is_foreign(module, binding.dotted)
        for scope in module.names.scopes.values()
        for bindings in scope.names.values()
        for binding in bindings
        if binding.kind == "import"
    )


def is_foreign(module: Module, dotted: str) -> bool:
    """Whether a name is of a package that is neither Python's, the project's, nor known."""
    root = dotted.partition(".")[0]
    if not root or root in sys.stdlib_module_names or module.project.owns(root):
        return False
    known = table_of(module.context).known
    if any(name in known for name in parents(dotted)):
        return False
    return module.project.locate(dotted) is None and module.project.locate(root) is None


def parents(name: str) -> Iterator[str]:
    """A dotted name and those above it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


class Arrivals:
    """What arrives at calls of packages outside of the project: values by their key or place."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.packages: dict[Leaf, str] = {}
        self.table = table_of(module.context)
        self._called: dict[ast.Call, str | None] = {}
        for call in module.names.nodes[ast.Call]:
            if (call.args or call.keywords) and (package := self.called(call)):
                self._note(call, package)

    def called(self, call: ast.Call) -> str | None:
        """The package outside of the project that a call calls."""
        if call not in self._called:
            self._called[call] = next(self._of_callee(call.func, DEPTH), None)
        return self._called[call]

    def of(self, values: Iterable[Leaf]) -> str | None:
        """The package at which one of these literals, or what a key of them goes on to, arrives."""
        given = list(values)
        keys = spread(self.module.flow, (each for each in given if isinstance(each, str)))
        literals = (each for each in given if not isinstance(each, str))
        return next((self.packages[e] for e in (*literals, *keys) if e in self.packages), None)

    def _note(self, call: ast.Call, package: str) -> None:
        """Note the values of a call's arguments."""
        given = [*call.args]
        for keyword in call.keywords:
            if keyword.arg is None:
                given += [value for _, value in self.module.flow._written_table(keyword.value)]
            elif keyword.arg not in self.table.neutral:
                given.append(keyword.value)
        for value in given:
            if goes_nowhere(value) or is_placed(self.module, value):
                continue
            for leaf in self.module.flow.leaves(value):
                self.packages.setdefault(leaf, package)

    def _of_callee(self, func: ast.expr, depth: int) -> Iterator[str]:
        """Packages that what is called may be of."""
        if not depth:
            return
        dotted = self.module.names.dotted(func)
        if dotted is not None:
            if is_foreign(self.module, dotted):
                yield dotted.partition(".")[0]
        elif isinstance(func, ast.Name):
            found = self.module.names.lookup(func.id, func)
            for binding in found[1] if found is not None else ():
                if binding.kind == "assign" and binding.value is not None:
                    yield from self._of_value(binding.value, depth - 1)
        elif isinstance(func, ast.Call):
            yield from self._of_callee(func.func, depth - 1)  # `get_class("x")(device=…)`
        elif isinstance(func, ast.Attribute) and not self._anybodys(func.attr):
            owner = func.value
            if isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "super":
                made = self.module.names.enclosing(func, (ast.ClassDef,))
                for base in getattr(made, "bases", ()):
                    yield from self._of_callee(base, depth - 1)
            else:
                yield from self._of_callee(owner, depth - 1)  # a method of what such a call made

    def _of_value(self, value: ast.expr, depth: int) -> Iterator[str]:
        """The same for a value that a name stands for: a choice, an entry of a table, an object."""
        if isinstance(value, ast.IfExp):
            yield from self._of_value(value.body, depth)
            yield from self._of_value(value.orelse, depth)
        elif isinstance(value, ast.Dict):
            for each in value.values:
                yield from self._of_callee(each, depth)
        elif isinstance(value, ast.Subscript):
            yield from self._of_callee(value.value, depth)
        elif isinstance(value, (ast.Name, ast.Attribute, ast.Call)):
            yield from self._of_callee(value, depth)

    def _anybodys(self, method: str) -> bool:
        """Whether a method says nothing of the package: it keeps a value, or places with torch."""
        sinks = self.module.sinks
        return method in ANYBODYS or method in sinks.methods or method in sinks.default_methods


def is_placed(module: Module, value: ast.expr) -> bool:
    """Whether a value is the device of a tensor or a module, which is where it is already."""
    if not isinstance(value, ast.Attribute) or value.attr not in module.sinks.device_attributes:
        return False
    owner = value.value
    name = getattr(owner, "attr", getattr(owner, "id", ""))
    return not SETTINGS.search(name) if name else not isinstance(owner, ast.Call)


class AnswerFlow:
    """Where the answer of one question goes."""

    def __init__(self, module: Module, arrivals: Arrivals, table: PackageTable) -> None:
        self.module, self.arrivals, self.table = module, arrivals, table
        self.chosen = False  # what follows is no answer any more, but chosen by it

    def follow(self, value: ast.expr) -> str | None:
        """Why the question needs review; None where no such package sees its answer."""
        at: ast.AST = value
        parent: Any = getattr(at, "parent", None)
        while parent is not None:
            if isinstance(parent, ast.Call):
                if at is parent.func:
                    return None
                which: int | str = parent.args.index(at) if at in parent.args else 0
                name = getattr(parent.func, "id", "")
                if name != "dict" and not hasattr(builtins, name):
                    return self._handed(parent, which)
            elif isinstance(parent, ast.keyword):
                call = parent.parent  # type: ignore[attr-defined]
                if parent.arg in self.table.counts:
                    return Text(COUNTED, name=parent.arg)
                if parent.arg in self.table.neutral:
                    return None
                if getattr(getattr(call, "func", None), "id", "") != "dict":
                    return self._handed(call, parent.arg or "")
                at, parent = call, getattr(call, "parent", None)
                continue
            elif isinstance(parent, ast.Dict):
                key = self._key(parent, at)
                if key in self.table.counts:
                    return Text(COUNTED, name=key)
            elif isinstance(parent, ast.IfExp) and at is parent.test:
                both = (parent.body, parent.orelse)
                self.chosen = self.chosen or not all(isinstance(e, ast.Constant) for e in both)
            elif isinstance(parent, ast.If) and at is parent.test:
                return self._decides(parent)
            elif isinstance(parent, (ast.Assign, ast.AnnAssign)):
                targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
                return self._kept(targets)
            elif isinstance(parent, (ast.stmt, ast.FormattedValue, ast.comprehension, ast.Lambda)):
                return None
            at, parent = parent, getattr(parent, "parent", None)
        return None

    def _key(self, table: ast.Dict, value: ast.AST) -> str | None:
        """The key of a value in a table that is written out."""
        at = next((n for n, each in enumerate(table.values) if each is value), None)
        key = table.keys[at] if at is not None else None
        text = key.value if isinstance(key, ast.Constant) else None
        return text if isinstance(text, str) else None

    def _handed(self, call: ast.Call, which: int | str) -> str | None:
        """The answer is an argument."""
        if self.chosen:
            return None
        package = self.arrivals.called(call)
        if package is None:
            package = self.arrivals.of(self.module.flow.parameters(call, which))
        return Text(ANSWER, package=package) if package is not None else None

    def _kept(self, targets: Iterable[ast.expr]) -> str | None:
        """The answer is kept under a name or a key."""
        keys: list[str] = []
        for target in targets:
            key = target.slice if isinstance(target, ast.Subscript) else None
            if isinstance(key, ast.Constant) and key.value in self.table.counts:
                return Text(COUNTED, name=key.value)
            keys += self.module.flow.target_keys(target)
        package = self.arrivals.of(keys) if not self.chosen else None
        return Text(ANSWER, package=package) if package is not None else None

    def _decides(self, branch: ast.If) -> str | None:
        """The question decides what runs: what is set there to a constant carries its answer."""
        for statement in (*branch.body, *branch.orelse):
            if not isinstance(statement, ast.Assign):
                continue
            value = statement.value
            keys = [
                key.value for key in getattr(value, "keys", ()) if isinstance(key, ast.Constant)
            ]
            name = next((key for key in keys if key in self.table.counts), None)
            if name is not None:
                return Text(COUNTED, name=name)
            if getattr(value, "value", None) == "cpu" and negative(branch.test):
                made = (self._made_by(target) for target in statement.targets)
                package = next(filter(None, made), None)
                if package is not None:  # its own default is the origin's device
                    return Text(ANSWER, package=package)
            known = isinstance(value, ast.Constant) and not isinstance(value.value, str)
            reason = self._kept(statement.targets) if known else None
            if reason is not None:
                return reason
        return None

    def _made_by(self, target: ast.expr) -> str | None:
        """The package that made the object in which a setting is written: `cfg.MODEL.DEVICE`."""
        at = target
        while isinstance(at, (ast.Attribute, ast.Subscript)):
            owner = at.value
            if getattr(owner, "id", "") == "self" and isinstance(at, ast.Attribute):
                break
            at = owner
        if at is target:
            return None
        values: list[ast.expr | None] = []
        if isinstance(at, ast.Attribute):
            values += find_kept(self.module, at)
        elif isinstance(at, ast.Name):
            found = self.module.names.lookup(at.id, at)
            values += [each.value for each in found[1]] if found is not None else []
        calls = (each for each in values if isinstance(each, ast.Call))
        return next(filter(None, (self.arrivals.called(call) for call in calls)), None)
