"""Codemods that a project or a package brings: libcst transformers that take part in a scan.

What such a transformer changes is told from its tree, place by place, and becomes findings with
byte-exact edits like those of our own rules: with tiers, groups, ignores, ledger and rollback.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import libcst as cst
from libcst.codemod import CodemodContext, ContextAwareTransformer
from libcst.codemod.visitors import AddImportsVisitor, RemoveImportsVisitor
from libcst.metadata import MetadataWrapper, PositionProvider

from joymigrate.language import Text
from joymigrate.model import Case, Finding, Rule, Tier
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.text_changes import Span, tell_changes


class Codemod(ContextAwareTransformer):
    """A libcst transformer with the texts of its rule.

    A subclass defines `leave_…` methods as libcst knows them. `RULE` is its id in reports, in
    `--select` and in ignores (letters, then digits; not `JM…`). A file is parsed for it only when
    its text holds one of `WORDS`. `TIER` says whether its edits are applied by default (`SAFE`), on
    request (`UNSAFE`), or only reported. With `TOGETHER` all its edits in a file are written or
    none. `CASES` are examples: `joymigrate explain --check RULE` runs them.

    `self.view` is what is known of the file and of the move.
    """

    RULE: ClassVar[str]
    NAME: ClassVar[str]
    MESSAGE: ClassVar[str]
    WORDS: ClassVar[tuple[str, ...]]
    TITLE: ClassVar[str] = ""
    WHY: ClassVar[str] = ""
    REFERENCE: ClassVar[str] = ""
    AREA: ClassVar[str] = "device"
    TIER: ClassVar[Tier] = Tier.UNSAFE
    WEIGHT: ClassVar[float] = 1.0  # minutes of work by hand
    TOGETHER: ClassVar[bool] = False
    CASES: ClassVar[tuple[Case, ...]] = ()
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, context: CodemodContext, view: CodemodView) -> None:
        super().__init__(context)
        self.view = view
        self._changed: list[tuple[Span, str | None]] = []
        self._told: list[tuple[Span, str | None]] = []
        self._reported: list[tuple[Span, str]] = []

    @classmethod
    def wanted(cls, module: Module) -> bool:
        """Whether a file with one of `WORDS` is worth its tree; True where nothing tells."""
        return True

    @classmethod
    def part(cls, module: Module) -> Span:
        """Whole lines with all that this codemod needs to see and changes; here the whole file."""
        return 0, len(module.source.text)

    def report(self, place: cst.CSTNode | Span, reason: str) -> None:
        """Report a node or span without an edit. `reason` says what a person has to decide."""
        span = place if isinstance(place, tuple) else self.view.span(place)
        self._reported.append((span, reason))

    def changed(self, place: cst.CSTNode | Span, reason: str | None = None) -> None:
        """Say, in a `leave_…` method, what part of the node it changes, and what a person should
        know of it. All edits of that part are one finding. Without it the node is the place."""
        span = place if isinstance(place, tuple) else self.view.span(place)
        self._told.append((span, reason))

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        """libcst's own, which notes the places where something else comes back."""
        result = super().on_leave(original_node, updated_node)
        if result is not updated_node:
            self._changed += self._told or [(self.view.span(original_node), None)]
        self._told.clear()
        return result

    @classmethod
    def rule(cls) -> Rule:
        """The rule that findings of this codemod belong to."""
        return Rule(
            id=cls.RULE,
            name=cls.NAME,
            title=cls.TITLE or cls.MESSAGE,
            tier=cls.TIER,
            area=cls.AREA,
            message=cls.MESSAGE,
            why=cls.WHY,
            reference=cls.REFERENCE,
            weight=cls.WEIGHT,
            cases=cls.CASES,
            source=f"{cls.__module__}.{cls.__qualname__}",
        )


