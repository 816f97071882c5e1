"""The rewritten text of a file while the program runs, and the code made of it.

Everything heavy is imported only when a file needs it. The file on disk is never touched, and the
interpreter's own bytecode cache is left alone, so a later run without the switch is unaffected.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from joymigrate.rewrite.switch.cache import OURS, cache_folder, store


class Rewriter:
    """The plan, and the new text of any file it covers."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.roots = tuple(root + os.sep for root in plan["roots"])

    def covers(self, path: str) -> bool:
        """Whether a file belongs to the user's project or to a package that is followed."""
        real = os.path.realpath(path)
        if real.startswith(OURS):
            return False  # joymigrate does not migrate itself
        if real in self.plan["files"]:
            return True
        inside = any(real.startswith(root) or real == root[:-1] for root in self.roots)
        return inside and not in_environment(real, self.roots)

    def text(self, path: str, data: bytes) -> bytes | None:
        """The rewritten content of a file; None when nothing changes."""
        planned = self.plan["files"].get(os.path.realpath(path))
        if planned is None:
            # Without a site when the plan was made, unless it was written since.
            return self.fresh(path, data)
        if planned["sha256"] != hashlib.sha256(data).hexdigest():
            return self.fresh(path, data)
        return apply_edits(data, planned["edits"])

    def fresh(self, path: str, data: bytes) -> bytes | None:
        """Rewrite a file that the plan does not know, by itself."""
        words = [word.encode() for word in self.plan["words"]]
        lower = data.lower()
        if not any(word in lower for word in words):
            return None
        from joymigrate import chips
        from joymigrate.rewrite import python
        from joymigrate.rewrite.context import Context
        from joymigrate.rewrite.source import Unreadable, decode
        from joymigrate.rewrite.switch.plan import edits_by_file, same_lines

        context = Context.between(chips.get(self.plan["chip"]), chips.get(self.plan["origin"]))
        try:
            found = python.findings(decode(path, data, python=True), context)
        except Unreadable:
            return None
        edits = edits_by_file(found, self.plan["leave"]).get(path, [])
        return apply_edits(data, same_lines(edits, data)) if edits else None

    def code(self, path: str, data: bytes) -> CodeType | None:
        """The compiled rewritten file, from the cache where it was compiled before."""
        new = self.text(path, data)
        if new is None:
            return None
        return compile_cached(
            new, path, lambda: compile(new, path, "exec", dont_inherit=True), "module"
        )


def compile_cached(text: bytes, path: str, compute: Callable[[], CodeType], kind: str) -> CodeType:
    """Code from the cache where this text was compiled before."""
    key = hashlib.sha256(text + f"\0{path}\0{sys.version}\0{kind}".encode()).hexdigest()
    kept = cache_folder() / f"{key}.bin"
    try:
        found: CodeType = marshal.loads(kept.read_bytes())
        return found
    except (OSError, ValueError, EOFError, TypeError):
        pass  # not compiled yet, or cut short
    code = compute()
    store(kept, marshal.dumps(code))
    return code


def apply_edits(data: bytes, edits: Sequence[Sequence[Any]]) -> bytes:
    """`data` with [start, end, text] edits made; texts are bytes as Latin-1."""
    pieces: list[bytes] = []
    at = 0
    for start, end, text in edits:
        pieces += (data[at:start], text.encode("latin-1"))
        at = end
    return b"".join([*pieces, data[at:]])


def in_environment(path: str, roots: tuple[str, ...]) -> bool:
    """Whether a file below a root lies in an installed environment inside it."""
    for root in roots:
        if path.startswith(root):
            inner = path[len(root) :].split(os.sep)
            return any(
                part in ("site-packages", "dist-packages", ".venv", "venv") for part in inner
            )
    return False


class SwitchLoader(SourceFileLoader):
    """Loads a module from its rewritten source, and from its own where nothing changes."""

    rewriter: Rewriter

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        code = self.rewriter.code(path, self.get_data(path))
        return code if code is not None else super().get_code(fullname)
