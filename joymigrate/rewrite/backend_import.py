"""JM001: the import that edited code needs, added once per file, where it works."""

from __future__ import annotations

import ast
import sys

from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import under_shim
from joymigrate.rewrite.module import HELPER, Module
from joymigrate.rewrite.scopes import FUNCTIONS


def find(module: Module, findings: list[Finding], helper_import: str) -> Finding | None:
    """The finding that adds the import, or None when nothing needs it or it is there.

    `helper_import` is the statement that imports the generated helper into this file.
    """
    if module.context.style is Style.SHIM:  # other files get it by `entries`
        alone = module.project.entry and bool(under_shim.device_lines(module))
        added = shim(module, findings) if alone else None
        met = under_shim.find_failing(module, findings) if added is not None else None
        if added is None or met is None:
            return added
        return added.doubt(Text(under_shim.MEETS, place=met))
    needs = {finding.needs for finding in findings if finding.needs and finding.edits}
    if not needs:
        return None
    if module.context.style is Style.ACCELERATOR:
        statement = "import torch"
    elif module.context.style is Style.AGNOSTIC:
        statement = helper_import
        if module.helper != "jm":
            name = "" if module.helper == HELPER else f" as {module.helper}"
            statement = statement.replace(" as jm", name)
        if any(name == HELPER for name in find_imported(module)):
            return None
    else:
        package = module.context.chip.package
        if not package or package in find_imported(module):
            return None
        statement = f"import {package}"
    tier = Tier.SAFE if any(f.tier is Tier.SAFE and f.needs for f in findings) else Tier.UNSAFE
    own = module.context.style is Style.AGNOSTIC
    place = after_path_change(module, findings) if own else None
    return add_import(module, statement, findings, tier, place)


def shim(module: Module, findings: list[Finding]) -> Finding | None:
    """The finding that adds the vendor's shim to a file where programs start."""
    line = str(module.context.chip.shim["line"])
    if line.split()[-1] in find_imported(module):
        return None
    return add_import(module, line, findings, Tier.SAFE, shim_slot(module, findings))


# Packages that don't import torch.
PLAIN = frozenset(
    (
        *("numpy", "scipy", "pandas", "matplotlib", "seaborn", "PIL", "cv2", "sklearn", "tqdm"),
        *("yaml", "requests", "rich", "psutil", "joblib", "packaging", "six", "regex", "click"),
        *("typer", "absl", "fire", "pytest", "mock", "hydra", "omegaconf", "setuptools", "dotenv"),
    )
)


def shim_slot(module: Module, findings: list[Finding]) -> tuple[ast.stmt, bool] | None:
    """The statement that the import of the shim stands beside, and whether before it.

    Right after torch, or before the first import of anything that may import torch and ask for the
    device as it does: the project's own modules, other packages. Behind what sets variables.
    """
    body = module.tree.body
    imports = [n for n in body if isinstance(n, (ast.Import, ast.ImportFrom)) and not future(n)]
    heavy = [node for node in imports if may_reach_torch(node)]
    sets = [n for n in body if isinstance(n, (ast.Assign, ast.Expr)) and sets_variables(module, n)]
    torch = next((node.lineno for node in heavy if names_torch(node)), None)
    behind = max((n.lineno for n in sets if torch is None or n.lineno < torch), default=0)
    node = next((node for node in heavy if node.lineno > behind), None)
    if node is None:
        return first_statement(module)
    if not names_torch(node):
        return node, True
    return node, is_edited(module, node, findings) or shares_line(module, node)


