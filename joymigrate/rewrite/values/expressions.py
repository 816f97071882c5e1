"""From expressions to cells: one method per kind of node; everything else is passed through."""

from __future__ import annotations

import ast
import re
from typing import Any

from joymigrate.rewrite.guards import negative
from joymigrate.rewrite.module import HELPER
from joymigrate.rewrite.source import SourceText
from joymigrate.rewrite.values.cells import (
    COMPARED,
    COMPARISON,
    DECIDED,
    DEPTH,
    PLACED,
    CallSite,
    Cell,
    FileValues,
    Guard,
    TextPlace,
)
from joymigrate.rewrite.values.transfers import CALLS, METHODS, TEXTS

NAMES = (ast.Name, ast.Attribute, ast.Subscript)  # what is read by a name


class Expressions:
    """Cells of the expressions of one file. `words` matches the texts that count."""

    def __init__(self, source: SourceText, path: str, words: re.Pattern[str]) -> None:
        self.source, self.path, self.words = source, path, words
        self.file = FileValues(path, source.text)
        self.ascii = source.text.isascii()
        self.starts = source.starts
        self.scopes: list[tuple[int, set[str], str]] = []  # start, names, "class" or "function"
        self.statement = 0
        self.single: ast.stmt | None = None  # the statement, where it is one expression
        self.chain = 0
        self.guards: list[tuple[Guard, bool]] = []  # conditions around, and whether they hold here

    # -- places --------------------------------------------------------------------------------

    def span(self, node: Any) -> tuple[int, int]:
        """Start and end of a node in the text."""
        if self.ascii:
            return (
                self.starts[node.lineno - 1] + node.col_offset,
                self.starts[node.end_lineno - 1] + node.end_col_offset,
            )
        return (
            self.source.offset(node.lineno, node.col_offset),
            self.source.offset(node.end_lineno, node.end_col_offset),
        )

    def fresh(self, node: ast.AST) -> Cell:
        """The cell of an expression without a name."""
        return ("value", self.path, *self.span(node))

    def text_cell(self, node: ast.AST) -> Cell:
        """The cell of a text that counts, with its place."""
        start, end = self.span(node)
        return self.note_text(("text", self.path, start), end, getattr(node, "lineno", 1))

    def note_text(self, cell: Cell, end: int, line: int, *, quoted: bool = True) -> Cell:
        """Note the place of a text that counts, with the conditions that it stands behind."""
        if cell not in self.file.places:
            place = TextPlace(cell[2], end, line, self.statement, self.chain, quoted)
            self.file.places[cell] = place
            held = [guard for guard, holds in self.guards if holds]
            if held:
                self.file.guards[cell] += held
        return cell

    def chosen(self, node: ast.expr, cell: Cell | None, guards: list[Guard]) -> None:
        """Note the conditions of its expression that a name stands behind."""
        if cell is not None and guards and isinstance(node, NAMES):
            self.file.guards[cell] += guards

    def field(self, cell: Cell | None, name: str) -> Cell | None:
        """An attribute or entry of what a cell holds."""
        if cell is None or depth(cell) >= DEPTH:
            return None
        found = ("field", cell, name)
        known = self.file.fields[name]
        if found not in self.file.edges and found not in known[-8:]:
            known.append(found)
        return found

    def variable(self, name: str) -> Cell:
        """The cell of a name as it is seen here; a class body's names aren't seen from inside."""
        innermost = True
        for start, names, kind in reversed(self.scopes):
            if name in names and (kind == "function" or innermost):
                if kind == "class":
                    return ("attribute", self.path, start, name)
                return ("name", self.path, start, name)
            innermost = False
        return ("name", self.path, 0, name)

    def dotted(self, node: ast.AST) -> str:
        """The name that an expression has outside of this file; empty for none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        cell = self.variable(node.id)
        if cell[0] != "name" or (cell[2] and node.id not in self.file.imports):
            return ""
        base = self.file.imports.get(node.id)
        if base is None:
            base = node.id if not parts and node.id in TEXTS | CALLS.keys() else ""
        return ".".join([base, *reversed(parts)]) if base else ""

    # -- expressions ---------------------------------------------------------------------------

    def value(self, node: ast.AST | None) -> Cell | None:
        """The cell that holds an expression's value; None where nothing is known of it."""
        if node is None:
            return None
        method = METHOD.get(type(node))
        if method is not None:
            return method(self, node)  # type: ignore[no-any-return]
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.expr, ast.comprehension)):
                self.value(child)
        return None

    def constant(self, node: ast.Constant) -> Cell | None:
        """A text that counts; a yes or no, which is the answer of the conditions around it."""
        if isinstance(node.value, str) and self.words.match(node.value):
            return self.text_cell(node)
        if not isinstance(node.value, bool) or not self.guards:
            return None
        cell = self.fresh(node)
        for guard, _ in self.guards:
            self.file.join(cell, guard.cell, node.lineno, DECIDED)
        return cell

    def joined(self, node: ast.JoinedStr) -> Cell | None:
        """An f-string: the text it starts with, or the value it starts with."""
        cell: Cell | None = None
        head = node.values[0] if node.values else None
        if isinstance(head, ast.Constant) and self.words.match(str(head.value)):
            cell = self.text_cell(node)
        for number, part in enumerate(node.values):
            if isinstance(part, ast.FormattedValue):
                held = self.value(part.value)
                if number == 0 and held is not None and not cell:
                    after = node.values[1] if len(node.values) > 1 else None
                    if after is None or str(getattr(after, "value", "")).startswith(":"):
                        cell = held
        return cell

    def name(self, node: ast.Name) -> Cell | None:
        """A variable."""
        return self.variable(node.id)

    def attribute(self, node: ast.Attribute) -> Cell | None:
        """An attribute; the type of a device is the device for what is asked of it."""
        held = self.value(node.value)
        if node.attr in ("type", "value") and isinstance(node.ctx, ast.Load):
            inner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if node.attr == "value" or "dev" in inner or isinstance(node.value, ast.Call):
                return held
        if self.dotted(node) == "os.environ":
            return ("environment", "")
        asked = self.field(held, node.attr)
        flagged = isinstance(node.ctx, ast.Load) and node.attr[:3] == "is_"
        if held is not None and flagged and self.words.match(node.attr[3:]):
            flag = self.called_cell(node)
            self.file.questions[self.fresh(node)] = node.attr
            self.file.join(self.field(held, DEVICE), flag, node.lineno, COMPARED)
            self.file.join(asked, self.fresh(node), node.lineno, "asked")
        return asked

    def subscript(self, node: ast.Subscript) -> Cell | None:
        """An entry: by its key where that is written out."""
        held, index = self.value(node.value), self.value(node.slice)
        if isinstance(node.slice, ast.Slice) or held is None:
            return held
        if held == ("environment", ""):
            key = getattr(node.slice, "value", None)
            return ("environment", key) if isinstance(key, str) else None
        if is_split(node.value):
            return held
        stores = isinstance(node.ctx, ast.Store)
        return self.entry(held, node.slice, index, "key" if stores else COMPARED)

    def entry(
        self, held: Cell | None, key: ast.AST | None, index: Cell | None, kind: str = COMPARED
    ) -> Cell | None:
        """What a container holds under a key; a text that counts is one of its keys, or sought."""
        constant = isinstance(key, ast.Constant) and isinstance(key.value, (str, int))
        if index is not None and held is not None:
            line = getattr(key, "lineno", 1)
            self.file.join(self.field(held, "{}"), index, line, kind)
        if constant and index is None:
            return self.field(held, str(key.value))  # type: ignore[union-attr]
        return self.field(held, "[]")

    def table(self, node: ast.Dict) -> Cell:
        """A dictionary written out."""
        cell = self.fresh(node)
        for key, part in zip(node.keys, node.values, strict=True):
            held = self.value(part)
            if key is None:
                self.file.join(cell, held, node.lineno, "spread")
            else:
                index = self.value(key)
                entry = self.entry(cell, key, index, "key")
                self.file.join(entry, held, part.lineno, "entry")
                self.file.join(self.field(cell, "[]"), held, part.lineno, "entry")
        return cell

    def sequence(self, node: Any) -> Cell:
        """A list, tuple or set written out."""
        cell = self.fresh(node)
        for number, part in enumerate(node.elts):
            held = self.value(part)
            if isinstance(part, ast.Starred) or held is None:
                continue
            self.file.join(self.field(cell, "[]"), held, part.lineno, "element")
            if isinstance(node, ast.Tuple):
                self.file.join(self.field(cell, str(number)), held, part.lineno, "element")
        return cell

    def comprehension(self, node: Any) -> Cell:
        """A list, set or dictionary that is built: its elements."""
        cell = self.fresh(node)
        names = {n.id for g in node.generators for n in ast.walk(g.target)
                 if isinstance(n, ast.Name)}  # fmt: skip
        self.scopes.append((self.span(node)[0], names, "function"))
        for each in node.generators:
            held = self.value(each.iter)
            self.assign(each.target, self.field(held, "[]"), node.lineno)
            for test in each.ifs:
                self.value(test)
        if isinstance(node, ast.DictComp):
            self.file.join(self.field(cell, "{}"), self.value(node.key), node.lineno, "entry")
            self.file.join(self.field(cell, "[]"), self.value(node.value), node.lineno, "entry")
        else:
            self.file.join(self.field(cell, "[]"), self.value(node.elt), node.lineno, "element")
        self.scopes.pop()
        return cell

    def compare(self, node: ast.Compare) -> Cell:
        """A comparison: both sides are asked for one value."""
        left, cell = self.value(node.left), self.fresh(node)
        for op, right in zip(node.ops, node.comparators, strict=True):
            other = self.value(right)
            for side in (left, other):
                if side is not None and (side[0] == "text" or side in self.file.questions):
                    self.file.questions[cell] = self.file.questions.get(side, COMPARISON)
            line = right.lineno
            if isinstance(getattr(right, "value", None), int):  # a number of devices, yes or no
                self.file.join(cell, left, line, "asked")
            elif isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
                self.file.join(left, other, line, COMPARED)
            elif isinstance(op, (ast.Gt, ast.GtE, ast.Lt, ast.LtE)):
                self.file.join(cell, left, line, "asked")
            elif isinstance(op, (ast.In, ast.NotIn)) and other is not None:
                if left is not None and left[0] == "text" and not isinstance(right, WRITTEN):
                    self.file.join(left, other, line, COMPARED)
                for key in ("[]", "{}"):
                    self.file.join(left, self.field(other, key), line, COMPARED)
            left = other
        return cell

    def choice(self, node: ast.IfExp) -> Cell:
        """`a if test else b`: one of both; `x if x == "cpu" else b` is `b` or that text."""
        cell = self.fresh(node)
        test = node.test
        one = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq)
        known = one and ast.unparse(node.body) == ast.unparse(test.left)  # type: ignore[attr-defined]
        negated = negative(node.test)
        branch = node.orelse if negated else node.body
        guard = self.guard_of(node.test, *self.span(branch), denied=negated)
        for branch, held in ((node.body, not negated), (node.orelse, negated)):
            self.guards.append((guard, held))
            value = self.value(branch)
            self.chosen(branch, value, [guard] if held else [])
            if not (known and branch is node.body):
                self.file.join(cell, value, node.lineno, "choice")
            self.guards.pop()
        return cell

    def either(self, node: ast.BoolOp) -> Cell:
        """`a or b`, `a and b`: one of them; what follows an `and` is behind it."""
        cell = self.fresh(node)
        behind = 0
        for number, part in enumerate(node.values):
            value = self.value(part)
            self.file.join(cell, value, node.lineno, "choice")
            self.chosen(part, value, [g for g, _ in self.guards[len(self.guards) - behind :]])
            if isinstance(node.op, ast.And) and number < len(node.values) - 1:
                self.guards.append((self.guard_of(part, self.span(part)[1], cell[3]), True))
                behind += 1
        del self.guards[len(self.guards) - behind :]
        return cell

    def guard_of(self, test: ast.expr, first: int, last: int, *, denied: bool = False) -> Guard:
        """A condition as the guard of what stands at `first:last`."""
        answer = self.value(test)
        cells = []
        for node in ast.walk(test):
            if isinstance(node, (*NAMES, ast.Call)):
                cell = self.peek(node)
                if cell is not None:
                    cells.append(cell)
        guard = Guard(*self.span(test), test.lineno, tuple(cells), first, last, answer, denied)
        self.file.conditions[guard.start, guard.end] = guard
        for cell in guard.cells:
            self.file.asking[cell].append(guard)
        return guard

    def peek(self, node: ast.AST) -> Cell | None:
        """The cell of a name, attribute, entry or call that was read already."""
        if isinstance(node, ast.Name):
            return self.variable(node.id)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            held = self.peek(node.value)
            key = getattr(node, "attr", getattr(getattr(node, "slice", None), "value", None))
            known = held is not None and key is not None and depth(held) < DEPTH
            return ("field", held, str(key)) if known else None
        return ("value", self.path, *self.span(node)) if isinstance(node, ast.Call) else None

    def unary(self, node: ast.UnaryOp) -> Cell | None:
        """`not x`: what is asked is the same."""
        return self.value(node.operand)

    def passed(self, node: Any) -> Cell | None:
        """`await x`, `*x`."""
        return self.value(node.value)

    def yielded(self, node: ast.Yield | ast.YieldFrom) -> Cell | None:
        """`yield x`: an element of what the function gives; `yield from x`: all of them."""
        held = self.value(node.value)
        function = next((start for start, _, kind in self.scopes[::-1] if kind == "function"), 0)
        given: Cell | None = ("return", self.path, function)
        if isinstance(node, ast.Yield):
            given = self.field(given, "[]")
        self.file.join(given, held, node.lineno, "yielded")
        return held

    def binary(self, node: ast.BinOp) -> Cell | None:
        """A text that is built: what it starts with; answers that are put together."""
        left, right = self.value(node.left), self.value(node.right)
        self.meet(left, right, node.lineno)
        if isinstance(node.op, (ast.Mod, ast.Mult)):
            return left
        if isinstance(node.op, ast.Add):
            if isinstance(node.left, (ast.List, ast.Tuple)) or isinstance(
                node.right, (ast.List, ast.Tuple)
            ):
                self.file.join(left, right, node.lineno, "joined")
            return left
        if not isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor)):
            return None
        cell = self.fresh(node)
        for part in (left, right):
            self.file.join(cell, part, node.lineno, "choice")
        return cell

    def walrus(self, node: ast.NamedExpr) -> Cell | None:
        """`(x := value)`."""
        held = self.value(node.value)
        self.assign(node.target, held, node.lineno)
        return held

    def lambda_(self, node: ast.Lambda) -> Cell | None:
        """A function without a name."""
        return self.function(node)

    def call(self, node: ast.Call) -> Cell | None:
        """A call: its arguments, and what is known of what it does with values."""
        func, dotted = node.func, self.dotted(node.func)
        if HELPER in dotted:  # `jm.device_type()`: the target's word, as the helper says it
            for part in (*node.args, *(word.value for word in node.keywords)):
                self.value(part)
            return self.text_cell(node)
        last = getattr(func, "attr", getattr(func, "id", ""))
        if last == "super" and isinstance(func, ast.Name) and not node.args:
            owner = next((start for start, _, kind in self.scopes[::-1] if kind == "class"), None)
            return ("super", self.path, owner) if owner is not None else None
        receiver = self.value(func.value) if isinstance(func, ast.Attribute) else None
        called = self.field(receiver, last) if receiver is not None else self.value(func)
        given: list[tuple[str, Cell]] = []
        nodes: dict[str, ast.AST] = {}
        for number, part in enumerate(node.args):
            held = self.value(part)
            nodes[str(number)] = part
            if held is not None:
                given.append(("*" if isinstance(part, ast.Starred) else str(number), held))
        for word in node.keywords:
            held = self.value(word.value)
            nodes[word.arg or "**"] = word.value
            if word.arg == "marks" and isinstance(word.value, ast.Call) and word.value.args:
                self.guard_of(word.value.args[0], *self.span(node))  # `skipif` of one parameter
            if held is not None:
                given.append((word.arg or "**", held))
        cell = self.fresh(node)
        rule = CALLS.get(dotted) or (METHODS.get(last) if receiver is not None else None)
        if rule is not None:
            terms = dict(given)
            if dotted.startswith("torch.") and called is not None:  # it takes its arguments, too
                for key, held in given:
                    self.file.given[held].append(
                        (CallSite(cell, called, tuple(given), node.lineno, dotted), key)
                    )
            same = self.transfer(rule, terms, nodes, cell, receiver, node.lineno)
            if same is not None:
                return same
        if dotted == "dict":
            for key, held in given:
                self.file.join(self.field(cell, key), held, node.lineno, "entry")
        if last == "add_argument" and receiver is not None:
            self.option(node, dict(given))
        if last.startswith("assert") and len(node.args) > 1:
            terms = dict(given)
            self.file.join(terms.get("0"), terms.get("1"), node.lineno, COMPARED)
        if last in QUESTIONS or last.endswith("_available"):
            self.file.questions[cell] = dotted or last
        if called is not None and last:
            made = CallSite(cell, called, tuple(given), node.lineno, dotted)
            self.file.calls[last].append(made)
            self.file.made[cell] = made
            for key, held in given:
                self.file.given[held].append((made, key))
        self.place(node, dotted, receiver, cell, dict(given))
        self.operands(node, dotted, called, given)
        return cell

    # -- devices of tensors and modules ----------------------------------------------------------

    def place(
        self,
        node: ast.Call,
        dotted: str,
        receiver: Cell | None,
        cell: Cell,
        terms: dict[str, Cell],
    ) -> None:
        """`x.cuda()`, `x.to(where)`, `torch.zeros(3, device=where)`: the device of the result.

        A call whose result nothing takes places what it is called on: `net.cuda()`.
        """
        func = node.func
        last = getattr(func, "attr", getattr(func, "id", ""))
        named = self.words.match(last) is not None
        words = [terms.get("device")]
        if named and receiver is not None:
            words += [self.called_cell(func, 1), terms.get("0")]
        elif MOVES.search(last) and dotted and self.words.match(last.rpartition("_")[2]):
            mover = self.called_cell(func)
            words.append(mover)
            self.file.outside[mover] = dotted
        elif isinstance(func, ast.Attribute) and func.attr == "to":
            words.append(terms.get("0"))
        alone = getattr(self.single, "value", None) is node
        for held in filter(None, words):
            self.file.join(self.field(cell, DEVICE), held, node.lineno, PLACED)
            if alone and receiver is not None:
                self.file.join(self.field(receiver, DEVICE), held, node.lineno, PLACED)

    def called_cell(self, func: ast.expr, before: int = 0) -> Cell:
        """The cell of the name of what is called, which is a device's: `.cuda`, `to_cuda`."""
        end = self.span(func)[1]
        name = getattr(func, "attr", getattr(func, "id", ""))
        cell = ("text", self.path, end - len(name) - before)
        return self.note_text(cell, end, func.end_lineno or func.lineno, quoted=False)

    def meet(self, one: Cell | None, other: Cell | None, line: int) -> None:
        """Two values of one operation are on one device."""
        if one is not None and other is not None and "text" not in (one[0], other[0]):
            self.file.join(self.field(one, DEVICE), self.field(other, DEVICE), line, COMPARED)

    def operands(
        self, node: ast.Call, dotted: str, called: Cell | None, given: list[tuple[str, Cell]]
    ) -> None:
        """What a module, or a function of torch's, is called with is on one device."""
        func = node.func
        owner = getattr(func, "value", None)
        module = isinstance(func, ast.Name) and func.id not in self.file.imports
        module = module or getattr(owner, "id", "") == "self"
        first = called if module else given[0][1] if dotted.startswith("torch.") and given else None
        for _, held in given:
            if first is not held:
                self.meet(first, held, node.lineno)

    def transfer(
        self,
        rule: str,
        terms: dict[str, Cell],
        nodes: dict[str, ast.AST],
        result: Cell,
        receiver: Cell | None,
        line: int,
    ) -> Cell | None:
        """What a known call makes the same; its result where that is one of the values."""

        def side(text: str) -> Cell | None:
            head, *names = text.split(".")
            cell = {"=": result, "r": receiver}.get(head) or terms.get(head)
            for name in names:
                if name.startswith("?"):
                    cell = self.entry(cell, nodes.get(name[1:]), terms.get(name[1:]))
                else:
                    cell = self.field(cell, name)
            return cell

        if not re.search("[<~]", rule):  # "=0": the result is this value
            return side(rule[1:])
        for equation in rule.split():
            one, other = re.split("[<~]", equation)
            kind = COMPARED if "~" in equation else "handed on"
            self.file.join(side(one), side(other), line, kind)
        return result

    def option(self, node: ast.Call, terms: dict[str, Cell]) -> None:
        """`add_argument("--place", default=…, choices=…)`."""
        texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
        names = [t for t in texts if isinstance(t, str)]
        if not names:
            return
        named = [k.value.value for k in node.keywords
                 if k.arg == "dest" and isinstance(k.value, ast.Constant)]  # fmt: skip
        flag = str(named[0]) if named else max(names, key=lambda t: (t.startswith("--"), len(t)))
        cell = ("setting", flag.lstrip("-").replace("-", "_"))
        self.file.join(cell, terms.get("default"), node.lineno, "default")
        self.file.join(cell, self.field(terms.get("choices"), "[]"), node.lineno, "choices")

    # -- given by the reader of statements -------------------------------------------------------

    def assign(self, target: ast.AST, value: Cell | None, line: int) -> None:
        """Give a value to a target."""
        raise NotImplementedError

    def function(self, node: Any) -> Cell | None:
        """Read a function."""
        raise NotImplementedError


