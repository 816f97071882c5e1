"""Rules that only report, as data: names, imports, methods, keywords, commands in strings.

A rule's `match` items may have:
  names: dotted names, exact or ending in `.*`
  decorators: dotted names used as decorators
  imports: modules, with everything below them
  methods: method names called on some value (`x.double()`), optionally `unless_args: true`
  keywords: {name: [values]} of any call
  options: {dotted name: [keywords]} of a call of that name, unless they are False or None
  settings: keys of a settings file, in a table whose own key holds the word `above` or that has one
    of the keys `beside` as well, unless they are false, null or 0; `readers` look for them
  attributes: names of attributes of any value
  strings: whole strings, wherever they stand
With `device: name` nothing is said of the item's names on a target whose device is called so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from joymigrate.chips import NameAdvice
from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite import native
from joymigrate.rewrite.arrays import is_array
from joymigrate.rewrite.context import Context, once_per_rules
from joymigrate.rewrite.device_places import annotation
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.moved_names import moved_part
from joymigrate.rewrite.readers._migration_map import migration_map

SETTING = "JM192"  # values of well-known keywords that the chip's data knows
RUNNING = ("subprocess.", "os.", "sh.", "shutil.")
RUNNERS = re.compile(
    r"(subprocess\.\w+|os\.(system|popen|exec\w+|spawn\w+)|sh\.\w+|shutil\.which)$"
)
# torch's builders of extensions: a `.cu` among the sources turns the toolkit on (`with_cuda`).
BUILDERS = "torch.utils.cpp_extension.load"
HOST_SOURCES = (".cpp", ".cc", ".cxx", ".c")


@dataclass(slots=True)
class Patterns:
    """The match items of all rules, by what they look at. Values are rule ids."""

    names: dict[str, str] = field(default_factory=dict)
    prefixes: dict[str, str] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    methods: dict[str, str] = field(default_factory=dict)
    keywords: dict[tuple[str, str], str] = field(default_factory=dict)
    options: dict[tuple[str, str], str] = field(default_factory=dict)
    strings: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)  # the first words of all names
    arguments: set[str] = field(default_factory=set)  # keywords with a rule or an advice


@once_per_rules
def patterns(context: Context) -> Patterns:
    """The patterns of a context's rules, made once."""
    found = Patterns()
    for rule in context.rules.values():
        for item in rule.match:
            add(found, "" if item.get("device") == context.chip.device else rule.id, item)
    named = (*found.names, *found.prefixes)
    found.packages.update(name.partition(".")[0] for name in named)
    found.arguments.update(name for name, _ in found.keywords)
    found.arguments.update(option for _, option in found.options)
    found.arguments.update(name.partition("=")[0] for name in context.chip.attributes())
    return found


def add(found: Patterns, rule: str, item: dict[str, Any]) -> None:
    """Sort one match item of a rule into the tables; what an empty rule lists is no site."""
    if item.get("by") == "codemod":
        return
    for name in item.get("names", ()):
        if name.endswith(".*"):
            found.prefixes[name[:-2]] = rule
        else:
            found.names[name] = rule
    found.imports.update(dict.fromkeys(item.get("imports", ()), rule))
    found.methods.update(dict.fromkeys(item.get("methods", ()), rule))
    for keyword, values in (item.get("keywords") or {}).items():
        found.keywords.update({(keyword, str(value)): rule for value in values})
    for name, options in (item.get("options") or {}).items():
        found.options.update({(name, option): rule for option in options})
    found.strings.update(dict.fromkeys(item.get("strings", ()), rule))
    found.attributes.update(dict.fromkeys(item.get("attributes", ()), rule))


def find(module: Module) -> Iterator[Finding]:
    """Findings of every rule that data describes."""
    table = patterns(module.context)
    yield from imports(module, table)
    for top, dotted in module.names.imported_chains():
        if dotted.partition(".")[0] in table.packages and top not in module.handled:
            yield from names(module, table, top, dotted)
    for call in module.names.nodes[ast.Call]:
        yield from match_call(module, table, call)
    lists = (ast.List, ast.Tuple) if "docker" in module.source.text else ()
    for words in (node for kind in lists for node in module.names.nodes[kind]):
        yield from containers(module, words)
    for node in module.names.nodes[ast.Attribute] if table.attributes else ():
        if node.attr in table.attributes:
            yield module.find(table.attributes[node.attr], node, tier=Tier.REPORT)
    yield from tool_names(module)
    for node in module.names.nodes[ast.Constant]:
        rule = table.strings.get(node.value) if isinstance(node.value, str) else None
        if rule is not None and node not in module.names.docstrings:
            yield module.find(rule, node, tier=Tier.REPORT)