def may_reach_torch(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import may lead to torch: all but the standard library's and plain packages'."""
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""] if not node.level else ["."]
    else:
        names = [alias.name for alias in node.names]
    plain = PLAIN | sys.stdlib_module_names
    return any(name.partition(".")[0] not in plain for name in names)


def sets_variables(module: Module, node: ast.stmt) -> bool:
    """Whether a statement sets a variable of the environment."""
    return "os.environ" in module.text(node) or "os.putenv" in module.text(node)


def add_import(
    module: Module,
    statement: str,
    findings: list[Finding],
    tier: Tier,
    place: tuple[ast.stmt, bool] | None = None,
) -> Finding | None:
    """The finding that adds one import statement, or None without a place for it."""
    place = place or slot(module, findings)
    if place is None:
        return None
    node, before = place
    start, end = module.span(node)
    line_start = module.source.starts[node.lineno - 1]
    indent = module.source.text[line_start:start]
    page = len(indent) - len(indent.lstrip("\f"))  # a form feed is the program's own
    line_start, indent = line_start + page, indent[page:]
    newline = module.source.newline
    if indent.strip():
        # A block does not fit into a line: its first statement does.
        statement = next(
            (line.strip() for line in statement.splitlines() if line[0] == " "), statement
        )
        # Behind `try:` or another statement a line of its own would leave the block.
        where, text = (start, f"{statement}; ") if before else (end, f"; {statement}")
    elif before:
        text = newline.join(f"{indent}{line}" for line in statement.splitlines())
        where, text = line_start, f"{text}{newline}"
    else:
        line, _ = module.source.position(end)
        where = module.source.starts[line - 1] + len(module.source.line_text(line))
        text = "".join(f"{newline}{indent}{line}" for line in statement.splitlines())
    return module.find(
        "JM001",
        (where, where),
        after=text.strip("; \r\n\t"),
        edits=[(where, where, text)],
        tier=tier,
    )


def find_imported(module: Module) -> set[str]:
    """Last names of modules that the file imports at its top level."""
    found = set()
    for node in (*module.names.nodes[ast.Import], *module.names.nodes[ast.ImportFrom]):
        for alias in node.names:
            found.add(alias.name)
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def slot(module: Module, findings: list[Finding]) -> tuple[ast.stmt, bool] | None:
    """The statement that the new line stands beside, and whether before (True) or after it.

    After the first import of torch; before it when that very statement is rewritten to need the
    new import; for a helper in a file without torch, after the last import. An import of torch
    that follows the first line outside of functions which needs the new one is none.
    """
    statements = [*module.names.nodes[ast.Import], *module.names.nodes[ast.ImportFrom]]
    statements.sort(key=lambda node: node.lineno)
    needed = find_first_needing(module, findings)
    early = [node for node in statements if node.lineno <= needed]
    torch = [node for node in early if names_torch(node)]
    if not torch and any(names_torch(node) for node in statements):
        outside = [n for n in early if not future(n) and getattr(n, "parent", None) is module.tree]
        return (outside[-1], False) if outside else first_statement(module)
    if module.context.style.portable:
        top = [n for n in statements if getattr(n, "parent", None) is module.tree]
        asked = next((n for n in torch if n not in top and tries(module, n)), None)
        if asked is not None and not any(n in top for n in torch):
            first = min((f.line for f in findings if f.needs and f.edits), default=asked.lineno)
            if first > asked.lineno and not shares_line(module, asked):
                return asked, False  # the program runs without torch, and so must the import
        edited_first = next((n for n in top if is_edited(module, n, findings)), None)
        if edited_first is not None:
            return edited_first, True
        plain = [n for n in torch if n in top] or [n for n in top if not future(n)]
        return (plain[0], shares_line(module, plain[0])) if plain else first_statement(module)
    torch = [node for node in torch if not is_for_checkers(node)] or torch
    if not torch:  # `from helper import *` may have brought it
        return next(((n, shares_line(module, n)) for n in early if brings_torch(module, n)), None)
    return torch[0], is_edited(module, torch[0], findings) or shares_line(module, torch[0])


def brings_torch(module: Module, node: ast.Import | ast.ImportFrom) -> bool:
    """Whether a file that names torch and imports it nowhere has it by `from … import *`."""
    named = any(each.id == "torch" for each in module.names.nodes[ast.Name])
    starred = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    return named and starred and getattr(node, "parent", None) is module.tree


def find_first_needing(module: Module, findings: list[Finding]) -> int:
    """The first line outside of functions that needs the new import; a large number without one."""
    inside = {
        line
        for kind in FUNCTIONS
        for function in module.names.nodes[kind]
        for line in range(function.body[0].lineno, (function.end_lineno or 0) + 1)
    }
    return min({f.line for f in findings if f.needs and f.edits} - inside, default=sys.maxsize)


def is_for_checkers(node: ast.stmt) -> bool:
    """Whether a statement stands in an `if TYPE_CHECKING:`, which no program runs."""
    above = getattr(node, "parent", None)
    return (
        isinstance(above, ast.If)
        and node in above.body
        and (ast.unparse(above.test).rpartition(".")[2] == "TYPE_CHECKING")
    )


def tries(module: Module, node: ast.stmt) -> bool:
    """Whether a statement stands in the body of a `try` at the top of a file."""
    above = getattr(node, "parent", None)
    return (
        isinstance(above, ast.Try)
        and node in above.body
        and getattr(above, "parent", None) is module.tree
    )


def after_path_change(module: Module, findings: list[Finding]) -> tuple[ast.stmt, bool] | None:
    """The last change of `sys.path` at the top of a file, where the helper may first be found
    behind it (`sys.path.append("../..")`) and nothing before it needs the helper."""
    first = find_first_needing(module, findings)
    changes = [node for node in module.tree.body if changes_path(node) and node.lineno < first]
    if not changes or shares_line(module, changes[-1]):
        return None
    return changes[-1], False


def changes_path(node: ast.stmt) -> bool:
    """Whether a statement changes where Python looks for modules, and does nothing else."""
    if isinstance(node, ast.If):  # `if root not in sys.path: …`
        return not node.orelse and all(map(changes_path, node.body))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        name = ast.unparse(node.value.func)
        return name == "site.addsitedir" or name.startswith("sys.path.")
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target) == "sys.path"
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("sys.path")


def first_statement(module: Module) -> tuple[ast.stmt, bool] | None:
    """The first statement that is neither a docstring nor a future import."""
    for node in module.tree.body:
        documentation = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not documentation and not (isinstance(node, ast.ImportFrom) and future(node)):
            return node, True
    return None


def names_torch(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether a statement imports torch or something below it."""
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").split(".")[0] == "torch"
    return any(alias.name.split(".")[0] == "torch" for alias in node.names)


def future(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether a statement is `from __future__ import …`."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def is_edited(module: Module, node: ast.AST, findings: list[Finding]) -> bool:
    """Whether an edit touches a statement, or adds to its end."""
    start, end = (module.source.to_bytes(offset) for offset in module.span(node))
    return any(e.start <= end and e.end > start for f in findings for e in f.edits)


def shares_line(module: Module, node: ast.AST) -> bool:
    """Whether more code follows a statement on its last line."""
    _, end = module.span(node)
    line, _ = module.source.position(end)
    rest = module.source.line_text(line)[end - module.source.starts[line - 1] :].strip()
    return bool(rest) and not rest.startswith("#")