def depth(cell: Cell) -> int:
    """How many fields a cell is away from what has a name."""
    found = 0
    while cell[0] == "field":
        found, cell = found + 1, cell[1]
    return found


def is_split(node: ast.AST) -> bool:
    """Whether an expression takes a text apart: `where.split(":")`."""
    name = getattr(getattr(node, "func", None), "attr", "")
    return isinstance(node, ast.Call) and name in ("split", "rsplit", "partition", "rpartition")


QUESTIONS = ("is_available", "device_count")
MOVES = re.compile(r"(?:^|_)(?:to|move|put|copy|send|transfer|convert)_")
DEVICE = "device"  # the attribute of a tensor, and that of a module as far as it has one
WRITTEN = (ast.List, ast.Tuple, ast.Set, ast.Dict)
METHOD: dict[type, Any] = {
    ast.Constant: Expressions.constant,
    ast.JoinedStr: Expressions.joined,
    ast.Name: Expressions.name,
    ast.Attribute: Expressions.attribute,
    ast.Subscript: Expressions.subscript,
    ast.Dict: Expressions.table,
    ast.List: Expressions.sequence,
    ast.Tuple: Expressions.sequence,
    ast.Set: Expressions.sequence,
    ast.ListComp: Expressions.comprehension,
    ast.SetComp: Expressions.comprehension,
    ast.GeneratorExp: Expressions.comprehension,
    ast.DictComp: Expressions.comprehension,
    ast.Compare: Expressions.compare,
    ast.IfExp: Expressions.choice,
    ast.BoolOp: Expressions.either,
    ast.UnaryOp: Expressions.unary,
    ast.Await: Expressions.passed,
    ast.Starred: Expressions.passed,
    ast.Yield: Expressions.yielded,
    ast.YieldFrom: Expressions.yielded,
    ast.BinOp: Expressions.binary,
    ast.NamedExpr: Expressions.walrus,
    ast.Lambda: Expressions.lambda_,
    ast.Call: Expressions.call,
}
