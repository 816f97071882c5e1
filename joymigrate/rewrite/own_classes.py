"""Classes of a project that have the origin's device method, or its flag, themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping

from joymigrate.rewrite.receivers import OF_MODULES

METHOD = re.compile(r"def (\w+)")


def own_methods(texts: Mapping[str, str], method: str) -> frozenset[str]:
    """Files whose classes define the origin's device method themselves; no property is called."""
    wanted = re.compile(rf"(?<!property\n)^[ \t]+(?:async )?def {re.escape(method)}\b", re.M)
    word = f"def {method}"
    return frozenset(path for path, text in texts.items() if word in text and wanted.search(text))


def own_placing(texts: Mapping[str, str], method: str) -> bool:
    """Whether each class with the origin's method has `to` as well, as far as its file tells."""
    defined = re.compile(rf"^[ \t]+(?:async )?def {re.escape(method)}\b", re.M)
    placing = re.compile(r"^[ \t]+(?:async )?def to\b", re.M)
    found = [text for text in texts.values() if f"def {method}" in text and defined.search(text)]
    return all(len(placing.findall(text)) >= len(defined.findall(text)) for text in found)


def own_plain(texts: Mapping[str, str], method: str) -> frozenset[str]:
    """Names that may make one of the classes with the origin's method, if these are containers.

    Such a class has no base, no heir, no second name, and no method of a module's: what is trained,
    or made by another class, is not one. Empty where one of them may be more.
    """
    bound = [text for text in texts.values() if method and f"def {method}" in text]
    found: set[str] = set()
    for text in bound:
        names = plain_classes(text, method)
        if not names:
            return frozenset()
        found |= names
    if not found:
        return frozenset()
    named = rf"(?:\w+\.)*(?:{'|'.join(map(re.escape, sorted(found)))})"
    other = re.compile(
        rf"\b{named}\s+as\s+\w+\s*(?:[,)#;\\]|$)"  # of an import, not of a text's sentence
        r"|^\s*(?!(\w+)\s*=\s*[\w.]*\b\1\s*(?:#|$))"  # `Rigid = geometry.Rigid` is no second name
        rf"\w+\s*=\s*{named}\s*(?:#|$)|^\s*class \w+\([^)]*\b{named}\b",
        re.M,
    )
    if any(map(other.search, texts.values())):
        return frozenset()
    makers = re.compile(r"^[ \t]*def ([A-Z]\w*)\(", re.M)  # functions that look like classes
    return frozenset(found).union(*map(makers.findall, texts.values()))


def plain_classes(text: str, method: str) -> set[str]:
    """Names of a file's classes with a method, if none of them has a base or acts as a module."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    found, here = set(), 0
    for each in ast.walk(tree):
        here += getattr(each, "name", "") == method
        if not isinstance(each, ast.ClassDef):
            continue
        own = {getattr(one, "name", "") for one in each.body}
        if method in own:
            bases = [getattr(base, "id", "") for base in each.bases]
            if bases not in ([], ["object"]) or own & {*OF_MODULES, "__getattr__"}:
                return set()
            here -= 1
            found.add(each.name)
    return set() if here else found


def own_flags(texts: Mapping[str, str], flag: str) -> frozenset[str]:
    """Files that give the flag's name to something of their own: a class has such an attribute or
    property, an object gets one (`args.is_cuda = …`), an option is called so."""
    word, option = re.escape(flag), re.escape(flag).replace("_", "[-_]")
    stored = rf"\.{word}[ \t]*(?::[^,()\n]*)?=[^=]"
    wanted = re.compile(rf"^[ \t]+def {word}\b|{stored}|[\"']--{option}[\"']", re.M)
    field = re.compile(rf"^[ \t]+{word}[ \t]*[:=][^=]", re.M)  # of a class, a local name, …
    dashed = flag.replace("_", "-")
    return frozenset(
        path
        for path, text in texts.items()
        if (flag in text or dashed in text)
        and (wanted.search(text) or (field.search(text) and has_field(text, flag)))
    )


def has_field(text: str, name: str) -> bool:
    """Whether the body of a class itself gives an attribute a value, or says that there is one."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    owners = (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef))
    given = (one for owner in owners for one in owner.body)
    return any(
        getattr(target, "id", "") == name
        for one in given
        if isinstance(one, (ast.Assign, ast.AnnAssign))
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
    )


def own_names(texts: Mapping[str, str], paths: Iterable[str]) -> frozenset[str]:
    """Names of all methods and functions that some files define."""
    return frozenset(name for path in paths for name in METHOD.findall(texts[path]))
