"""Whether a Python file can hold a site at all: looked up in its text, before it is analysed.

A file with a word of the origin (`cuda`, `nccl`) is always analysed. Any other one is when it
imports a package that a rule lists, writes a listed name under the name that it imported it by, or
holds one of the other signs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from joymigrate.rewrite import flow_sinks
from joymigrate.rewrite.codemods.patterns import patterns
from joymigrate.rewrite.context import Context, once_per_rules
from joymigrate.rewrite.readers._migration_map import migration_map
from joymigrate.rewrite.vocabulary import Vocabulary

# Names of rules that code describes. The one-byte types count in files that run collectives.
NAMES = ("torch.load",)
BYTES = ("uint8", "ByteTensor")
FUSED = ("rsqrt(", "silu(", "rotate_half", "softmax(")
SIGNS = ("mask]", "[~", "install_requires", "extras_require", '"docker"', "'docker'")
LOOKUPS = ("getattr(torch", "hasattr(torch", "setattr(torch")
# A device given as a number, and a comparison inside of an index. Each begins with a literal.
NUMBERS = tuple(
    re.compile(text)
    for text in (
        r"device\s*=\s*\d",
        r"map_location\s*=\s*\d",
        r"device_map\s*=\s*[{\d]",
        r"\.to\(\s*\d",
        r"device\(\s*\d",
        r"torch\.device\(\s*[\w.]*(?:rank|idx|index|gpu|_id\b|local)",
    )
)
COMPARED = re.compile(r"\[(?<=[\w)\]}\"']\[)(?:[^\[\]]|\[[^\[\]]*\])*?(?:[=!<>]=|(?<!-)>|<)")
# An import, which brackets or backslashes take over several lines, with comments between.
FROM = re.compile(r"from[ \t]+([\w.]+)(?:[ \t]|\\\r?\n)+$")
NAMES_OF_IMPORT = re.compile(r"[ \t]*(?:\((?:[^()#]|#[^\n]*)*|(?:\\\r?\n|[^\n])*)")
IMPORTED = re.compile(r"(\*|[\w.]+)(?:[\s\\]+as[\s\\]+(\w+))?")
LONGEST = 300  # characters that are looked back for the `from` of an import
# A chain of names over lines: looked for at the start of a line, then joined.
CHAINED = re.compile(r"\n[ \t]*\.[A-Za-z_]")
BROKEN = re.compile(r"[ \t]*\\?\r?\n[ \t]*\.(?=[A-Za-z_])|\.[ \t]*\\\r?\n[ \t]*(?=[A-Za-z_])")


@dataclass(frozen=True, slots=True)
class Clues:
    """What a file without the origin's words needs one of, to hold a site."""

    texts: tuple[str, ...]
    tools: re.Pattern[str] | None
    tool_words: tuple[str, ...]
    modules: frozenset[str]  # listed imports, with everything below them
    names: dict[str, tuple[str, ...]]  # package → its listed names, without it
    shim: str


@once_per_rules
def clues(context: Context) -> Clues:
    """The clues of a move's rules, made once."""
    table, words = patterns(context), migration_map(context)
    known = Vocabulary.of(context)
    texts = {*table.strings, *table.attributes, *SIGNS, *LOOKUPS}
    texts |= {f".{name}" for name in table.methods}
    given = {*(name for name, _ in table.keywords), *(option for _, option in table.options)}
    texts |= {f"{name}{sign}" for name in given for sign in ("=", " =")}
    texts |= {name.partition("*")[0] for name in words.renames if name[3:4] != "*"}
    for setting in context.chip.attributes():
        key, _, value = setting.partition("=")
        written = (
            (f"{key}=", f"{key} =") if value in ("True", "gpu") else (f'{value}"', f"{value}'")
        )
        texts |= set(written)
    texts |= set(FUSED) if context.chip.data("fused.yaml") else set()
    texts |= {word for one in context.codemods for word in one.WORDS}
    modules = {*table.imports, *context.chip.imports()}
    names: dict[str, list[str]] = {}
    sinks = flow_sinks.load(context.origin.device)
    implied = {*sinks.implied, *sinks.implied_by}
    for name in {*table.names, *table.prefixes, *known.relation.moved, *NAMES, *implied}:
        package, _, rest = name.partition(".")
        if rest:
            names.setdefault(package, []).append(rest)
        else:
            modules.add(name)
    tools = tuple(word for word in words.tools if not common(known, word))
    any_tool = "|".join(map(re.escape, tools))
    return Clues(
        texts=tuple(sorted(text for text in texts if not common(known, text))),
        tools=re.compile(rf"(?<![\w-])(?:{any_tool})(?![\w-])") if tools else None,
        tool_words=tools,
        modules=frozenset(modules),
        names={package: tuple(rests) for package, rests in names.items()},
        shim=str(context.chip.shim.get("import") or ""),
    )


