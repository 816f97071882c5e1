"""The codemods of fused operators with statements: they write what `norms` and `attention` find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import libcst as cst
from libcst.codemod import CodemodContext

from joymigrate.rewrite import fusions
from joymigrate.rewrite.codemod import Codemod, CodemodView
from joymigrate.rewrite.fusions.chip_calls import Fusion
from joymigrate.rewrite.module import Module


class FusionCodemod(Codemod):
    """Writes the places that were found: expressions, and runs of statements of one block."""

    def __init__(self, context: CodemodContext, view: CodemodView) -> None:
        super().__init__(context, view)
        self.found = fusions.places(view.module, self.RULE)

    @classmethod
    def wanted(cls, module: Module) -> bool:
        """Whether the file has a place: most files with the words have none."""
        return bool(fusions.places(module, cls.RULE))

    @classmethod
    def part(cls, module: Module) -> tuple[int, int]:
        """From the first to the last statement at the file's top level that holds a place."""
        found = fusions.places(module, cls.RULE)
        spans = [
            (start, end)
            for start, end in top_blocks(module)
            if any(start <= first and last <= end for first, last in found)
        ]
        return (spans[0][0], spans[-1][1]) if spans else super().part(module)

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
        lpar, rpar = updated_node.lpar, updated_node.rpar
        return cst.IfExp(
            test=check(fusion),
            body=cst.parse_expression(fusion.call),
            orelse=updated_node.with_changes(lpar=(), rpar=()),
            lpar=lpar or (cst.LeftParen(),),
            rpar=rpar or (cst.RightParen(),),
        )


def top_blocks(module: Module) -> Iterator[tuple[int, int]]:
    """The file's top level as runs of whole lines; statements that share a line stand together."""
    starts, text = module.source.starts, module.source.text
    begin = after = 0
    for node in module.tree.body:
        heads = (each.lineno for each in getattr(node, "decorator_list", ()))
        start = starts[min(node.lineno, *heads, node.lineno) - 1]
        if start >= after and not text[max(start - 3, 0) : start].rstrip("\r\n").endswith("\\"):
            if after:
                yield begin, after
            begin = start
        below = text.find("\n", module.span(node)[1])
        after = below + 1 if below >= 0 else len(text)
    if after:
        yield begin, after


class RmsNorm(FusionCodemod):
    """RMSNorm in one expression, or as the body of `forward`."""

    RULE: ClassVar[str] = "JM231"
    WORDS: ClassVar[tuple[str, ...]] = ("rsqrt",)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        """The call of a method is put before the method's first statement."""
        span = self.view.span(original_node)
        fusion = self.found.get(span)
        if fusion is None:
            return updated_node
        self.changed(span, fusion.reason)
        rest = updated_node.with_changes(leading_lines=())
        return cst.FlattenSentinel([branch(fusion, updated_node), rest])


class Attention(FusionCodemod):
    """`if` on the chip the fused call, `else` the statements as they were."""

    RULE: ClassVar[str] = "JM234"
    WORDS: ClassVar[tuple[str, ...]] = ("softmax(",)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        """The lines of a run go into the `else` of a check."""
        body = list(updated_node.body)
        spans = [self.view.span(line) for line in original_node.body]
        for (start, end), fusion in sorted(self.found.items(), reverse=True):
            lines = [at for at, span in enumerate(spans) if start <= span[0] and span[1] <= end]
            if not lines or (spans[lines[0]][0], spans[lines[-1]][1]) != (start, end):
                continue
            moved = body[lines[0] : lines[-1] + 1]
            plain = [moved[0].with_changes(leading_lines=()), *moved[1:]]
            body[lines[0] : lines[-1] + 1] = [
                branch(fusion, moved[0], cst.Else(cst.IndentedBlock(plain)))
            ]
            self.changed((start, end), fusion.reason)
        return (
            updated_node
            if body == list(updated_node.body)
            else updated_node.with_changes(body=body)
        )


def check(fusion: Fusion) -> cst.BaseExpression:
    """Whether the call may be made here."""
    return cst.parse_expression(" and ".join(fusion.checks))


def branch(fusion: Fusion, first: cst.BaseStatement, orelse: cst.Else | None = None) -> cst.If:
    """`if` on the chip: the call. It takes the comments above the line that it comes before."""
    start = "return" if fusion.target is None else f"{fusion.target} ="
    return cst.If(
        test=check(fusion),
        body=cst.IndentedBlock([cst.parse_statement(f"{start} {fusion.call}")]),
        orelse=orelse,
        leading_lines=getattr(first, "leading_lines", ()),
    )


CODEMODS = (RmsNorm, Attention)