@dataclass(slots=True)
class CodemodView:
    """What a codemod may ask about the file it is in, and about the move."""

    module: Module
    wrapper: MetadataWrapper
    first: int = 0  # the line of the file, from 0, at which the tree begins
    _expressions: dict[Span, list[ast.expr]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The file, POSIX and relative to the root of the scan."""
        return self.module.source.path

    @property
    def package(self) -> tuple[str, ...]:
        """The dotted path of the file's package."""
        return self.module.project.package

    @property
    def style(self) -> str:
        """direct, agnostic or shim."""
        return self.module.context.style.value

    @property
    def device(self) -> str:
        """The target's device type in torch."""
        return self.module.context.chip.device

    @property
    def origin(self) -> str:
        """The origin's device type in torch: `cuda`."""
        return self.module.context.origin.device

    def dotted(self, node: cst.CSTNode) -> str | None:
        """The full name of a name or attribute through imports and aliases; None: not known."""
        found = self.syntax(node)
        return None if found is None else self.module.names.dotted(found)

    def locate(self, dotted: str) -> tuple[str, str] | None:
        """The project's file that defines a dotted name, and the name inside it."""
        return self.module.project.locate(dotted)

    def values(self, node: cst.CSTNode) -> list[object]:
        """Literals that an expression can be, as far as they are seen in this file."""
        found = self.syntax(node)
        if found is None:
            return []
        leaves = self.module.flow.leaves(found)
        return [leaf.value for leaf in leaves if isinstance(leaf, ast.Constant)]

    def span(self, node: cst.CSTNode) -> Span:
        """Where a node of the original tree stands in the text. Raises KeyError for a new one."""
        place = self.wrapper.resolve(PositionProvider)[node]
        starts, before = self.module.source.starts, self.first - 1
        start, end = place.start, place.end
        return starts[before + start.line] + start.column, starts[before + end.line] + end.column

    def syntax(self, node: cst.CSTNode) -> ast.expr | None:
        """The expression of Python's own syntax tree at a node of the original tree."""
        if not self._expressions:
            for kind, nodes in self.module.names.nodes.items():
                for one in nodes if issubclass(kind, ast.expr) else ():
                    self._expressions.setdefault(self.module.span(one), []).append(one)
        found = self._expressions.get(self.span(node), [])
        alike = (one for one in found if type(one).__name__ == type(node).__name__)
        return next(alike, found[0] if found else None)


def findings(kind: type[Codemod], module: Module) -> Iterator[Finding]:
    """What one codemod finds in one file; nothing where none of its words stands."""
    source = module.source
    if not any(word in source.text for word in kind.WORDS) or not kind.wanted(module):
        return
    rule = module.context.rules[kind.RULE]
    try:
        job, after = transform(kind, module)
        again = Module.parse(
            replace(source, text=after, _starts=[], _byte_starts=[]), module.context, module.project
        )
        settled = after == source.text or not kind.wanted(again)
        stable = settled or transform(kind, again)[1] == after
    except Exception as error:
        lines = str(error).splitlines()
        what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        reason = Text("this codemod failed in this file: {problem}", problem=what)
        place, word = min((source.text.find(w), w) for w in kind.WORDS if w in source.text)
        yield source.finding(rule, place, place + len(word), tier=Tier.REPORT, reason=reason)
        return
    for span, told in job._reported:
        yield module.find(kind.RULE, span, tier=Tier.REPORT, reason=told)
    yield from tell_changes(
        module, kind.RULE, after, dict(job._changed), stable=stable, together=kind.TOGETHER
    )


def transform(kind: type[Codemod], module: Module) -> tuple[Codemod, str]:
    """Run a codemod, then libcst's visitors for imports that it asked for; the text they leave.

    Raises what the codemod raises, and `ValueError` for a file that libcst does not give back.
    """
    text = module.source.text
    context = CodemodContext(filename=module.source.path)
    start, end = kind.part(module)
    wrapper = parse_tree(text[start:end])
    job = kind(context, CodemodView(module, wrapper, module.source.position(start)[0] - 1))
    made = wrapper.visit(job)
    for visitor in (AddImportsVisitor, RemoveImportsVisitor):
        if visitor.CONTEXT_KEY in context.scratch:  # each goes over the whole tree
            made = visitor(context).transform_module(made)
    return job, text[:start] + made.code + text[end:]


@functools.lru_cache(maxsize=1)
def parse_tree(text: str) -> MetadataWrapper:
    """The tree of a file, for all codemods that look at it. Nobody changes it in place."""
    tree = cst.parse_module(text)
    if tree.code != text:
        raise ValueError("libcst does not give this file back byte for byte")
    return MetadataWrapper(tree, unsafe_skip_copy=True)
