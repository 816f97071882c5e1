"""The program's own script, run as `__main__` from its rewritten text.

What the script sees is what `python script.py` shows it: `__file__`, `__spec__`, `sys.argv` and
`sys.path`. A traceback of its own begins with two lines of Python's `runpy`.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from joymigrate.rewrite.switch.rewriter import Rewriter, SwitchLoader, compile_cached

SOURCE = (".py", ".pyw")


class ScriptSpec(ModuleSpec):
    """The spec of a script: as `python script.py` has it, with no package and no module name."""

    @property
    def parent(self) -> Any:
        return None


class ScriptImporter:
    """Stands for a script file on the path, so that Python asks it for `__main__`.

    Python treats a file that a path hook accepts like a zip archive: it puts it on `sys.path` and
    runs its `__main__`. The loader puts the path right again before the first line runs.
    """

    def __init__(self, rewriter: Rewriter, path: str) -> None:
        self.rewriter = rewriter
        self.path = path

    def find_spec(self, name: str, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "__main__":
            return None
        made = ScriptLoader(name, self.path)
        made.rewriter = self.rewriter
        spec = ScriptSpec(name, made, origin=self.path)
        spec.has_location = True
        return spec


class ScriptLoader(SwitchLoader):
    """Loads the rewritten script as `__main__`, with the path that the user's script would see."""

    def get_code(self, fullname: str) -> CodeType:
        data = Path(self.path).read_bytes()
        put_path_right(self.path)
        try:
            text = self.rewriter.text(self.path, data) or data
            return compile_cached(text, self.path, lambda: without_spec(text, self.path), "script")
        except SyntaxError as error:
            # As Python itself tells it: without the frames of whoever compiled the script.
            sys.excepthook(type(error), error.with_traceback(None), None)
            raise SystemExit(1) from None

    def get_filename(self, name: str | None = None) -> str:
        return self.path


def put_path_right(script: str) -> None:
    """Replace the script on `sys.path` by its folder, as `python script.py` does."""
    if script not in sys.path:
        return
    at = sys.path.index(script)
    if getattr(sys.flags, "safe_path", False):
        del sys.path[at]
    else:
        sys.path[at] = os.path.dirname(os.path.realpath(script))
    sys.path_importer_cache.pop(script, None)


def script_hook(rewriter: Rewriter) -> Any:
    """A path hook that accepts scripts the switch covers."""

    def accept(path: str) -> ScriptImporter:
        if not path or not os.path.isfile(path) or is_archive(path) or not rewriter.covers(path):
            raise ImportError(path)
        return ScriptImporter(rewriter, path)

    return accept


def is_archive(path: str) -> bool:
    """Whether a file is a zip archive or compiled, which Python runs in its own way."""
    if path.endswith(SOURCE):
        return False
    with open(path, "rb") as file:
        head = file.read(256)
    return b"\0" in head or head.startswith(b"PK")


def without_spec(text: bytes, path: str) -> CodeType:
    """Compile a script so that it begins by dropping the spec that Python gave `__main__`.

    Python sets it after the loader's last word. The added statement stands behind the docstring
    and `from __future__`, on the line of the statement before it, and shows in no traceback.
    """
    import ast

    tree = ast.parse(text, path)
    at = 0
    for statement in tree.body:
        value = statement.value if at == 0 and isinstance(statement, ast.Expr) else None
        docstring = isinstance(value, ast.Constant) and isinstance(value.value, str)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not (docstring or future):
            break
        at += 1
    if tree.body:
        line = tree.body[max(at - 1, 0)].lineno
        drop = ast.parse("__spec__ = None").body[0]
        tree.body.insert(at, ast.increment_lineno(drop, line - 1))
    return compile(tree, path, "exec", dont_inherit=True)
