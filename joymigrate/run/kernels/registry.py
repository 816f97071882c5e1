"""The registry: finds operators by file, and gives each one a handle that chooses and calls.

    from joymigrate.run import kernels

    rms_norm = kernels.op("rms_norm")
    y = rms_norm(x, weight, eps=1e-6)                       # the best implementation for this call
    choice = rms_norm.choose(chip="cpu", dtype="bfloat16", shape=(4096, 2048))
    choice.implementation, choice.reason                    # 'torch', 'highest priority …'
    y = choice(x, weight, eps=1e-6)                         # bound: no further choosing

A new operator is one file in `ops/`; a vendor's implementation is one item in the chip's
`kernels.yaml` (see `vendors.py`). Names of implementations: `reference` (plain torch), `torch`
(what torch has fused), `triton` (our own), `liger`, `vendor` (the chip's library).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.kernels import chipnames, ops, tuning_results, vendors
from joymigrate.run.kernels.operator import REFERENCE, Call, Implementation, Operator, dtype_name
from joymigrate.run.kernels.select import KernelChoice, select

if TYPE_CHECKING:
    import torch

    from joymigrate.chips import Chip

REMEMBERED = 4096  # choices kept per operator; exact shapes vary without end in serving
REQUESTS: ContextVar[Mapping[str, str] | None] = ContextVar("kernel_requests", default=None)


class Kernel:
    """One operator with everything that computes it. Get it with `kernels.op(name)`."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.name = operator.name
        self._chosen: dict[tuple[Any, ...], KernelChoice] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<kernel {self.operator.signature}>"

    @functools.cached_property
    def implementations(self) -> tuple[Implementation, ...]:
        """Every implementation known, the reference first, vendors' last."""
        reference = Implementation(
            REFERENCE, self.operator.reference, 0, dtypes=(*self.operator.dtypes, "float64")
        )
        return (reference, *self.operator.implementations, *vendors.implementations(self.name))

    def names(self) -> list[str]:
        """Names of the implementations, each once."""
        return list(dict.fromkeys(item.name for item in self.implementations))

    def choose(
        self,
        chip: str | Chip | None = None,
        dtype: torch.dtype | str = "float32",
        shape: tuple[int, ...] = (),
        device: str | torch.device | None = None,
        request: str | None = None,
        variant: str = "",
        grad: bool = False,
    ) -> KernelChoice:
        """The implementation for such calls, with the reason.

        `chip` is a chip's name or object, or `cpu`; without it the chip of `device`, without that
        too the CPU. An explicit `request` (here, by `kernels.requested`, or in JOYMIGRATE_KERNELS)
        that cannot run raises `JoyError`; anything else ends at the reference at worst.
        """
        names = chipnames.resolve(chip, device)
        call = Call(*names, dtype_name(dtype), tuple(shape), variant, grad)
        return self.choose_for(call, request)

    def choose_for(self, call: Call, request: str | None = None) -> KernelChoice:
        """As `choose`, for a described call."""
        wanted = request or requests().get(self.name)
        if wanted is not None and wanted not in self.names():
            near = did_you_mean(wanted, self.names())
            raise JoyError(
                f"{self.name} has no implementation '{wanted}'.{near}",
                help=f"one of {', '.join(self.names())}: joymigrate kernels list --op {self.name}",
            )
        key = (call, wanted)
        found = self._chosen.get(key)
        if found is None:
            found = select(self.operator, self.implementations, call, wanted)
            with self._lock:
                if len(self._chosen) >= REMEMBERED:
                    self._chosen.clear()
                self._chosen[key] = found
        return found

    def call_of(self, *args: Any, **kwargs: Any) -> Call:
        """The description of a call with these arguments."""
        tensor, shape, variant = self.operator.describe(*args, **kwargs)
        device = tensor.device.type
        grad = wants_grad(args)
        if not self.operator.exact:
            shape = tuning_results.bucket(shape)
        return Call(
            chipnames.of_device(device), device, dtype_name(tensor.dtype), shape, variant, grad
        )

    def __call__(self, *args: Any, request: str | None = None, **kwargs: Any) -> Any:
        """Choose for these arguments, and compute."""
        return self.choose_for(self.call_of(*args, **kwargs), request).function(*args, **kwargs)

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """The definition of the operator in plain torch."""
        return self.operator.reference(*args, **kwargs)

    def forget(self) -> None:
        """Choose anew from now on (the tuned cache changed)."""
        with self._lock:
            self._chosen.clear()


def wants_grad(args: tuple[Any, ...]) -> bool:
    """Whether autograd will record a call with these arguments."""
    import torch

    if not torch.is_grad_enabled():
        return False
    return any(isinstance(item, torch.Tensor) and item.requires_grad for item in args)


@functools.cache
def operators() -> dict[str, Kernel]:
    """Every operator by name, from the files of `ops/`."""
    found = {}
    for module in sorted(pkgutil.iter_modules(ops.__path__), key=lambda item: item.name):
        if module.name.startswith("_"):
            continue
        declared = importlib.import_module(f"{ops.__name__}.{module.name}")
        for operator in getattr(declared, "OPERATORS", None) or (declared.OPERATOR,):
            found[operator.name] = Kernel(operator)
    return found


def op(name: str) -> Kernel:
    """The operator called `name`; an unknown one raises `JoyError` with the nearest name."""
    found = operators().get(name)
    if found is None:
        raise JoyError(
            f"there is no operator '{name}'.{did_you_mean(name, operators())}",
            help="joymigrate kernels list",
        )
    return found


def requests() -> Mapping[str, str]:
    """What the user asked for: `kernels.requested`, else JOYMIGRATE_KERNELS."""
    asked = REQUESTS.get()
    return asked if asked is not None else from_environment()


@functools.cache
def parse_request(text: str) -> dict[str, str]:
    """`rms_norm=torch,attention=vendor` as a mapping."""
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, sign, wanted = item.partition("=")
        if not sign or not name or not wanted:
            raise JoyError(
                f"'{item}' does not say operator=implementation",
                where="JOYMIGRATE_KERNELS",
                help="for example JOYMIGRATE_KERNELS=rms_norm=torch,attention=vendor",
            )
        op(name.strip())
        found[name.strip()] = wanted.strip()
    return found


def from_environment() -> dict[str, str]:
    """Requests in JOYMIGRATE_KERNELS."""
    import os

    text = os.environ.get("JOYMIGRATE_KERNELS", "")
    return parse_request(text) if text else {}


@contextmanager
def requested(**wanted: str) -> Iterator[None]:
    """`with kernels.requested(rms_norm="torch"):` asks for implementations in this block."""
    for name in wanted:
        op(name)
    token = REQUESTS.set({**requests(), **wanted})
    try:
        yield
    finally:
        REQUESTS.reset(token)


def forget_choices() -> None:
    """Make every operator choose anew."""
    for kernel in operators().values():
        kernel.forget()
