"""CMake files: where a build asks for the origin's toolkit. Nothing is rewritten.

The sources that such a build compiles are findings of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from joymigrate.model import Finding
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers._migration_map import Sites
from joymigrate.rewrite.source import SourceText

PATTERNS = ("CMakeLists.txt", "*.cmake", "CMakeLists.txt.in", "*.cmake.in")
RULE = "JM180"
COMMENT = re.compile(r"#\[(=*)\[.*?\]\1\]|#[^\n]*", re.DOTALL)
ASKS = re.compile(
    r"\b(?:find_package\s*\(\s*(?:CUDA|CUDAToolkit|CUDNN|cuDNN|NCCL|TensorRT|CUB|Thrust)\b"
    r"|enable_language\s*\([^)]*\bCUDA\b|project\s*\([^)]*\bCUDA\b|check_language\s*\(\s*CUDA\b"
    r"|cuda_(?:add_library|add_executable|compile|include_directories|select_nvcc_arch_flags)\b"
    r"|CMAKE_CUDA_ARCHITECTURES\b|\bCUDA_ARCHITECTURES\b|CUDA::\w+|CUDA_NVCC_FLAGS\b)",
    re.IGNORECASE,
)


def read(source: SourceText, context: Context) -> Iterator[Finding]:
    """The places of one file that ask for the toolkit; each way of asking once."""
    if not context.origin.origin or context.origin.device == context.chip.device:
        return
    sites = Sites.of(source, context)
    text = COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), source.text)
    seen: set[str] = set()
    for match in ASKS.finditer(text):
        asked = re.sub(r"\s+", "", match.group()).lower()
        if asked in seen:
            continue
        seen.add(asked)
        reason = "the build asks for the CUDA toolkit; leave its CUDA part out on the target"
        sites.add(RULE, *match.span(), reason=reason)
    yield from sites.ordered()