def common(known: Vocabulary, text: str) -> bool:
    """Whether a text holds a word that lets a file in by itself."""
    return any(word in text.lower() for word in known.words)


def above(name: str) -> Iterator[str]:
    """The modules above a dotted name."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def prefilter(
    text: str, context: Context, outside: Callable[[str], bool] = lambda dotted: True
) -> bool:
    """Whether any rule could match.

    `outside` tells whether a dotted name is no module of the project.
    """
    lower = text.lower()
    if any(word in lower for word in Vocabulary.of(context).words):
        return True
    if "torch" in text and any(key in text for key in context.configured):
        return True
    known = clues(context)
    if CHAINED.search(text) or ".\\\n" in text:
        text = BROKEN.sub(".", text)
    if any(sign in text for sign in known.texts):
        return True
    if any(word in text for word in known.tool_words) and known.tools and known.tools.search(text):
        return True
    if any(pattern.search(text) for pattern in NUMBERS):
        return True
    if "torch" in text and COMPARED.search(text):
        return True
    return imports_listed(text, known, outside)


def imports_listed(text: str, known: Clues, outside: Callable[[str], bool]) -> bool:
    """Whether a file imports a listed package, or writes a listed name of one that it imports."""
    bound = {(package, package) for package in known.names if is_quoted(package, text)}
    for base, name, alias in find_imports(text):
        if name == "*" and may_star(text, known, base):
            return True
        dotted = f"{base}.{name}" if base else name
        for each in {base, dotted} - {""}:
            if (each in known.modules or not known.modules.isdisjoint(above(each))) and outside(
                each
            ):
                return True
            if known.shim and each.startswith(known.shim):
                return True
        plain = not base and not alias
        bound.add((name.partition(".")[0],) * 2 if plain else (alias or name, dotted))
    return any(writes_name(text, known, name, dotted) for name, dotted in bound)


def may_star(text: str, known: Clues, dotted: str) -> bool:
    """Whether a text writes a listed name that `from dotted import *` may have given it."""
    package, _, inside = dotted.partition(".")
    head = f"{inside}." if inside else ""
    below = (rest[len(head) :] for rest in known.names.get(package, ()) if rest.startswith(head))
    return any(name.partition(".")[0] in text for name in below)


def writes_name(text: str, known: Clues, name: str, dotted: str) -> bool:
    """Whether a text writes a listed name below `dotted`, which it calls `name`."""
    package, _, inside = dotted.partition(".")
    for rest in known.names.get(package, ()):
        if rest == inside or (inside and inside.startswith(f"{rest}.")):
            return True
        below = rest.removeprefix(f"{inside}.") if inside else rest
        if (below != rest or not inside) and f"{name}.{below}" in text:
            return True
    if package in known.names and any(f"{sign}{name}" in text for sign in ("= ", "=", ", ")):
        # `jit = torch.jit`: a name of its own for a part of the package.
        own = rf"=(?:[^=\n(]*,)?[ \t]*{re.escape(name)}((?:\.\w+)*)[ \t]*(?=$|[,;#])"
        for found in re.findall(own, text, re.M):
            part = f"{inside}{found}".lstrip(".")
            if not part or any(rest.startswith(f"{part}.") for rest in known.names[package]):
                return True
    if package == "torch" and "distributed" in text:
        return any(f"{name}.{kind}" in text for kind in BYTES)
    return False


def is_quoted(package: str, text: str) -> bool:
    """Whether a package is named in a string: `torch = import_module("torch")`."""
    return f'"{package}"' in text or f"'{package}'" in text


def find_imports(text: str) -> Iterator[tuple[str, str, str]]:
    """What a text imports: module (empty for `import x`), name, and the name it gets (or none)."""
    at = text.find("import")
    while at >= 0:
        start = at + len("import")
        if text[start : start + 1] in (" ", "\t", "(", "*", "\\"):
            base = FROM.search(text, max(0, at - LONGEST), at)
            names = NAMES_OF_IMPORT.match(text, start)
            for name, alias in IMPORTED.findall(names.group() if names else ""):
                yield base.group(1) if base else "", name, alias
        at = text.find("import", start)
