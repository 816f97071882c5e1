"""Imports of the origin's names that nothing reads: an edit of one changes nothing.

    from torch.cuda.amp import autocast     no `autocast` here, and nobody takes it from here

A package's `__init__.py` imports for others. Statements without a name of their own (`import
torch.cuda`) are read by way of `torch`. The import that edits need goes with them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.own_extensions import parse_text
from joymigrate.rewrite.source import module_name

RULES = ("JM102", "JM140")
STATEMENT = re.compile(r"\s*(?:from|import)\s")
UNUSED = "nothing reads what this statement imports: {names}"


def doubt_unused(findings: Iterable[Finding], texts: Mapping[str, str]) -> list[Finding]:
    """The findings; edits of imports that nothing reads are unsafe. `texts` are Python files."""
    found = list(findings)
    trees: dict[str, ast.Module | None] = {}
    for number, one in enumerate(found):
        moving = one.edits and one.tier is Tier.SAFE and one.rule in RULES
        text = texts.get(one.path, "") if moving else ""
        if not text or not STATEMENT.match(line_of(text, one.line)):
            continue
        if one.path.endswith("__init__.py"):
            continue
        if one.path not in trees:
            trees[one.path] = parse_text(text)
        names = set(find_bound(trees[one.path], one.line))
        if names and not is_read(trees[one.path], names) and not is_taken(one.path, names, texts):
            reason = Text(UNUSED, names=", ".join(sorted(names)))
            found[number] = one.doubt(reason)
    return found


def doubt_alone(findings: Iterable[Finding]) -> list[Finding]:
    """The findings; an added import goes where nothing in its file needs it, and waits with all. A
    line that says nothing more goes beside other edits alone."""
    found = list(findings)
    edited = {one.path for one in found if one.edits and not is_taken_away(one)}
    found = [
        one.leave(one.reason) if is_taken_away(one) and one.reason and one.path not in edited
        else one
        for one in found
    ]  # fmt: skip
    asking = {one.path for one in found if one.edits and needs(one)}
    needing = {one.path for one in found if one.edits and one.tier is Tier.SAFE and needs(one)}
    return [
        replace(one, tier=Tier.UNSAFE) if is_added(one) and one.path not in needing else one
        for one in found
        if not is_added(one) or one.path in asking
    ]


def is_taken_away(finding: Finding) -> bool:
    """Whether a finding takes away a call whose like stands beside it."""
    return bool(finding.edits) and finding.after == "" and finding.rule == "JM101"


def is_added(finding: Finding) -> bool:
    """Whether a finding is the import that edits of its file need."""
    return bool(finding.rule == "JM001" and finding.after and finding.edits)


def needs(finding: Finding) -> bool:
    """Whether an edit needs its import; a text that is compared needs no package."""
    named = finding.rule == "JM111" and finding.before.startswith(("'", '"'))
    return finding.needs is not None and not (named and finding.needs == "package")


def line_of(text: str, number: int) -> str:
    """A line of a text, by its number from 1."""
    lines = text.split("\n", number)
    return lines[number - 1] if number <= len(lines) else ""


def find_bound(tree: ast.Module | None, line: int) -> Iterator[str]:
    """Names that the imports of a line bind."""
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno == line:
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def is_read(tree: ast.Module | None, names: set[str]) -> bool:
    """Whether a file reads one of some names, or has it in a text of `__all__` or an annotation.

    A text elsewhere is none: `"cuda"` is a device's name, whatever `from torch import cuda` binds.
    """
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Name) and node.id in names:
            return True
        if any(name in text for text in find_texts(node) for name in names):
            return True
    return tree is None


def find_texts(node: ast.AST) -> Iterator[str]:
    """The texts in what a node exports by `__all__`, or in its annotation."""
    said: list[ast.expr | None] = [
        getattr(node, "annotation", None),
        getattr(node, "returns", None),
    ]
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        said += [node.value for target in targets if getattr(target, "id", "") == "__all__"]
    for each in said:
        for part in ast.walk(each) if each is not None else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def is_taken(path: str, names: set[str], texts: Mapping[str, str]) -> bool:
    """Whether another file takes one of some names from a file: `from home import name`."""
    home = re.escape(module_name(path))
    words = "|".join(map(re.escape, names))
    taken = re.compile(
        rf"\b{home}[ \t]+import\b(?:[ \t]*\([^)]*|[^\n(]*)(?:\b(?:{words})\b|\*)"
        rf"|\b{home}\.(?:{words})\b"
    )
    word = module_name(path)
    others = (text for other, text in texts.items() if other != path and word in text)
    return any(taken.search(text) for text in others)
