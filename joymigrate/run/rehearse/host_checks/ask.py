"""Questions to a built library of host checks, one process per kernel: a crash ends no run.

A question gives every argument of a kernel a value; tensors are shapes and dtypes without memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.rehearse.host_checks.declarations import Argument

# aclDataType by torch's name.
NUMBERS: Mapping[str, int] = {
    "float32": 0, "float16": 1, "int8": 2, "int32": 3, "uint8": 4, "int16": 6, "uint16": 7,
    "uint32": 8, "int64": 9, "uint64": 10, "float64": 11, "bool": 12, "complex64": 16,
    "complex128": 17, "bfloat16": 27,
}  # fmt: skip
PLAIN: Mapping[str, Any] = {
    "int64": ctypes.c_int64, "uint64": ctypes.c_uint64, "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32, "int8": ctypes.c_int8, "bool": ctypes.c_bool,
    "double": ctypes.c_double, "float": ctypes.c_float, "dtype": ctypes.c_int32,
    "text": ctypes.c_char_p,
}  # fmt: skip
SCALARS: Mapping[str, Any] = {"float32": ctypes.c_float, "int64": ctypes.c_int64}
ND = 2  # aclFormat
FORMATS = {3: 47, 4: 0, 5: 30}  # NCL, NCHW, NCDHW: what the package calls plain tensors
LONGEST_S = 0.5  # of the processor for one question; the process is ended after that
MEMORY = 1 << 12  # bytes behind every tensor; the host code reads none of them


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor as host code sees it: sizes and torch's name of the dtype."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the host code said: its status, its first message, the kernels it would launch.

    `status` is -1 where it crashed.
    """

    status: int
    text: str = ""
    kernels: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the parameters were taken: it succeeded, or went on to a kernel."""
        return self.status == 0 or (self.status > 0 and bool(self.kernels))

    @property
    def refused(self) -> bool:
        """Whether a parameter was refused before any kernel."""
        return self.status // 1000 == 161 and not self.kernels


Question = Sequence[Any]  # one value per argument: Form, a list of them, number, list, text, None
CRASHED = Answer(-1)


class CheckLibrary:
    """A library of host checks in this process."""

    def __init__(self, path: Path) -> None:
        try:
            self.library = ctypes.CDLL(str(path), mode=os.RTLD_LAZY | os.RTLD_DEEPBIND)
            for name in ("joy_host_error", "joy_host_kernels"):
                getattr(self.library, name).restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise JoyError(f"the host checks do not load: {error}", where=str(path)) from None
        for kind in ("Tensor", "Scalar", "TensorList", "ScalarList", "IntArray", "FloatArray",
                     "BoolArray"):  # fmt: skip
            maker = getattr(self.library, f"aclCreate{kind}", None)
            if maker is not None:
                maker.restype = ctypes.c_void_p
        # A function that is not there ends the question, as in a rehearsal.
        with contextlib.suppress(ValueError):
            ctypes.c_int.in_dll(self.library, "joy_host_asking").value = 1
        self.library.joy_host_clear()
        self.memory = ctypes.create_string_buffer(MEMORY)

    def choose(self, model: str) -> None:
        """Answer for this chip model from now on: 910B."""
        self.library.joy_host_model(model.encode())

    def has(self, kernel: str) -> bool:
        """Whether the library can be asked for a kernel."""
        return hasattr(self.library, f"{kernel}GetWorkspaceSize")

    def ask(self, kernel: str, arguments: Sequence[Argument], question: Question) -> Answer:
        """One question. The process may crash over it, and ends when it takes too long: see
        `ask_in_child`."""
        function = getattr(self.library, f"{kernel}GetWorkspaceSize")
        function.restype = ctypes.c_int
        size, executor = ctypes.c_uint64(), ctypes.c_void_p()
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        given = [self.value(a.kind, v) for a, v in zip(arguments, question, strict=True)]
        self.library.joy_host_clear()
        status = function(*given, ctypes.byref(size), ctypes.byref(executor))
        text = self.library.joy_host_error().decode(errors="replace").strip()
        kernels = tuple(self.library.joy_host_kernels().decode(errors="replace").split())
        return Answer(int(status), text.splitlines()[0] if text else "", kernels)

    def value(self, kind: str, value: Any) -> Any:
        """One argument as the host code takes it."""
        if kind in PLAIN:
            if kind == "text":
                return ctypes.c_char_p(str(value).encode())
            return PLAIN[kind](NUMBERS[value] if kind == "dtype" else value)
        if value is None:
            return ctypes.c_void_p(None)
        if kind == "tensor":
            return self.tensor(value)
        if kind == "scalar":
            number = SCALARS[value.dtype](1)
            return ctypes.c_void_p(
                self.library.aclCreateScalar(ctypes.byref(number), NUMBERS[value.dtype])
            )
        each: Mapping[str, Any] = {
            "ints": ctypes.c_int64,
            "floats": ctypes.c_float,
            "bools": ctypes.c_bool,
        }
        maker = {"ints": "IntArray", "floats": "FloatArray", "bools": "BoolArray",
                 "tensors": "TensorList", "scalars": "ScalarList"}[kind]  # fmt: skip
        if kind in each:
            items: Any = (each[kind] * max(len(value), 1))(*value)
        else:
            inner = [self.value(kind[:-1], one).value for one in value]
            items = (ctypes.c_void_p * max(len(value), 1))(*inner)
        made = getattr(self.library, f"aclCreate{maker}")(items, ctypes.c_uint64(len(value)))
        return ctypes.c_void_p(made)

    def tensor(self, form: Form) -> ctypes.c_void_p:
        """A contiguous tensor of this form; it has no memory of its own."""
        count = len(form.shape)
        strides = [1] * count
        for place in range(count - 2, -1, -1):
            strides[place] = strides[place + 1] * max(form.shape[place + 1], 1)
        sizes = (ctypes.c_int64 * max(count, 1))(*form.shape)
        made = self.library.aclCreateTensor(
            sizes, ctypes.c_uint64(count), ctypes.c_int(NUMBERS[form.dtype]),
            (ctypes.c_int64 * max(count, 1))(*strides), ctypes.c_int64(0),
            ctypes.c_int(FORMATS.get(count, ND)), sizes, ctypes.c_uint64(count),
            ctypes.byref(self.memory),
        )  # fmt: skip
        return ctypes.c_void_p(made)


def ask_in_child(work: Callable[[Callable[[Any], None]], Any]) -> tuple[list[Any], bool]:
    """Run `work` in a forked process. It is given a function that tells the parent something.

    Returns what was told, through JSON, and whether the process came to its end.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            silence()
            with os.fdopen(writer, "w", encoding="utf-8") as pipe:

                def tell(item: Any) -> None:
                    pipe.write(json.dumps(item) + "\n")
                    pipe.flush()

                work(tell)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8", errors="replace") as pipe:
        lines = [line for line in pipe if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    return [json.loads(line) for line in lines], status == 0


def silence() -> None:
    """The host code prints what it does, and may crash; nobody asked for that."""
    faulthandler.disable()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
