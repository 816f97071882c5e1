"""Sites whose surroundings already serve the target: they are meant for the origin and stay.

if torch.<target>.is_available(): …        one branch names the target: the others don't serve it
else: torch.cuda.…
if is_<target>(): return …                 what follows a branch that leaves
self.is_cuda = …; self.is_<target> = …     the same once more for the target
{"cuda": "nccl", "<target>": …}            the target stands beside the origin
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from joymigrate.chips import all_chips
from joymigrate.language import Text

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

LEAVES = (ast.Return, ast.Continue, ast.Break)
ENDS = ("exit", "skip", "skipTest", "fail", "_exit", "quit")  # what a program or a test calls
# Flags that deny by their name: `no_cuda`, `nogpu`; not `on_node`, `norm_device`.
TWICE = re.compile(r"(?:^|[_-])(?:no|not|without|disable)(?:[_-]|(?=cuda|(?!c)[a-z]pu|accel|dev))")
# Names of a number of cards: `n_gpu`, `num_gpus`, `gpu_count`, `ngpus`, `device_count`.
COUNTED = re.compile(
    r"(?i)_?(?:n|num|number|count)s?_?(?:of_)?(?:gpu|card|device|cuda)s?"
    r"|_?(?:gpu|card|device|cuda)s?_(?:n|num|number|count)"
)
CONTAINERS = (ast.List, ast.Tuple, ast.Set, ast.Dict)


def find_guard(module: Module, node: ast.AST) -> str | None:
    """Why a site is left alone when its surroundings already know the target; else None."""
    words = module.vocabulary.target_words
    if words is None or not module.serves_target:
        return None
    child, parent = node, getattr(node, "parent", None)
    while parent is not None:
        if isinstance(parent, (ast.If, ast.IfExp, ast.Try)) and mentions_target(
            module, against(parent, child), words
        ):
            kind = type(parent).__name__.lower()
            return Text(
                "another branch of this {kind} already serves {chip}",
                kind=kind,
                chip=module.context.chip.name,
            )
        if isinstance(parent, ast.Dict) and entry_beside(module, parent, child):
            return Text(
                "another entry of this table already serves {chip}", chip=module.context.chip.name
            )
        twin = twin_of(module, child)
        if twin is not None:
            return Text("`{twin}` does this for {chip}", twin=twin, chip=module.context.chip.name)
        kind = "if" if isinstance(child, ast.stmt) else "condition"
        beside = leaving(parent, child) if kind == "if" else alternatives(parent, child)
        if mentions_target(module, beside, words):
            return Text(
                "another branch of this {kind} already serves {chip}",
                kind=kind,
                chip=module.context.chip.name,
            )
        child, parent = parent, getattr(parent, "parent", None)
    return None


def entry_beside(module: Module, table: ast.Dict, child: ast.AST) -> bool:
    """Whether `child` is the origin's entry in a table that has one for the target as well."""
    if child not in table.values:
        return False
    own = table.keys[table.values.index(child)]
    if not isinstance(own, ast.Constant) or own.value != module.vocabulary.device:
        return False
    others: list[ast.AST] = [key for key in table.keys if key is not None and key is not own]
    return mentions_target(module, others, module.vocabulary.target_string)


def is_listed(module: Module, node: ast.AST) -> bool:
    """Whether the target stands beside a site in the same list or dictionary."""
    if module.vocabulary.same_device or module.vocabulary.to_device not in module.source.text:
        return False
    child, parent = node, getattr(node, "parent", None)
    while isinstance(parent, ast.expr) and not isinstance(parent, (*CONTAINERS, ast.Call)):
        child, parent = parent, getattr(parent, "parent", None)
    others: list[ast.AST] = []
    if isinstance(parent, ast.Dict):
        own = child if child in parent.keys else parent.keys[parent.values.index(child)]  # type: ignore[arg-type]
        named = isinstance(own, ast.Constant) and own.value == module.vocabulary.device
        others = [key for key in parent.keys if key is not None and key is not own and named]
    elif isinstance(parent, CONTAINERS):
        others = [part for part in ast.iter_child_nodes(parent) if part is not child]
    return mentions_target(module, others, module.vocabulary.target_string)


