"""Files that can't import the generated helper, by who loads them: agnostic edits of them stay.

Configurations that a library reads as data (mmengine, mmcv, `exec`), scripts that a build or a
server runs without the project around them, notebooks that are opened alone in the cloud.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Mapping

from joymigrate.language import Text
from joymigrate.rewrite.module import HELPER, Module
from joymigrate.rewrite.module_index import LOADS, ModuleIndex
from joymigrate.rewrite.packed_files import COPIED, SAGEMAKER, TORCHSERVE, find_server

# Packages of servers that copy one file out of its project, with what they call such a file.
SERVERS = {"ts": TORCHSERVE, "triton_python_backend_utils": "a model of Triton"}
CLOUD = ("google.colab", "colab.research.google.com/", "/kaggle/input")
# A program that runs or loads files of Python by their paths.
RUNS = re.compile(rf"\bexec\(|\bLazyConfig\.load|{'|'.join(LOADS)}")
INSTALLED = re.compile(r'["n][ \t]*(?:#[ \t]*)?[!%][^"\\]*\bpip3?[ \t]+install\b([^"\\]*)')
MOVES = re.compile(r"[\"n][ \t]*%cd[ \t]|\bos\.chdir\(")
DATA = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.Import, ast.ImportFrom, ast.Pass)


def refuse_helper(
    module: Module,
    tree: ModuleIndex,
    texts: Mapping[str, str],
    packed: Mapping[str, str],
    statement: str,
) -> Text | None:
    """Why a Python file can't import the helper; None where it can. `statement` imports it.

    `packed` are files that commands of the project pack without the rest, and what they are.
    """
    path = module.source.path
    name = path.rpartition("/")[2]
    if name == "setup.py":
        return Text(
            "a build runs this file without the project's modules; pass --style direct for it"
        )
    heads = {each.partition(".")[0] for each in tree.imports.get(path, ())}
    for package, what in SERVERS.items():
        if package in heads and tree.locate(path, package) is None:
            return Text(
                "{what} is copied out of its project; pass --style direct for it", what=what
            )
    taken = find_server(module.tree, name) or packed.get(path)
    if taken is not None and is_alone(taken, module.tree, path, tree, statement):
        return Text("{what} is copied out of its project; pass --style direct for it", what=taken)
    data = is_data(module.tree) and not is_module(path, tree, texts)
    if is_configuration(module.tree) or data:
        if any("mmengine" in text or "mmcv" in text for text in texts.values()):
            return Text(
                "mmengine or mmcv reads this configuration, where a call of the helper fails; "
                "pass --style direct for it"
            )
        if not heads - sys.stdlib_module_names and any(map(RUNS.search, texts.values())):
            return Text("this file is read as data: pass --style direct for it")
    if name == "conf.py" and is_of_sphinx(module.tree) and not statement.startswith("from "):
        return Text("Sphinx reads this file from another folder; pass --style direct for it")
    return None


def is_alone(what: str, code: ast.Module, path: str, tree: ModuleIndex, statement: str) -> bool:
    """Whether a file that a server or an image takes comes without what its import needs."""
    if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(code)):
        return False  # it is part of a package that is there
    if what == SAGEMAKER and tree.bases(path):
        return False  # its folder goes with it: `source_dir`
    package = statement.split()[1] if statement.startswith("from ") else ""
    heads = {each.partition(".")[0] for each in tree.imports.get(path, ())}
    return package not in SERVERS and (what != COPIED or package not in heads)


def write_as_neighbours(module: Module, home: str, statement: str) -> str:
    """The helper's import as a module imports its neighbours: from its package, by dots.

    Such a module is found wherever its package is installed, under whatever name (a part of
    another distribution, as `open3d._ml3d`). `home` is the helper's path.
    """
    package, _, _ = home.rpartition("/")
    folder, _, name = module.source.path.rpartition("/")
    near = folder == package or folder.startswith(f"{package}/")
    if not package or not near or not statement.startswith("from ") or name == "__main__.py":
        return statement
    imported = (node for node in module.names.nodes[ast.ImportFrom] if node.level)
    if "\n" in statement or not any(node.col_offset == 0 for node in imported):
        return statement
    depth = folder[len(package) :].count("/") + 1
    if len(module.project.package) < depth:
        return statement
    return f"from {'.' * depth} import {HELPER} as jm"


def is_configuration(tree: ast.Module) -> bool:
    """Whether a file is a configuration of mmengine or mmcv: it names or reads its bases."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_base_":
            return True
        if isinstance(node, ast.With):
            call = node.items[0].context_expr
            if getattr(getattr(call, "func", None), "id", "") == "read_base":
                return True
    return False


