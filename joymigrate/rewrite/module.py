"""One Python module under a scan: its text, names, value flow, and what may be written in it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from joymigrate.language import Text
from joymigrate.model import Edit, Finding, Rule, Tier
from joymigrate.rewrite import flow_sinks, guards
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.flow import Flow, Locate, knows_accelerators
from joymigrate.rewrite.scopes import ModuleScopes
from joymigrate.rewrite.source import SourceText, Unreadable
from joymigrate.rewrite.vocabulary import Vocabulary

HELPER = "joymigrate_device"
# What a module may call the helper: the first of these that it does not use itself.
HELPER_NAMES = ("jm", HELPER, "jm_device", "joymigrate_accelerator")


@dataclass(frozen=True, slots=True)
class Project:
    """What a module needs to know about its project.

    `locate` finds the file of a dotted name (see `flow`). `own_methods` are files of
    the project whose classes define the origin's device method themselves (`def cuda`) and of
    which an object may come here. `defines` tells
    whether a file binds a name at its top level, `same_as` what its name stands for, `text_of`
    gives the text of a Python file.
    `package` is the dotted path of the module's package.
    """

    locate: Locate = lambda dotted: None
    defines: Callable[[str, str], bool] = lambda path, name: False
    same_as: Callable[[str, str], str] = lambda path, name: ""
    text_of: Callable[[str], str] = lambda path: ""
    own_methods: frozenset[str] = frozenset()
    own_names: frozenset[str] = frozenset()  # all methods that the files of those classes define
    own_placing: bool = True  # each of those classes has `to` as well
    own_plain: frozenset[str] = frozenset()  # what may make one, where all are mere containers
    own_flags: frozenset[str] = frozenset()  # the same for its flag: `self.is_cuda = …`
    package: tuple[str, ...] = ()
    entry: bool = False  # whether programs start in this file
    twin: str | None = None  # the file beside it that does the same for the target
    # Whether any Python file has a word, and not another one.
    speaks_of: Callable[..., bool] = lambda word, without="": False
    foreign: str | None = None  # the back end that it serves, beside a file for the origin
    imports: Callable[[str], list[str]] = lambda path: []  # what a file imports first of all
    reserved: str | None = None  # the folder or file that serves the origin alone
    owns: Callable[[str], bool] = lambda root: False  # whether a top package lies in the project
    # What a name of a module of the project stands for, where that one imports it from outside.
    given: Callable[[str, str], str | None] = lambda base, name: None
    # Which files give a name by `import *` of some modules, and the same of a name in some files.
    star_homes: Callable[[Sequence[str], str], Sequence[str]] = lambda stars, name: ()
    given_by: Callable[[Sequence[str], str], str | None] = lambda homes, name: None


@dataclass(frozen=True, slots=True)
class Pending:
    """A site whose proof lies in another file: `yes` when its value flows to a `kind` sink.

    `asked` is the span of a condition of the project behind which the value stands: `yes` also
    where that asks for the origin's device.
    """

    yes: Finding
    no: Finding
    kind: str
    asked: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class StayingPlace:
    """A place at `start:end` that fails without the origin's device, or that decides what runs.

    It stands in code at `at`. `asked`: it is a question, in an expression from `at` to there; 0 for
    none.
    """

    text: str
    line: int
    start: int
    end: int
    at: int
    asked: int = 0


@dataclass(slots=True)
class Module:
    """A parsed Python file. Spans are offsets into `source.text`."""

    source: SourceText
    tree: ast.Module
    names: ModuleScopes
    context: Context
    vocabulary: Vocabulary
    project: Project
    _flow: Flow | None = None
    _alias: str | None = None
    handled: set[ast.AST] = field(default_factory=set)  # nodes that a codemod has dealt with
    unmoved: set[str] = field(default_factory=set)  # listed as moved, imported as they were
    _serves_target: bool | None = None
    # Strings that were not seen to be devices, by place: their keys, kind, and what would be found.
    doubts: dict[tuple[int, int], tuple[frozenset[str], str, Finding]] = field(default_factory=dict)
    # Comparisons that only a rewritten value of another file would move.
    watched: list[Pending] = field(default_factory=list)
    # What rewritten values, by place, go on to in other files: their kind and keys.
    sent: dict[tuple[int, int], tuple[str, frozenset[str]]] = field(default_factory=dict)
    # Places that stay, with the conditions before them that other code may ask as well.
    holding: set[StayingPlace] = field(default_factory=set)
    # Places that the vendor's shim does not reach, of rules that it covers: line and column.
    unreached: set[tuple[int, int]] = field(default_factory=set)
    texts: list[Any] | None = None  # its string literals, see `device_texts`
    _spoken: list[tuple[ast.Constant, str]] | None = None
    _by_kind: bool | None = None
    closure: dict[str, set[str]] = field(default_factory=dict)  # kind → keys that share those
    proven: dict[str, set[str]] = field(default_factory=dict)  # kind → keys that hold such values

    @classmethod
    def parse(cls, source: SourceText, context: Context, project: Project | None = None) -> Module:
        """Parse one file. Raises `Unreadable` with the position of a syntax error."""
        project = project or Project()
        tree = parse(source)
        try:
            names = ModuleScopes(
                tree, project.package, project.given, project.star_homes, project.given_by
            )
        except RecursionError:
            raise Unreadable("nested too deeply to analyse") from None
        return cls(source, tree, names, context, Vocabulary.of(context), project)

    @property
    def flow(self) -> Flow:
        """The value flow, built when first asked for."""
        if self._flow is None:
            self._flow = Flow(self.names, self.sinks, self.project.locate, self.project.same_as)
        return self._flow

    @property
    def by_kind(self) -> bool:
        """Whether the file knows a framework that names its accelerators; asks for no flow."""
        if self._by_kind is None:
            self._by_kind = knows_accelerators(self.names)
        return self._by_kind

    @property
    def sinks(self) -> flow_sinks.Sinks:
        """Where values of the origin arrive."""
        return flow_sinks.load(self.context.origin.device)

    def rule(self, rule_id: str) -> Rule:
        """The rule of this id."""
        return self.context.rules[rule_id]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Start and end of a node in the text."""
        at: Any = node
        if self.source.text.isascii():  # columns are characters: no line is to be looked at
            starts = self.source._starts or self.source.starts
            return starts[at.lineno - 1] + at.col_offset, starts[
                at.end_lineno - 1
            ] + at.end_col_offset
        start = self.source.offset(at.lineno, at.col_offset)
        return start, self.source.offset(at.end_lineno, at.end_col_offset)

    def text(self, node: ast.AST) -> str:
        """Source text of a node."""
        start, end = self.span(node)
        return self.source.text[start:end]

    def token(self, node: ast.Attribute) -> tuple[int, int] | None:
        """Span of the attribute's own name; None where the position can't be trusted.

        Before Python 3.12 nodes inside a multi-line f-string may carry wrong positions.
        """
        _, end = self.span(node)
        start = end - len(node.attr)
        return (start, end) if self.source.text[start:end] == node.attr else None

    @property
    def helper(self) -> str:
        """How this module calls the generated helper: `jm`, or in full where `jm` is taken."""
        if self._alias is None:
            bound = set().union(*(scope.names for scope in self.names.scopes.values()))
            found = self._imported_helper()
            free = (name for name in HELPER_NAMES if name not in bound)
            self._alias = found or next(free, HELPER_NAMES[-1])
        return self._alias

    def _imported_helper(self) -> str | None:
        for name, bindings in self.names.root.names.items():
            if any(b.dotted and b.dotted.split(".")[-1] == HELPER for b in bindings):
                return name
        return None

    def find(
        self,
        rule_id: str,
        node: ast.AST | tuple[int, int],
        *,
        after: str | None = None,
        edits: list[tuple[int, int, str]] | None = None,
        reason: str | None = None,
        tier: Tier | None = None,
        message: str | None = None,
        needs: str | None = None,
    ) -> Finding:
        """A finding at a node or span; `edits` are (start, end, text) in text offsets.

        A span that text outside the file's encoding would enter turns into a report.
        """
        start, end = node if isinstance(node, tuple) else self.span(node)
        made: tuple[Edit, ...] | None = None
        if edits is not None:
            edits = [self.apart(*edit) for edit in edits]
            made = tuple(self.source.edit(*edit) for edit in edits)
            if after is None:
                after = self.preview(start, end, edits)
        return self.source.finding(
            self.rule(rule_id),
            start,
            end,
            after=after,
            reason=reason,
            tier=tier,
            message=message,
            edits=made,
            needs=needs,
        )

    def apart(self, start: int, end: int, text: str) -> tuple[int, int, str]:
        """An edit with a space where its words would grow together with those beside it."""
        source = self.source.text
        if text and start and wordlike(source[start - 1]) and wordlike(text[0]):
            text = f" {text}"
        if text and end < len(source) and wordlike(source[end]) and wordlike(text[-1]):
            text = f"{text} "
        return start, end, text

    def preview(self, start: int, end: int, edits: list[tuple[int, int, str]]) -> str:
        """The text of a span with the edits inside it made."""
        pieces: list[str] = []
        at = start
        for left, right, text in sorted(edits):
            if left < start or right > end:
                continue
            pieces += (self.source.text[at:left], text)
            at = right
        return "".join([*pieces, self.source.text[at:end]])

    @property
    def spoken(self) -> list[tuple[ast.Constant, str]]:
        """Strings with a word of the origin in them and their values, docstrings left out."""
        if self._spoken is None:
            device, backend = self.vocabulary.device, self.vocabulary.backend
            capital = backend.upper()
            self._spoken = [
                (node, node.value)
                for node in self.names.nodes[ast.Constant]
                if isinstance(node.value, str)
                and (device in node.value or backend in node.value or capital in node.value)
                and node not in self.names.docstrings
            ]
        return self._spoken

    @property
    def serves_target(self) -> bool:
        """Whether the file has code for the target anywhere."""
        if self._serves_target is None:
            words, lower = self.vocabulary.target_words, self.source.text.lower()
            # The pattern begins with no letter of its own and is slow; one of these stands in each
            # of its matches.
            possible = any(sign in lower for sign in self.vocabulary.target_signs)
            found = possible and words is not None and words.search(self.source.text) is not None
            self._serves_target = found
        return self._serves_target

    def guarded(self, node: ast.AST) -> str | None:
        """Why a site is left alone when its surroundings already know the target; else None."""
        return guards.find_guard(self, node)


def wordlike(character: str) -> bool:
    """Whether a character can stand inside a name or a number."""
    return character == "_" or character.isalnum()


def parse(source: SourceText) -> ast.Module:
    """`ast.parse` with every way it fails turned into `Unreadable`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source.text)
    except SyntaxError as error:
        reason: str = Text("not valid Python: {problem}", problem=error.msg)
        if re.search(r"^\s*print\s+[\"'\w]", source.text, re.M):
            reason += " (Python 2?)"
        raise Unreadable(reason, error.lineno or 1, error.offset or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(
            Text("cannot be parsed: {problem}", problem=str(error) or type(error).__name__)
        ) from None