def mentions_target(module: Module, parts: list[ast.AST], words: re.Pattern[str]) -> bool:
    """Whether any of these parts of the code names the target."""
    return any(hasattr(p, "lineno") and words.search(module.text(p)) is not None for p in parts)


def against(parent: ast.If | ast.IfExp | ast.Try, child: ast.AST) -> list[ast.AST]:
    """The parts of a statement that run instead of `child`, or decide against it."""
    test = getattr(parent, "test", None)
    if test is not None and child is test:
        # A test goes with its own branch: `if cuda: … elif <target>: …`.
        return list(parent.orelse) if isinstance(parent.orelse, list) else [parent.orelse]
    body = parent.body if isinstance(parent.body, list) else [parent.body]
    here = next((part for part in branches(parent) if child in part), [child])
    others = [part for part in ast.iter_child_nodes(parent) if part not in here]
    if test is None or child not in body:
        return others
    # `if on_target: …` is the target's own branch, `if not on_target: …` is not.
    return others if negative(test) else [part for part in others if part is not test]


def negative(test: ast.AST) -> bool:
    """Whether a condition denies something; of several parts, one that speaks of a device does.

    `not x.is_available() or small` is negative; `not other_vendor and x.is_here()` is not, nor is
    `not no_cuda and x.is_here()`, or `x.is_here() and not y.is_here()`.
    """
    parts = list(flatten(test))
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and affirms(parts):
        return False
    asking = [part for part in parts if names_device(part)]
    questions = [part for part in asking if asks_for(part)]
    return any(map(denies, questions or asking or parts))


def affirms(parts: list[ast.AST]) -> bool:
    """Whether parts that must all hold ask for one tensor's device, and deny that of another."""
    flags = [part for part in parts if is_flag(part)]
    denied = [part for part in parts if isinstance(part, ast.UnaryOp) and is_flag(part.operand)]
    others = [part for part in parts if part not in flags and part not in denied]
    return bool(flags and denied) and not any(map(denies, others))


def is_flag(part: ast.AST) -> bool:
    """Whether a part of a condition is a tensor's flag for a device: `x.is_cuda`."""
    return isinstance(part, ast.Attribute) and part.attr[:3] == "is_" and names_device(part)


def flatten(test: ast.AST) -> Iterator[ast.AST]:
    """The parts of a condition that `and` and `or` join."""
    if isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from flatten(part)
    else:
        yield test


def asks_for(part: ast.AST) -> bool:
    """Whether a part of a condition asks for a device itself, and is no flag of the program's."""
    return any(
        isinstance(node, ast.Compare)
        or (isinstance(node, ast.Call) and names_device(node.func))
        or (isinstance(node, ast.Attribute) and node.attr.startswith("is_"))
        for node in ast.walk(part)
    )


def denies(node: ast.AST) -> bool:
    """Whether a part of a condition turns a meaning round; `not args.no_cuda` does it twice, and so
    does a `not` before a comparison that does.

    Fewer cards than a number do: `torch.cuda.device_count() < 2`, `0 == n_gpus`.
    """
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        at = node.operand
        if isinstance(at, (ast.Compare, ast.UnaryOp)):
            return not denies(at)
        if isinstance(at, ast.Subscript) and isinstance(at.slice, ast.Constant):
            at = at.slice
        name = getattr(at, "attr", getattr(at, "id", getattr(at, "value", "")))
        return not (isinstance(name, str) and TWICE.search(name.lower()))
    if not isinstance(node, ast.Compare):
        return any(map(denies, ast.iter_child_nodes(node)))
    sides = (node.left, *node.comparators)
    counted = [counts_cards(each) for each in sides]
    turning: tuple[type[ast.cmpop], ...] = (ast.NotEq, ast.NotIn)
    if any(counted):
        none = any(getattr(each, "value", None) == 0 for each in sides)
        fewer = (ast.Lt, ast.LtE) if counted[0] else (ast.Gt, ast.GtE)
        turning = (*fewer, ast.Eq if none else ast.NotEq)
    return any(isinstance(each, turning) for each in node.ops) or any(map(denies, sides))


