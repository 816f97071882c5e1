"""Two values that meet are placed together: where the move of one waits, so does the other's.

    self.model = self.model.cuda()       in one method waits, `x.cuda()` of another method waits
    model.cuda()                         waits, and with it functions that ask for that `model`,
                                         and those of the file that are handed it

    self.net(rows.cuda())                waits, and with it what else is placed in its class

With one half moved a tensor on the target would meet a model on the host. Followed by name: the
attributes of a class, with the classes of the file that it derives from and those that derive from
it; variables of a file; arguments of calls of the file's functions. Not from file to file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from joymigrate.language import Text
from joymigrate.model import Tier
from joymigrate.rewrite import device_tests
from joymigrate.rewrite.expressions import OriginMention
from joymigrate.rewrite.groups import Groups
from joymigrate.rewrite.receivers import find_bases
from joymigrate.rewrite.scopes import FUNCTIONS
from joymigrate.rewrite.third_party import is_foreign

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

# Rules of what puts a value on the device: methods, devices by text, tensors' types.
PLACING = ("JM110", "JM120", "JM121", "JM122")
METHOD = "JM110"
OUTSIDE = "`{text}` (line {line}) belongs to it and stays: look at both"
WAITS = "it meets `{text}` (line {line}), which is not moved yet"


def find(groups: Groups, doubtful: Mapping[int, str]) -> dict[int, str]:
    """Findings that wait as they meet one that waits: their numbers, each with the reason."""
    found: dict[int, str] = {}
    waiting = [number for number in range(len(groups.findings)) if waits(groups, number, doubtful)]
    while waiting:
        fresh: dict[int, str] = {}
        for number in waiting:
            for other in find_met(groups, number):
                if other not in found and other not in doubtful and moves(groups, other):
                    test = str(doubtful.get(number, found.get(number)))
                    same = test == str(Text(device_tests.WAITS))
                    fresh.setdefault(other, test if same else tell(groups, number))
        found |= fresh
        waiting = list(fresh)
    return found


def waits(groups: Groups, number: int, doubtful: Mapping[int, str]) -> bool:
    """Whether what puts a value on the device is not made by itself."""
    finding = groups.findings[number]
    if number in groups.elsewhere or not (
        finding.rule in PLACING or finding.before.endswith("Tensor")
    ):
        return False
    told = number in doubtful or number in groups.doubtful or number in groups.stay
    return bool(finding.edits) and (told or finding.tier is Tier.UNSAFE)


def moves(groups: Groups, number: int) -> bool:
    """Whether an edit is made by itself, as far as its group tells."""
    finding = groups.findings[number]
    done = bool(finding.edits) and finding.tier is Tier.SAFE and finding.rule != "JM001"
    return done and number not in groups.stay and number not in groups.doubtful


def tell(groups: Groups, number: int) -> str:
    """The reason, with the statement that waits."""
    finding = groups.findings[number]
    node = statement_around(groups, number)
    text = " ".join((groups.module.text(node) if node is not None else finding.before).split())
    return Text(WAITS, text=text if len(text) < 60 else f"{text[:59]}…", line=finding.line)


def statement_around(groups: Groups, number: int) -> ast.AST | None:
    """The whole expression that a finding stands in."""
    at = groups.expression_at(groups.offset(groups.findings[number]))
    return groups.expressions[at].node if at is not None else None


def find_met(groups: Groups, number: int) -> Iterator[int]:
    """Findings of code that meets the value which a finding places."""
    if groups.findings[number].rule == METHOD:
        around = statement_around(groups, number)
        yield from find_beside(groups, around) if around is not None else ()
    node = statement_around(groups, number)
    for key in find_placed(groups.module, node) if node is not None else ():
        if isinstance(key, ast.Attribute):
            home = groups.module.names.enclosing(key, (ast.ClassDef,))
            if home is not None:
                yield from groups._inside(family(groups.module, home))
        else:
            yield from groups._inside(functions_with(groups.module, key))


def find_outside(groups: Groups) -> dict[int, str]:
    """What meets a value that a package outside of the project places, with its guards.

    `sample = utils.move_to_cuda(sample) if use_cuda else sample` of another package's `utils`: on
    the target it fails, or leaves the sample where it is.
    """
    module = groups.module
    found: dict[int, str] = {}
    device = re.escape(module.vocabulary.device)
    placing = re.compile(rf"(?:^|_)(?:to|move|put|copy|send|transfer|convert)_(?:\w+_)?{device}$")
    for call in module.names.nodes[ast.Call] if f"_{device}(" in module.source.text else ():
        dotted = module.names.dotted(call.func) or ""
        if not placing.search(dotted.rpartition(".")[2]) or not is_foreign(module, dotted):
            continue
        start, end = module.span(call)
        place = OriginMention(call, start, end, hard=True)
        text, line = module.text(call.func), call.lineno
        for number in (*groups._with_guard(place, hold=False), *find_beside(groups, call)):
            found.setdefault(number, Text(OUTSIDE, text=text, line=line))
    return found


def find_beside(groups: Groups, node: ast.AST) -> Iterator[int]:
    """What puts a value on the device in the class, else in the function, of a place that waits.

    `self.net(rows.cuda())` waits: so does `self.net.cuda()`.
    """
    module = groups.module
    home = module.names.enclosing(node, (ast.ClassDef,))
    parts: list[ast.AST] = list(family(module, home)) if home is not None else []
    at: ast.AST | None = node if home is None else None
    while at is not None:
        parts = [at] if isinstance(at, FUNCTIONS) else parts
        at = getattr(at, "parent", None)
    for other in groups._inside(parts):
        if groups.findings[other].rule in PLACING:
            yield other


def find_placed(module: Module, node: ast.AST) -> list[ast.Name | ast.Attribute]:
    """Variables, and attributes of `self`, whose values a statement places."""
    targets: Iterable[ast.expr] = ()
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Expr):
        value: ast.expr = node.value
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func.value
        targets = [value] if value is not node.value else []
    found: list[ast.Name | ast.Attribute] = []
    for target in targets:
        for each in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            of_self = isinstance(each, ast.Attribute) and getattr(each.value, "id", "") == "self"
            if of_self or (isinstance(each, ast.Name) and module.names.dotted(each) is None):
                found.append(each)  # type: ignore[arg-type]
    return found


def family(module: Module, home: ast.ClassDef) -> list[ast.ClassDef]:
    """A class, the classes of the file that it derives from, and those that derive from it."""
    heirs = [each for each in module.names.nodes[ast.ClassDef] if home in find_bases(module, each)]
    return [home, *find_bases(module, home), *heirs]


def functions_with(module: Module, name: ast.Name) -> list[ast.AST]:
    """Functions that read a variable of the file, or are handed a variable of a function."""
    found = module.names.lookup(name.id, name)
    if found is None:
        return []
    scope, todo = found[0], [(found[0], name.id)]
    seen: list[ast.AST] = []
    functions = {each.name: each for kind in FUNCTIONS for each in module.names.nodes[kind]}
    while todo:
        home, text = todo.pop()
        for use in module.names.nodes[ast.Name]:
            if use.id != text or not isinstance(use.ctx, ast.Load):
                continue
            bound = module.names.lookup(text, use)
            if bound is None or bound[0] is not home:
                continue
            within = module.names.enclosing(use, FUNCTIONS)
            if home.parent is None and within is not None and within not in seen:
                seen.append(within)
            call = use.parent
            called = functions.get(getattr(getattr(call, "func", None), "id", ""))
            if isinstance(call, ast.Call) and use in call.args and called is not None:
                at = call.args.index(use)
                given = [*called.args.posonlyargs, *called.args.args]
                inner = module.names.scopes.get(called)
                if called not in seen and at < len(given) and inner is not None:
                    seen.append(called)
                    todo.append((inner, given[at].arg))
    return [*seen, *top_level(module, name.id)] if scope.parent is None else seen


def top_level(module: Module, name: str) -> Iterator[ast.stmt]:
    """Statements outside of functions and classes that speak of a variable of the file."""
    for statement in module.tree.body:
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            continue
        if any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(statement)):
            yield statement
