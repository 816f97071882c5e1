"""What codemods about fused operators share: the chip's calls, exact forms, device checks.

A fused call is written only beside the original, behind a check of the device, and only for forms
that can mean nothing else. On any other device the program computes what it did.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst
from libcst.codemod import CodemodContext

from joymigrate.rewrite.codemod import Codemod, Span, View
from joymigrate.rewrite.module import Module

FUNCTIONAL = "torch.nn.functional"
ROUNDING = "equal up to rounding, which differs on the chip"


@dataclass(frozen=True, slots=True)
class Fusion:
    """A place that the chip's call can take, and when."""

    call: str
    checks: tuple[str, ...]
    reason: str = ROUNDING
    target: str | None = None  # of statements: the name that gets the result; None: returned

    @property
    def test(self) -> cst.BaseExpression:
        """Whether the call may be made here."""
        return cst.parse_expression(" and ".join(self.checks))

    def instead(self, orelse: cst.BaseExpression) -> cst.IfExp:
        """The call on the chip, and the expression as it is elsewhere."""
        lpar, rpar = getattr(orelse, "lpar", ()), getattr(orelse, "rpar", ())
        if lpar:
            orelse = orelse.with_changes(lpar=(), rpar=())
        return cst.IfExp(
            test=self.test,
            body=cst.parse_expression(self.call),
            orelse=orelse,
            lpar=lpar or (cst.LeftParen(),),
            rpar=rpar or (cst.RightParen(),),
        )

    def before(self, lines: list[cst.BaseStatement], orelse: cst.Else | None = None) -> cst.If:
        """`if` on the chip: the call. It takes the comments above the first of some lines."""
        text = f"return {self.call}" if self.target is None else f"{self.target} = {self.call}"
        return cst.If(
            test=self.test,
            body=cst.IndentedBlock([cst.parse_statement(text)]),
            orelse=orelse,
            leading_lines=getattr(lines[0], "leading_lines", ()),
        )


class FusionCodemod(Codemod):
    """Writes what `places` finds: expressions, and runs of statements of one block."""

    CALL: ClassVar[str]  # its name in the chip's `fused.yaml`

    def __init__(self, context: CodemodContext, view: View) -> None:
        super().__init__(context, view)
        self.found = type(self).all_places(view.module)

    @classmethod
    def places(cls, module: Module, template: str) -> Iterator[tuple[Span, Fusion]]:
        """Where the file computes what the chip's call `template` does."""
        raise NotImplementedError

    @classmethod
    def all_places(cls, module: Module) -> dict[Span, Fusion]:
        """The places by their spans; none where the chip lacks the call."""
        raw = module.context.chip.data("fused.yaml") or {}
        template = (raw.get("fused") or {}).get(cls.CALL)
        return {} if template is None else dict(cls.places(module, template))

    @classmethod
    def wanted(cls, module: Module) -> bool:
        """Whether the file has a place: most files with the words have none."""
        return bool(cls.all_places(module))

    def on_visit(self, node: cst.CSTNode) -> bool:
        """libcst's own, which goes into statements with a place alone."""
        if isinstance(node, (cst.BaseCompoundStatement, cst.SimpleStatementLine)):
            start, end = self.view.span(node)
            if not any(start <= first and last <= end for first, last in self.found):
                return False
        return super().on_visit(node)

    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        """An expression becomes the call where the check holds."""
        fusion = self.found.get(self.view.span(original_node))
        if fusion is None:
            return updated_node
        self.changed(original_node, fusion.reason)
        return fusion.instead(updated_node)


def served(module: Module, node: ast.AST) -> bool:
    """Whether the code around a site knows the chip already: nothing is to be added there."""
    if module.guarded(node) is not None:
        return True
    function = module.names.enclosing(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    words = module.vocabulary.target_words
    return function is not None and words is not None and bool(words.search(module.text(function)))


def on_chip(module: Module, tensor: str) -> str:
    """The check that a tensor is on the chip."""
    return f'{tensor}.device.type == "{module.context.chip.device}"'


def simple(node: ast.AST) -> bool:
    """Whether an expression may be written twice: a name, or an attribute of one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def is_call(module: Module, node: ast.AST, *names: str) -> bool:
    """Whether a node calls one of some functions, by full dotted name."""
    return isinstance(node, ast.Call) and module.names.dotted(node.func) in names


def method(node: ast.AST, name: str) -> ast.expr | None:
    """The receiver of a call of the method `name`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr == name else None
    return None


def factors(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Both orders of a product's factors."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield node.left, node.right
        yield node.right, node.left


def same(first: ast.AST, second: ast.AST) -> bool:
    """Whether two expressions read the same."""
    return ast.dump(first) == ast.dump(second)


def number(node: ast.AST | None, value: int) -> bool:
    """Whether a node is this number, written with or without a sign."""
    try:
        return node is not None and ast.literal_eval(node) == value
    except (ValueError, TypeError, SyntaxError):
        return False


def argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """An argument by keyword or position."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if len(call.args) > position else None
