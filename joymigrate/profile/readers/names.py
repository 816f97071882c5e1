"""What names in traces mean: dtypes, call sites, and which events are operators."""

from __future__ import annotations

import re
from typing import Any

# C++ names of element types, as profilers write them.
DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "Half": "float16",
    "c10::BFloat16": "bfloat16", "BFloat16": "bfloat16", "long int": "int64", "long": "int64",
    "long long": "int64", "int64_t": "int64", "int": "int32", "short": "int16",
    "short int": "int16", "signed char": "int8", "char": "int8", "unsigned char": "uint8",
    "bool": "bool", "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    "c10::complex<c10::Half>": "complex32", "c10::qint8": "qint8", "c10::quint8": "quint8",
    "c10::qint32": "qint32", "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2", "unsigned short": "uint16", "unsigned int": "uint32",
    "unsigned long": "uint64", "c10::quint4x2": "quint4x2", "c10::quint2x4": "quint2x4",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu", "c10::Float4_e2m1fn_x2": "float4_e2m1fn_x2",
}  # fmt: skip
FRAME = re.compile(r"(?P<file>[^;(]+\.py|<[^>;]+>)\((?P<line>\d+)\): (?P<function>[^;]*)")
LIBRARY = re.compile(
    r"(^|/)joymigrate/(profile|rewrite|run|verify|cli)/|"
    r"(^|/)(site-packages|dist-packages|lib/python3[.\d]*|torch/(nn|autograd|optim|utils|_\w+|"
    r"distributed|cuda|profiler|testing|ao|amp|fx|export|library|func)|<built-in)(/|$|\.py)|"
    r"^<(?!ipython|stdin)|^(torch|importlib|threading|contextlib|runpy)(/|\.py)"
)
OPERATOR = re.compile(r"^(?!autograd::|torch::|torch\.)\w[\w.]*::\w")
KERNEL_NAME = re.compile(r"^triton_\w+")
# NCCL's kernel of an average as well as of PREMUL_SUM: the collective around it does not say which.
SCALED_SUM = "PreMulSum"


NO_TENSOR = frozenset(("", "Scalar", "ScalarList", "TensorList", "GenericList", "Device", "None"))


def dtype_of(name: str) -> str:
    """torch's name of an element type; empty for what is none (`Int`, `ScalarList`)."""
    if name in DTYPES:
        return DTYPES[name]
    if name.startswith("Tensor(") and name.endswith(")"):
        return dtype_of(name[7:-1])
    return ""


def dtype_of_tensor(name: str) -> str:
    """The same of an input with dimensions: a word that nobody knows is a dtype as well."""
    return dtype_of(name) or ("" if name in NO_TENSOR else name.rpartition("::")[2].lower())


def is_operator(name: str) -> bool:
    """Whether an event is an operator of some namespace, not autograd's or Python's bookkeeping.

    Kernels that a compiler generated (`triton_…`) count: somebody has to port them.
    """
    return bool(OPERATOR.match(name) or KERNEL_NAME.match(name))


def frame_place(frame: str) -> str:
    """`train.py:31` of a frame `train.py(31): step` in the user's code; empty for a library's."""
    match = FRAME.fullmatch(frame.strip())
    if match is None or LIBRARY.search(match["file"]):
        return ""
    return f"{match['file']}:{match['line']}"


def stack_place(stack: str) -> str:
    """The innermost line of the user's own code in a call stack (innermost first)."""
    for frame in stack.split(";"):
        if found := frame_place(frame):
            return found
    return ""


def freeze(value: Any) -> Any:
    """Lists as tuples, so that they can be keys."""
    return tuple(freeze(one) for one in value) if isinstance(value, list) else value