def counts_cards(node: ast.AST) -> bool:
    """Whether an expression is a number of cards, by its call or by its name."""
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", "") == "device_count"
    return COUNTED.fullmatch(getattr(node, "attr", getattr(node, "id", "")) or "") is not None


@functools.cache
def device_words() -> re.Pattern[str]:
    """Names of the devices of all chips, anywhere in a name or text."""
    names = {chip.device for chip in all_chips().values()} - {"cpu", "gpu"}
    return re.compile("|".join(sorted(map(re.escape, names))), re.I)


def names_device(node: ast.AST) -> bool:
    """Whether a name or text inside an expression names a device."""
    for each in ast.walk(node):
        word = getattr(each, "attr", getattr(each, "id", getattr(each, "value", None)))
        if isinstance(word, str) and device_words().search(word):
            return True
    return False


def leaving(parent: ast.AST, child: ast.AST) -> list[ast.AST]:
    """Conditions beside `child` under which it does not run, because their branch leaves.

    Those of `if …: return` before it and, where `child` is such a branch itself, after it.
    """
    block = next((part for part in branches(parent) if child in part), [])
    if not any(isinstance(each, ast.If) for each in block):
        return []
    at = block.index(child)
    mine = isinstance(child, ast.If) and leaves(child)
    beside = [*block[:at], *(block[at + 1 :] if mine else [])]
    return [
        each.test
        for each in beside
        if isinstance(each, ast.If) and leaves(each) and not negative(each.test)
    ]


def twin_of(module: Module, node: ast.AST) -> str | None:
    """The counterpart that code for the origin has in this file, by its name or its condition.

    `is_<target>` of an assignment to `is_cuda`, the same of classes and functions, and
    `if device == "<target>"` beside `if device == "cuda"`.
    """
    names: list[str] = []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        names = [node.name]
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [str(getattr(t, "attr", getattr(t, "id", ""))) for t in targets]
    elif isinstance(node, ast.If):
        text = module.text(node.test)
        swapped = in_other_words(module, text)
        block = next((part for part in branches(node.parent) if node in part), [])  # type: ignore[attr-defined]
        same = (isinstance(each, ast.If) and module.text(each.test) == swapped for each in block)
        return f"if {swapped}" if swapped != text and any(same) else None
    for name in names:
        swapped = in_other_words(module, name)
        if swapped not in (name, module.vocabulary.to_device) and re.search(
            rf"\b{re.escape(swapped)}\b", module.source.text
        ):
            return swapped
    return None


def in_other_words(module: Module, text: str) -> str:
    """A text with the target's device in place of the origin's, in the case that it is written."""
    old, new = module.vocabulary.device, module.vocabulary.to_device
    for case in (str.lower, str.upper, str.capitalize):
        text = text.replace(case(old), case(new))
    return text


def alternatives(parent: ast.AST, child: ast.AST) -> list[ast.AST]:
    """The other operands of `child or …`."""
    if isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.Or):
        return [part for part in parent.values if part is not child]
    return []


def leaves(branch: ast.If) -> bool:
    """Whether the body of an `if` ends by leaving the block it stands in."""
    return isinstance(branch.body[-1], LEAVES)


def ends_block(last: ast.AST) -> bool:
    """Whether a statement ends what runs here: a return, an error, a skip or an exit."""
    if isinstance(last, (*LEAVES, ast.Raise)):
        return True
    func = getattr(last.value if isinstance(last, ast.Expr) else None, "func", None)
    return getattr(func, "attr", getattr(func, "id", "")) in ENDS


def branches(node: ast.AST) -> list[list[ast.AST]]:
    """The lists of statements of a compound statement."""
    names = ("body", "orelse", "handlers", "finalbody")
    found = (getattr(node, name, None) for name in names)
    return [branch for branch in found if isinstance(branch, list)]