def lookup(dotted: str, exact: dict[str, str], prefixes: dict[str, str]) -> str | None:
    """The rule of a dotted name: exact, or by its longest listed prefix."""
    if dotted in exact:
        return exact[dotted]
    head = dotted
    while head:
        if head in prefixes:
            return prefixes[head]
        head = head.rpartition(".")[0]
    return None


def names(module: Module, table: Patterns, top: ast.expr, dotted: str) -> Iterator[Finding]:
    """A dotted name that a rule lists; the longest listed part of the chain counts.

    Not in annotations, and not what is reported as it moved.
    """
    if annotation(top) or moved_part(module, top, dotted) is not None:
        return
    node, name = top, dotted
    while True:
        rule = table.names.get(name)
        if rule == "":
            return
        if rule is not None and (named_before(module, node) or compiles_for_host(module, node)):
            return
        if rule is not None:
            note = import_note(module, name) or settings_note(module, node)
            yield module.find(rule, node, tier=Tier.REPORT, reason=note)
            return
        if not isinstance(node, ast.Attribute):
            break
        node, name = node.value, name.rpartition(".")[0]
    rule = lookup(dotted, {}, table.prefixes)
    if rule:
        yield module.find(rule, top, tier=Tier.REPORT, reason=import_note(module, dotted))


def named_before(module: Module, node: ast.expr) -> bool:
    """Whether a name is this file's own for something that was reported where it was assigned."""
    found = module.names.lookup(node.id, node) if isinstance(node, ast.Name) else None
    return found is not None and all(binding.kind == "assign" for binding in found[1])


def builds_for_host(module: Module, builder: str) -> bool:
    """Whether a file asks a builder of extensions for nothing but builds of C++ alone."""
    uses = [top for top, dotted in module.names.imported_chains() if dotted == builder]
    return bool(uses) and all(compiles_for_host(module, top) for top in uses)


def compiles_for_host(module: Module, node: ast.expr) -> bool:
    """`load("ops", ["ops.cpp"])`: a build of C++ alone, which no word of the origin turns on.

    That the sources name nothing of the origin is for the reader of C++ files to say.
    """
    call = getattr(node, "parent", None)
    builder = module.names.dotted(node) or ""
    if not isinstance(call, ast.Call) or call.func is not node or not builder.startswith(BUILDERS):
        return False
    given = {keyword.arg or "": keyword.value for keyword in call.keywords}
    device = module.context.origin.device
    if "" in given or (device and any(device in name for name in given)):
        return False
    sources = given.get("sources", call.args[1] if len(call.args) > 1 else call)
    if builder.endswith("_inline"):
        return "cpp_sources" in given
    texts = [n.value for n in ast.walk(sources) if isinstance(n, ast.Constant)]
    files = [text for text in texts if isinstance(text, str) and "." in text]
    return bool(files) and all(text.endswith(HOST_SOURCES) for text in files)


def import_note(module: Module, name: str) -> str | None:
    """What the chip's data says of a third-party name: its replacement and the note."""
    advice = module.context.chip.import_advice(name)
    if advice is None:
        return None
    return use(advice)


def imports(module: Module, table: Patterns) -> Iterator[Finding]:
    """Imports of third-party modules that are bound to the origin, with the chip's advice."""
    for node in (*module.names.nodes[ast.Import], *module.names.nodes[ast.ImportFrom]):
        if node in module.handled:
            continue
        if isinstance(node, ast.Import):
            dotted = [(alias.name, alias) for alias in node.names]
        else:
            base = module.names.absolute(node)
            dotted = [(base, node)]
            if lookup(base, table.imports, table.imports) is None:
                dotted = [(f"{base}.{alias.name}", alias) for alias in node.names]
        for name, where in dotted:
            if where in module.handled or module.project.locate(name) is not None:
                continue
            if name.startswith(BUILDERS) and builds_for_host(module, name):
                continue
            shim = module.context.chip.shim.get("import")
            if shim and name.startswith(str(shim)):
                yield module.find("JM220", where, tier=Tier.REPORT)
                continue
            rule = lookup(name, {}, table.imports)
            advice = module.context.chip.import_advice(name)
            note = use(advice) if advice else None
            if rule is None and note is None:
                continue
            if advice and native.runs_unchanged(advice.name, module.context.chip):
                continue  # of its parts those have rows of their own that do need something
            rule = rule or table.names.get(name) or "JM204"
            yield module.find(rule, where, tier=Tier.REPORT, reason=note)


