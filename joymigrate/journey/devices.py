"""How many devices the simulated machine gets: as many as the program is started on.

The original runs on one GPU, or on a CPU. A program that takes every card it sees would be another
program on eight of them, so one is the default; launchers say how many processes they start, and
sources sometimes name a card.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun", "launch", ".sh")
NAMED = re.compile(
    r"(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus|num[-_]devices|(?<![-\w])-np|"
    r"(?<![-\w])-n|world[-_]size|n?gpus?|devices)[=\s]+['\"]?(\d+)\b"
)
# `"cuda:1"`, `f"{device_type()}:1"` as it is rewritten, `.cuda(1)`, `set_device(1)`.
CARD = re.compile(
    r"[\"'](?:[a-z]{3,6}|\{[^{}]*\}):(\d{1,2})[\"']|\.(?:cuda|device|set_device)\((\d{1,2})\)"
)
GIVEN = re.compile(r"\bcuda:(\d{1,2})\b")
VISIBLE = re.compile(r"CUDA_VISIBLE_DEVICES=['\"]?([\d,]+)")
MOST = 64


def devices_of(entry: Sequence[str], project: Path) -> int | None:
    """The number of devices; None where a launcher decides and does not say."""
    text = " ".join(entry)
    for word in entry:
        if word.endswith(".sh") and (project / word).is_file():
            text += " " + (project / word).read_text(encoding="utf-8", errors="replace")
    named = [int(number) for number in NAMED.findall(text)]
    named += [int(number) + 1 for number in GIVEN.findall(text)]
    named += [len(cards.split(",")) for cards in VISIBLE.findall(text)]
    if named:
        return min(max(1, *named), MOST)
    if any(sign in word for word in entry for sign in LAUNCHERS):
        return None
    return max(
        [1, *(number + 1 for number in cards_in(entry, project)), *count_spawned(entry, project)]
    )


def count_spawned(entry: Sequence[str], project: Path) -> list[int]:
    """How many processes the program's own file spawns, where it says a number."""
    found: list[int] = []
    for script in (project / word for word in entry if word.endswith(".py")):
        try:
            nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8", errors="replace"))))
        except (OSError, SyntaxError, ValueError):
            continue
        names = {
            target.id: number
            for node in nodes
            if isinstance(node, ast.Assign) and (number := whole(node.value, {})) is not None
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "spawn":
                asked = [*node.args[2:3], *(k.value for k in node.keywords if k.arg == "nprocs")]
                found += [n for one in asked if (n := whole(one, names)) is not None and n <= MOST]
    return found


def whole(node: ast.expr, names: Mapping[str, int]) -> int | None:
    """The number that an expression is, or that the name stands for."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return names.get(node.id) if isinstance(node, ast.Name) else None


def cards_in(entry: Sequence[str], project: Path) -> list[int]:
    """The cards that the program's own file names."""
    scripts = [project / word for word in entry if word.endswith(".py")]
    return [
        int(one or other)
        for script in scripts
        if script.is_file()
        for one, other in CARD.findall(script.read_text(encoding="utf-8", errors="replace"))
        if int(one or other) < MOST
    ]
