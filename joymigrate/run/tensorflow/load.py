"""TensorFlow beside torch in one process.

Both TensorFlow and Triton (which torch loads with its first optimiser) bring an LLVM of their own.
Loaded after TensorFlow, Triton's ends the process: "Option 'bitcode-mdindex-threshold' registered
more than once" (tensorflow-cpu 2.21.0, triton 3.x, seen 2026-11-22). Loaded before, both work.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys

from joymigrate.errors import JoyError

TRITON = "triton._C.libtriton"


def load_in_order() -> None:
    """Load Triton's LLVM, where there is one, before TensorFlow is loaded.

    Raises JoyError where TensorFlow came first: the process would be aborted later, without a word
    of Python.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if TRITON in sys.modules or importlib.util.find_spec("triton") is None:
        return
    if "tensorflow" in sys.modules:
        raise JoyError(
            "TensorFlow was imported before Triton: their two LLVMs would end this process as soon "
            "as torch makes an optimiser",
            help="import joymigrate.run.tensorflow.bridge (or triton) before tensorflow",
        )
    with contextlib.suppress(ImportError):
        importlib.import_module(TRITON)
