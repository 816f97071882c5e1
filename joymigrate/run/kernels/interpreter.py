"""Triton on a machine without a GPU: its interpreter, which computes block by block in numpy.

Good for checking our kernels, never for using them. bfloat16 is wrong there without a word:
storing `load(x) * 1.0` differs by 1e38 (triton 3.9.0), so it is refused.
"""

from __future__ import annotations

import functools
import os
import sys

WORKS = ("float32", "float16")


def interpreter_reason(dtype: str) -> str | None:
    """Why Triton's interpreter is no use for this dtype here; None when it is."""
    if dtype == "bfloat16":
        return "Triton's interpreter computes bfloat16 wrongly; it needs a GPU"
    if dtype not in WORKS:
        return f"does not take {dtype}"
    return switched_on()


@functools.cache
def switched_on() -> str | None:
    """Switch the interpreter on before Triton is first imported; why that failed, or None."""
    import torch

    if torch.cuda.is_available():
        return None
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        return "triton was imported before its interpreter was on: set TRITON_INTERPRET=1"
    os.environ["TRITON_INTERPRET"] = "1"
    return None