def match_call(module: Module, table: Patterns, call: ast.Call) -> Iterator[Finding]:
    """Methods, keyword values and commands of one call."""
    if isinstance(call.func, ast.Attribute):
        rule = table.methods.get(call.func.attr)
        array = rule == "JM211" and is_array(module, call.func.value)
        if rule is not None and not array and not is_module(module, call.func.value):
            _, end = module.span(call)
            _, start = module.span(call.func.value)
            if "\n" not in module.source.text[start:end]:
                yield module.find(rule, (start, end), tier=Tier.REPORT)
    for keyword in call.keywords:
        if keyword.arg not in table.arguments:
            continue
        value = constant_or_name(module, keyword.value)
        rule = table.keywords.get((keyword.arg, value or "")) or table.keywords.get(
            (keyword.arg, "*")
        )
        if rule is None and value not in ("False", "None", "0"):
            rule = table.options.get((module.names.dotted(call.func) or "", keyword.arg))
        advice = attribute_advice(module, keyword.arg, value)
        if rule is None and module.names.dotted(call.func) in table.names:
            continue  # said with the name
        if rule is not None or advice is not None:
            yield module.find(rule or SETTING, keyword, tier=Tier.REPORT, reason=advice)
    yield from commands(module, table, call)


def is_module(module: Module, node: ast.expr) -> bool:
    """Whether an expression is an imported name, and so no tensor."""
    return isinstance(node, (ast.Name, ast.Attribute)) and module.names.dotted(node) is not None


def constant_or_name(module: Module, node: ast.expr) -> str | None:
    """A literal's text, or the dotted name of an expression."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return module.names.dotted(node)


def settings_note(module: Module, node: ast.expr) -> str | None:
    """The chip's advice on the first known keyword value of a call of `node`."""
    call = getattr(node, "parent", None)
    if not isinstance(call, ast.Call) or call.func is not node:
        return None
    notes = (
        attribute_advice(module, keyword.arg, constant_or_name(module, keyword.value))
        for keyword in call.keywords
        if keyword.arg is not None
    )
    return next((note for note in notes if note), None)


def attribute_advice(module: Module, name: str, value: str | None) -> str | None:
    """The chip's advice on a keyword value."""
    advice = module.context.chip.attributes().get(f"{name}={value}")
    return use(advice) if advice else None


def commands(module: Module, table: Patterns, call: ast.Call) -> Iterator[Finding]:
    """A program of the origin run from Python: `os.system("nvidia-smi")`."""
    callee = module.names.dotted(call.func) if call.args else None
    if not callee or not callee.startswith(RUNNING) or not RUNNERS.match(callee):
        return
    argument, words = call.args[0], migration_map(module.context)
    texts = [n.value for n in ast.walk(argument) if isinstance(n, ast.Constant)]
    spoken = " ".join(text for text in texts if isinstance(text, str))
    for word in re.findall(r"[\w./-]+", spoken):
        advice = words.tools.get(word.rpartition("/")[2])
        if advice is not None:
            yield tool(module, argument, advice)
            return


def containers(module: Module, words: ast.List | ast.Tuple) -> Iterator[Finding]:
    """Cards that a container gets: `["docker", "run", "--gpus", "all"]`."""
    texts = [str(getattr(each, "value", "")) for each in words.elts]
    option = str(module.context.origin.launch.get("docker") or "").partition(" ")[0]
    for word, text in zip(words.elts, texts, strict=True) if "docker" in texts[:2] else ():
        if option and text.partition("=")[0] == option:
            to = module.context.chip.launch.get("docker") or "unknown"
            reason = Text("on the other platform: {to}", to=to)
            yield module.find("JM190", word, tier=Tier.REPORT, reason=reason)


def tool(module: Module, node: ast.expr, advice: NameAdvice) -> Finding:
    """A tool of the origin's vendor in a program's hands."""
    return module.find("JM180", node, tier=Tier.REPORT, reason=use(advice))


def tool_names(module: Module) -> Iterator[Finding]:
    """The same where the command is put together first: `cmd = ["nvidia-smi", "-L"]`."""
    words = migration_map(module.context)
    for node in module.names.nodes[ast.Constant]:
        if not isinstance(node.value, str) or node in module.names.docstrings:
            continue
        first, _, rest = node.value.partition(" ")
        advice = words.tools.get(first)
        if (
            advice is None
            or (rest and not rest.lstrip().startswith("-"))
            or in_runner(module, node)
        ):
            continue
        if not isinstance(getattr(node, "parent", None), (ast.JoinedStr, ast.Expr)):
            yield tool(module, node, advice)


def in_runner(module: Module, node: ast.AST) -> bool:
    """Whether a string stands in the first argument of a call that runs programs."""
    call = module.names.enclosing(node, (ast.Call,))
    while call is not None:
        if RUNNERS.match(module.names.dotted(call.func) or ""):
            return True
        call = module.names.enclosing(call, (ast.Call,))
    return False


def use(advice: NameAdvice) -> str | None:
    """What to use instead and what else is known, as one line; None without either."""
    other = advice.to and advice.to not in (advice.name, advice.name.partition(".")[0])
    parts = (Text("use {to}", to=advice.to) if other else "", advice.note)
    return Text.join("; ", parts) if any(parts) else None
