"""Triton kernels of a rehearsed program: computed block by block by Triton's own interpreter.

On the chip triton-ascend compiles them. It does not run here: that a kernel ran says that its
arithmetic stands, and nothing about what that compiler takes, or about on-chip memory; the report
counts such kernels by themselves. Triton sees one active driver, named as triton-ascend's is, and
its extension `triton.language.extra.cann` where an operator of it is known here.

The interpreter computes bfloat16 on its bits (triton 3.9.0: x * 1.0 differs by 1e37) and cuts bits
off where the hardware rounds. So it is computed in float32 here and rounded to nearest after every
operation; where that can't be done (reductions and scans of bfloat16) the kernel is refused.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from joymigrate import attach
from joymigrate.run.rehearse.callsite import call_site
from joymigrate.run.rehearse.record import RehearsalRecord

WHO = "triton"
NAME = "ascend"  # of triton-ascend's backend
# A core of the models that are sold most (910B, 910_93): 24 cubes with two vector units each;
# triton-ascend counts so as well (third_party/ascend/backend/driver.py, get_device_properties).
CUBES = 24
EXPERIMENTAL = "triton.experimental"
_record: list[RehearsalRecord] = []


def start() -> None:
    """Wait for Triton in this process, and turn its interpreter on unless the user chose."""
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if not attach.waits(WHO):
        attach.after_import("triton", prepare, who=WHO)


def keep(record: RehearsalRecord) -> None:
    """Where launches are counted, from now on."""
    _record[:] = [record]


def prepare() -> None:
    """Called after Triton's import. A release whose inside is another is left as it is, and its
    kernels are compiled, which fails here: the program may never launch one."""
    try:
        change_interpreter()
    except (ImportError, AttributeError) as error:
        os.environ["TRITON_INTERPRET"] = "0"
        said = f"rehearsal: kernels of this release of Triton can't be computed here ({error})"
        print(said, file=sys.stderr)


def change_interpreter() -> None:
    """Stand in for the driver, mend bfloat16, and count launches."""
    from triton.backends import Backend, backends
    from triton.runtime import interpreter, jit

    mend_casts(interpreter.InterpreterBuilder)
    for name in ("binary_op", "unary_op", "ternary_op", "create_dot", "create_fma"):
        mend(interpreter.InterpreterBuilder, name)
    for kind in (interpreter.ReduceOps, interpreter.ScanOps):
        refuse_bfloat16(kind)
    allow_any_size()
    extend()
    resolve_helpers(jit.mangle_type)
    run = interpreter.GridExecutor.__call__

    @functools.wraps(run)
    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("warmup", False):
            return None  # nothing is computed
        for record in _record:
            record.triton[f"{self.fn.__module__}.{self.fn.__name__}"] += 1
        # Before 3.4 the interpreter stumbles over options of an autotuner that it does not list.
        own = {name: value for name, value in kwargs.items() if name in self.arg_names}
        return run(self, *args, **own)

    interpreter.GridExecutor.__call__ = launch
    compiler = backends[next(iter(backends))].compiler
    for name, other in backends.items():  # a GPU of this machine takes no part
        backends[name] = Backend(compiler=other.compiler, driver=AbsentDriver)
    backends[NAME] = Backend(compiler=compiler, driver=Driver)


def resolve_helpers(mangle_type: Callable[[object], str]) -> None:
    """Let Triton import what it needs for arguments now, from itself: vLLM's plug-in puts a
    stand-in over `triton.experimental.gluon`, which triton-ascend lacks."""
    put = {name: sys.modules[name] for name in sys.modules if name.startswith(EXPERIMENTAL)}
    for name in put:
        del sys.modules[name]
    mangle_type(1)
    sys.modules |= put


class Utils:
    """What programs ask the driver's helpers."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Units of a core, as triton-ascend names them."""
        return {"max_shared_mem": 1, "num_aicore": CUBES, "num_vectorcore": 2 * CUBES}


class AbsentDriver:
    """The driver of a device that a rehearsal does not have."""

    @classmethod
    def is_active(cls) -> bool:
        return False


class Driver:
    """One active driver, for programs that ask Triton whether there is a device."""

    utils = Utils()

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("npu", "Ascend", 0)

    def get_current_device(self) -> int:
        return int(self.get_device_interface().current_device())

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("npu", self.get_current_device())

    def get_device_interface(self) -> Any:
        import torch

        return torch.get_device_module("npu")

    def get_empty_cache_for_benchmark(self) -> Any:
        """What `do_bench` clears between two runs; nothing is cached here."""
        import torch

        return torch.empty(1, dtype=torch.int32, device="npu")

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        """Tuning takes the first configuration: times of an interpreter would say nothing."""
        return lambda call, quantiles=(0.5, 0.2, 0.8), **_: [0.0] * len(quantiles)


def mend_casts(builder: type) -> None:
    """Casts from bfloat16 by way of float32; casts to it round to nearest, ties to even."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    cast = builder.cast_impl  # type: ignore[attr-defined]

    @functools.wraps(cast)
    def rightly(self: Any, source: Any, target: Any) -> Any:
        if is_bfloat16(source):
            source = TensorHandle(wide(source.data), tl.float32)
        if target.scalar != tl.bfloat16 or source.data.dtype.kind not in "fiub":
            return cast(self, source, target)
        return TensorHandle(narrow(source.data.astype("float32")), tl.bfloat16)

    builder.cast_impl = rightly  # type: ignore[attr-defined]
    if not hasattr(builder, "get_bf16"):  # releases before 3.9 know no constant of bfloat16
        import numpy

        builder.get_bf16 = lambda _, value: TensorHandle(  # type: ignore[attr-defined]
            narrow(numpy.array([value], "float32")), tl.bfloat16
        )


def wide(bits: Any) -> Any:
    """float32 of bfloat16's bits."""
    return (bits.astype("uint32") << 16).view("float32")


