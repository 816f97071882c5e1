"""Operations written out that a chip has as one operator: libcst codemods of our own.

Each is a `Codemod` like those that a project brings (docs/codemods.md). What a place means is read
from Python's own syntax tree with names and scopes (`shared`, `norms`, `gates`, `attention`); the
tree of libcst is made only for a file that holds such a place, and writes it.
"""

from __future__ import annotations

from joymigrate.rewrite.fusions.attention import Attention
from joymigrate.rewrite.fusions.gates import RotaryEmbedding, SwiGlu
from joymigrate.rewrite.fusions.norms import RmsNorm

CODEMODS = (RmsNorm, RotaryEmbedding, SwiGlu, Attention)

__all__ = ["CODEMODS", "Attention", "RmsNorm", "RotaryEmbedding", "SwiGlu"]
