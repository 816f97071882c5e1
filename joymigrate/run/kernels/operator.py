"""The nouns of a kernel: an operator, its implementations, one call of it, and a case to check it.

An operator is one file of `ops/` that ends in an `OPERATOR`. All implementations of an operator
take the arguments of its reference, those that they name (`bind`), and return the same things;
nothing but numbers and speed differs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from joymigrate.run.kernels.samples import Samples

FLOATS = ("float32", "float16", "bfloat16")
WIDE = (*FLOATS, "float64")
REFERENCE = "reference"
CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of one call before it runs: enough to choose an implementation for it.

    `shape` are the sizes that decide about speed, as the operator's `describe` names them;
    `variant` tells calls of different kinds apart (`causal`, `interleaved`). `grad`: a gradient is
    wanted. `chip` is a chip's name or `cpu`, `device` the torch device type.
    """

    chip: str
    device: str
    dtype: str
    shape: tuple[int, ...]
    variant: str = ""
    grad: bool = False


Predicate = Callable[[Call], "str | None"]


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute an operator.

    `function` is a callable, or `module:function`, imported when first used. `devices` are torch
    device types (`*` is any). Of two that can run, the one of higher `priority` is taken; a
    negative one (less than the reference's 0) only on request or when it won in tuning.
    `backward`: gradients reach the inputs. `when` gives the reason why a call is not for it;
    `pays` the reason why it can run and would lose, which a request or a measurement overrules.
    `interpreted`: written in Triton, which runs on a CPU in its interpreter, for checks only.
    """

    name: str
    function: Callable[..., Any] | str
    priority: int = 10
    devices: tuple[str, ...] = ("*",)
    dtypes: tuple[str, ...] = FLOATS
    backward: bool = True
    packages: tuple[str, ...] = ()
    when: Predicate | str | None = None
    pays: Predicate | None = None
    interpreted: bool = False
    calls: str = ""  # the library's operator behind it
    source: str = ""
    chip: str | None = None  # None: not tied to one
    note: str = ""


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """Arguments to check an operator with. Floating tensors are float64 on the CPU; the check
    casts and moves them. `grad` are the positions of arguments that get gradients."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    grad: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Float32:
    """A tensor of a case that stays float32 whatever dtype is checked: a scale, a running sum."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class OperatorTolerance:
    """Largest error by dtype. The error of a tensor is max|got - want| / max|want| against float64
    results of the same rounded inputs, so it does not depend on the tensor's scale."""

    float32: float
    float16: float
    bfloat16: float
    float64: float = 1e-12

    def of(self, dtype: str) -> float:
        """The limit for a dtype name."""
        return float(getattr(self, dtype))


# One rounding of a result costs 2^-11 (float16) or 2^-8 (bfloat16) of its size at most.
POINTWISE = OperatorTolerance(2e-6, 2e-3, 1.6e-2)  # four roundings in a row
REDUCED = OperatorTolerance(1e-5, 2e-3, 1.6e-2)  # sums over a few thousand terms, kept in float32


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator: its formula, a reference in plain torch, and what else computes it.

    `describe` names the deciding tensor, the deciding sizes and the variant of a
    call. `cases` yields what the check runs; `grid` what the benchmark runs, as (label, builder of
    arguments). With `mutates`, the reference changes its arguments and returns them. `exact`: what
    its implementations say of a call may hang on exact sizes; without, calls whose sizes are equal
    when rounded up to powers of two share a choice, which saves choosing for sizes that vary.
    """

    name: str
    signature: str
    formula: str
    reference: Callable[..., Any]
    describe: Callable[..., tuple[Tensor, tuple[int, ...], str]]
    cases: Callable[[Samples], Iterator[OperatorCase]]
    implementations: tuple[Implementation, ...] = ()
    tolerance: OperatorTolerance = REDUCED
    grid: Callable[[Samples], Iterator[tuple[str, Callable[[], OperatorCase]]]] | None = None
    mutates: bool = False
    dtypes: tuple[str, ...] = FLOATS
    differentiable: bool = True
    bytes_moved: Callable[..., int] | None = None  # of one forward call, for % of peak bandwidth
    flops: Callable[..., int] | None = None  # of one forward call, for % of peak FLOP/s
    exact: bool = True

    def __post_init__(self) -> None:
        for name in ("describe", "bytes_moved", "flops"):
            if (function := getattr(self, name)) is not None:
                object.__setattr__(self, name, bind(self.reference, function))


def bind(reference: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, called as `reference` is: it is handed what it names of the arguments.

    The reference alone has the signature with its defaults. A function with names that it does not
    know, or with `*` and `**`, is called as it is.
    """
    try:
        own = inspect.signature(function).parameters
    except ValueError:  # a builtin
        return function
    signature = inspect.signature(reference)
    known = signature.parameters
    many = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    forms = [[(p.name, p.kind, p.default) for p in one.values()] for one in (own, known)]
    if forms[0] == forms[1] or own.keys() - known.keys() or many & {p.kind for p in own.values()}:
        return function
    names, wanted, wanted_names = tuple(known), tuple(own), set(own)
    defaults = {n: p.default for n, p in known.items() if p.default is not inspect.Parameter.empty}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(names) or kwargs.keys() - known.keys():
            signature.bind(*args, **kwargs)  # a TypeError in Python's own words
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        if lacking := wanted_names - given.keys():
            raise TypeError(f"missing a required argument: {', '.join(sorted(lacking))}")
        return function(**{name: given[name] for name in wanted})

    del called.__wrapped__  # what is bound has the reference's signature
    return called


def dtype_name(dtype: torch.dtype | str) -> str:
    """`float32` for `torch.float32` or `"torch.float32"`."""
    return str(dtype).removeprefix("torch.")


def rows_of(x: Tensor) -> int:
    """Number of vectors along the last axis."""
    size = x.shape[-1] if x.dim() else 1
    return x.numel() // size if size else 0
