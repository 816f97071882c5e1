"""Replacements in a kernel's text, and names that it does not use."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

AXES = (0, 1, 2)


@dataclass(slots=True)
class Edits:
    """Replacements of spans of one text, by byte offsets."""

    source: bytes
    starts: list[int] = field(default_factory=list)
    spans: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = [0]
        for line in self.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """The offset of a place as the syntax tree has it."""
        return self.starts[line - 1] + column

    def span(self, node: ast.expr) -> tuple[int, int]:
        """Where a node lies."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.at(node.lineno, node.col_offset),
            self.at(node.end_lineno, node.end_col_offset),
        )

    def replace(self, node: ast.expr, text: str) -> None:
        """Put a text in place of a node."""
        self.spans.append((*self.span(node), text))

    def within(self, start: int, end: int) -> str:
        """The text of a span after all replacements inside it; an outer one wins."""
        found, at = bytearray(), start
        in_order = sorted(self.spans, key=lambda span: (span[0], span[0] != span[1], -span[1]))
        for left, right, text in in_order:
            if left < at or right > end:
                continue
            found += self.source[at:left] + text.encode()
            at = right
        return (found + self.source[at:end]).decode()


@dataclass(frozen=True, slots=True)
class FreeNames:
    """Names that the kernel does not use."""

    block: tuple[str, str, str]
    grid: tuple[str, str, str]
    cores: str = "CORES"
    lane: str = "first_lane"
    tile: str = "TILE"

    @classmethod
    def free_of(cls, node: ast.FunctionDef) -> FreeNames:
        """Names with as many underscores as it takes."""
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        used |= {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        mark = ""
        while {f"{n}{mark}" for n in ("block_0", "grid_0", "CORES", "first_lane", "TILE")} & used:
            mark += "_"
        block, grid = (tuple(f"{word}_{axis}{mark}" for axis in AXES) for word in ("block", "grid"))
        return cls(block, grid, f"CORES{mark}", f"first_lane{mark}", f"TILE{mark}")  # type: ignore[arg-type]