def narrow(values: Any) -> Any:
    """The bits of the bfloat16 that is nearest to a float32."""
    import numpy

    bits = numpy.ascontiguousarray(values).view("uint32").reshape(values.shape)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return numpy.where(numpy.isnan(values), 0x7FC0, rounded).astype("uint16")


def mend(builder: type, name: str) -> None:
    """Let one method of the interpreter compute bfloat16 in float32."""
    from triton import language as tl

    compute = getattr(builder, name)

    @functools.wraps(compute)
    def rightly(self: Any, *args: Any) -> Any:
        if not any(is_bfloat16(one) for one in args):
            return compute(self, *args)
        result = compute(
            self, *(self.cast_impl(one, tl.float32) if is_bfloat16(one) else one for one in args)
        )
        floats = result.data.dtype.kind == "f" and name != "create_dot"
        return self.cast_impl(result, tl.bfloat16) if floats else result

    setattr(builder, name, rightly)


def is_bfloat16(handle: Any) -> bool:
    """Whether an argument of the interpreter is a block of bfloat16, which it keeps as bits."""
    scalar = getattr(getattr(handle, "dtype", None), "scalar", None)
    return scalar is not None and str(scalar) == "bf16" and handle.data.dtype.kind == "u"


def refuse_bfloat16(kind: type) -> None:
    """Reductions compare and add what they are given: bits, for bfloat16."""
    compute = kind.apply_impl  # type: ignore[attr-defined]

    @functools.wraps(compute)
    def checked(self: Any, given: Any) -> Any:
        if any(is_bfloat16(one.handle) for one in given):
            raise NotImplementedError(
                "rehearsal device: Triton's interpreter reduces bfloat16 by its bits; this says "
                f"nothing about the chip ({call_site()})"
            )
        return compute(self, given)

    kind.apply_impl = checked  # type: ignore[attr-defined]


def allow_any_size() -> None:
    """Blocks of any size: triton-ascend asks for powers of 2 only in its SIMT mode (`arange` of
    python/triton/language/semantic.py), and its kernels use others. Before 3.4 Triton has no place
    to say so: there the interpreter refuses them."""
    try:
        from triton import _utils
        from triton.language.semantic import TritonSemantic
    except ImportError:
        return

    strict = TritonSemantic.arange

    @functools.wraps(strict)
    def arange(self: Any, start: int, end: int, *, ret_ty: Any = None) -> Any:
        from triton import language as tl

        if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start < end < 2**31:
            return strict(self, start, end, ret_ty=ret_ty)  # says what is wrong
        kind = ret_ty or tl.block_type(tl.int32, [end - start])
        return self.tensor(self.builder.create_make_range(kind, start, end), kind)

    TritonSemantic.arange = arange
    _utils.is_power_of_two = lambda size: size > 0


def extend() -> None:
    """`triton.language.extra.cann`, where the installed Triton has none: slices of blocks.

    Source: triton-ascend third_party/ascend/language/cann/extension/vec_ops.py.
    """
    from triton.language import extra
    from triton.language.extra import libdevice

    if hasattr(extra, "cann"):
        return
    package, extension = (
        ModuleType(f"{extra.__name__}.{name}") for name in ("cann", "cann.extension")
    )
    for operator in (extract_slice, insert_slice, get_element):
        setattr(extension, operator.__name__, operator)
    package.extension = extension  # type: ignore[attr-defined]
    package.libdevice = libdevice  # type: ignore[attr-defined]
    extra.cann = package
    sys.modules |= {one.__name__: one for one in (package, extension)}
    sys.modules[f"{package.__name__}.libdevice"] = libdevice


def number(value: Any) -> int:
    """An offset: a number, a constant, or a scalar of the interpreter."""
    if hasattr(value, "handle"):
        return int(value.handle.data.item())
    return int(getattr(value, "value", value))


def window(offsets: Any, sizes: Any, strides: Any) -> tuple[slice, ...]:
    """The part of a block that begins at `offsets`, `sizes` wide, every `strides`-th element."""
    places = zip(offsets, sizes, strides, strict=True)
    return tuple(
        slice(number(o), number(o) + (number(n) - 1) * number(s) + 1, number(s))
        for o, n, s in places
    )


def block(like: Any, data: Any) -> Any:
    """A block of the interpreter with this content."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    scalar = like.type.scalar
    kind = tl.block_type(scalar, list(data.shape)) if data.ndim else scalar
    return tl.tensor(TensorHandle(data.copy(), scalar), kind)


def extract_slice(ful: Any, offsets: Any, sizes: Any, strides: Any) -> Any:
    """Part of a block."""
    return block(ful, ful.handle.data[window(offsets, sizes, strides)])


def insert_slice(ful: Any, sub: Any, offsets: Any, sizes: Any, strides: Any) -> Any:
    """The block with `sub` in the place of one part."""
    made = ful.handle.data.copy()
    made[window(offsets, sizes, strides)] = sub.handle.data
    return block(ful, made)


def get_element(src: Any, indice: Any) -> Any:
    """One element."""
    return block(src, src.handle.data[tuple(number(one) for one in indice)].reshape(()))