def is_data(tree: ast.Module) -> bool:
    """Whether a file only gives names to literals: run by itself, it would do nothing."""
    for node in tree.body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not text and not isinstance(node, DATA):
            return False
    bound = {
        (alias.asname or alias.name).partition(".")[0]
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    return all(makes_data(node, bound) for node in ast.walk(tree))


def makes_data(node: ast.AST, names: set[str]) -> bool:
    """Whether a node calls nothing but builtins (`dict(type="Adam")`) and methods of data."""
    if not isinstance(node, ast.Call):
        return True
    first = node.func
    while isinstance(first, ast.Attribute):
        first = first.value
    if isinstance(first, ast.Name):
        named = isinstance(node.func, ast.Attribute) or hasattr(builtins, first.id)
        return named and first.id not in names
    return isinstance(first, ast.Constant)


def is_module(path: str, tree: ModuleIndex, texts: Mapping[str, str]) -> bool:
    """Whether a file is a module: one of a package, or one that another file imports."""
    folder, _, name = path.rpartition("/")
    if f"{folder}/__init__.py".lstrip("/") in tree.paths:
        return True
    stem, home = re.escape(name.removesuffix(".py")), re.escape(folder.rpartition("/")[2])
    before = rf"(?:\.+|[\w.]*\b{home}\.)?" if home else r"\.*"
    around = rf"(?:\.+|[\w.]*\b{home})" if home else r"\.+"
    word = re.compile(
        rf"^[ \t]*(?:from[ \t]+{before}{stem}[ \t]+import\b"
        rf"|import[ \t](?:[^\n#]*[ \t,])?{before}{stem}\b"
        rf"|from[ \t]+{around}[ \t]+import\b[ \t]*(?:\([^)]*|[^\n#(]*)(?<![\w.]){stem}\b)",
        re.M,
    )
    others = (text for other, text in texts.items() if other != path and "read_base" not in text)
    return any(stem in text and word.search(text) for text in others)


def is_of_sphinx(tree: ast.Module) -> bool:
    """Whether a `conf.py` is Sphinx's."""
    names = {
        getattr(target, "id", "")
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    return bool(names & {"extensions", "html_theme", "master_doc", "root_doc"})


def refuse_in_notebook(text: str, statement: str) -> Text | None:
    """Why a notebook (the text of its file) can't import the helper; None where it can.

    `statement` imports it: from a package of the project, or from beside the notebook.
    """
    place = next((word for word in CLOUD if word in text), None)
    if place is not None:
        return Text(
            "this notebook is opened alone in the cloud ({place}); pass --style direct for it",
            place=place.rstrip("/"),
        )
    if MOVES.search(text):
        return Text("this notebook changes its folder; pass --style direct for it")
    if not statement.startswith("from "):
        return None
    package = statement.split()[1]
    named = re.compile(rf"(?<![\w/.-]){re.sub('[._]', '[-_.]', package)}(?![\w-])")
    if any(map(named.search, INSTALLED.findall(text))):
        return Text(
            "this notebook installs {package} without the helper; pass --style direct for it",
            package=package,
        )
    return None
