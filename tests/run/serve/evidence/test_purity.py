"""The evidence has no socket, clock, file or thread: what it imports cannot give it one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from joymigrate.run.serve import evidence

# What computes and keeps nothing, and orjson, which reads a text that is handed over.
PURE = {
    "__future__", "base64", "bisect", "collections", "contextlib", "dataclasses", "functools",
    "hashlib", "math", "numpy", "operator", "orjson", "re", "typing", "zlib",
}  # fmt: skip
HOUSE = ("joymigrate.errors", "joymigrate.schema", "joymigrate.run.serve.evidence")
FILES = sorted(Path(evidence.__file__).parent.glob("*.py"))
CALLS = {"open", "input", "print", "exec", "eval", "__import__"}


def impurities(text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            found.append("async")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found += [node.func.id] if node.func.id in CALLS else []
        found += [
            name for name in names if name.split(".")[0] not in PURE and not name.startswith(HOUSE)
        ]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_part_of_the_evidence_is_pure(path: Path) -> None:
    assert impurities(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line", ["import time", "from socket import socket", "import asyncio", "import random",
             "open('x')", "async def f(): ...", "from joymigrate.run.serve.gateway import server",
             "from pathlib import Path", "def f():\n    import threading"],
)  # fmt: skip
def test_what_is_not_pure_is_seen(line: str) -> None:
    assert len(impurities(line)) == 1
