"""Teacher-forced passes around a call of the program: what the baseline stores of them, and what
the target is told by them.

The program is left undisturbed: passes run on copies, before the call itself, and the states of
all random generators are put back.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from joymigrate.language import Text
from joymigrate.verify import layout, pytree
from joymigrate.verify.cast_weights import Lender
from joymigrate.verify.cloning import cast_type
from joymigrate.verify.cut import Cut
from joymigrate.verify.float64_mode import Float64Mode
from joymigrate.verify.measure import relative_error
from joymigrate.verify.mixed_precision import held_off
from joymigrate.verify.module_replay import GRADIENT, OUTPUT, CutValue, Key, ModuleReplay
from joymigrate.verify.noise import Noise
from joymigrate.verify.tensor_store import TensorStore

# Relative change of what is fed, to see how far rounding alone is carried: half a unit in the last
# place of each type.
ROUNDING = {torch.float64: 2.0**-24, torch.float32: 2.0**-24, torch.float16: 2.0**-12}
BFLOAT = 2.0**-9
WEIGHTS = 0.75  # of the budget, for gradients of weights
KEPT_AS = {torch.float64: torch.float32, torch.complex128: torch.complex64}


@dataclass(slots=True)
class Float64Reference:
    """What the baseline's float64 pass made: rows by place, tensors by content."""

    rows: dict[Key, Cut] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    draws: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    trace: dict[str, Any] = field(default_factory=dict)  # path#call → calls of torch
    lines: dict[str, str] = field(default_factory=dict)  # path → where it is called
    notes: list[Any] = field(default_factory=list)
    native: bool = False  # whether a pass in another dtype than float32 was made
    mixed: list[str] = field(default_factory=list)  # modules that enter autocast by themselves
    bytes: int = 0
    leaves: dict[tuple[str, int], set[str]] = field(default_factory=dict)  # of results, when asked

    def value(self, key: Key) -> torch.Tensor | None:
        """The tensor at a place."""
        row = self.rows.get(key)
        return self.tensors.get(row.content) if row is not None and row.content else None

    def holds(self, key: Key) -> bool:
        """Whether there is a tensor to compare with at a place."""
        row = self.rows.get(key)
        return row is not None and row.content is not None and row.content in self.tensors

    def knows(self, path: str, call: int) -> bool:
        """Whether this call took place."""
        return call <= self.calls.get(path, -1)

    def returned(self, path: str, call: int) -> set[str]:
        """The leaves of numbers with a fraction that this call returned."""
        if not self.leaves:
            for (place, number, kind, leaf), row in self.rows.items():
                if kind == OUTPUT and "float" in row.dtype:
                    self.leaves.setdefault((place, number), set()).add(leaf)
        return self.leaves.get((path, call), set())


def content_of(tensor: torch.Tensor) -> str:
    """A hash of values, dtype and shape."""
    made = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    made.update(raw_bytes(tensor))
    return made.hexdigest()[:32]


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes, row by row; on the host and in one piece they are not copied."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


@contextlib.contextmanager
def keep_generators() -> Iterator[None]:
    """Put the states of the random generators back afterwards."""
    host, own, arrays = torch.get_rng_state(), random.getstate(), np.random.get_state()
    devices = [(d, d.get_rng_state()) for d in accelerators()]
    try:
        yield
    finally:
        torch.set_rng_state(host)
        random.setstate(own)
        np.random.set_state(arrays)
        for module, state in devices:
            module.set_rng_state(state)


def accelerators() -> list[Any]:
    """Modules of the accelerators that this process uses already."""
    found = []
    for name in dict.fromkeys(("cuda", torch._C._get_privateuse1_backend_name())):
        module = getattr(torch, name, None)
        ready = getattr(module, "is_initialized", None)
        if ready is not None and ready():
            found.append(module)
    return found


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """No mixed precision and no shortened matrix products."""
    devices = ["cpu", *(m.__name__.split(".")[-1] for m in accelerators())]
    switches = [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    for module in accelerators():
        switches += [
            (getattr(module, part), "allow_hf32")
            for part in ("matmul", "conv")
            if hasattr(getattr(module, part, None), "allow_hf32")
        ]
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        before = []
        for owner, name in switches:
            with contextlib.suppress(RuntimeError, AttributeError):
                before.append((owner, name, getattr(owner, name)))
                switch(owner, name, False)
        try:
            yield
        finally:
            for owner, name, value in before:
                switch(owner, name, value)


def switch(owner: Any, name: str, value: bool) -> None:
    """Set a flag of `torch.backends`, also where the program has frozen them (`torch.testing`)."""
    with torch.backends.__allow_nonbracketed_mutation():
        setattr(owner, name, value)


@contextlib.contextmanager
def default_of(dtype: torch.dtype | None) -> Iterator[None]:
    """In a float64 pass, constants that the program makes without a dtype are float64 as well, and
    so is what it asks for in float32."""
    before = torch.get_default_dtype()
    if dtype is not torch.float64 or before is not torch.float32:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        with Float64Mode():
            yield
    finally:
        torch.set_default_dtype(before)


def arguments_in(
    args: Any, kwargs: Any, dtype: torch.dtype | None, device: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments as copies in a dtype on a device."""

    def change(path: str, tensor: torch.Tensor) -> torch.Tensor:
        return layout.copy_as(tensor, cast_type(tensor, dtype), device)

    made = pytree.replace_tensors(tuple(args), change, objects=True)
    return tuple(made), dict(pytree.replace_tensors(dict(kwargs), change, objects=True))


def name_modules(root: nn.Module, prefix: str) -> dict[int, str]:
    """Paths of the modules below a copy."""
    from joymigrate.verify.module_names import plain

    made: dict[int, str] = {}
    for path, member in root.named_modules():
        made.setdefault(id(member), ".".join(p for p in (prefix, plain(path)) if p))
    return made


def never(path: str) -> bool:
    """Skip nothing."""
    return False


def always(key: Key) -> bool:
    """Need all."""
    return True


def leaves_inference(method: Callable[..., ModuleReplay]) -> Callable[..., ModuleReplay]:
    """Inference mode is off in a method: its tensors don't count how often they are written."""

    @functools.wraps(method)
    def work(*args: Any, **kwargs: Any) -> ModuleReplay:
        if not torch.is_inference_mode_enabled():
            return method(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return method(*args, **kwargs)

    return work


@dataclass(slots=True)
class IsolatedPass:
    """One call of a module that is replayed: its arguments and how to run passes over copies."""

    module: nn.Module
    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    hold: Callable[[Any], None]  # tells the recorder which pass gets module calls
    values: Mapping[str, torch.Tensor] | None = None  # the baseline's weights, in the target
    rename: Callable[[str], str] = str
    skip: Callable[[str], bool] = never
    mixed: set[str] | None = None  # modules whose own autocast is held off; None: that of all
    gathered: frozenset[str] = frozenset()  # weights of several processes, brought together
    entered: set[str] = field(default_factory=set)  # modules that entered autocast in our passes

    @leaves_inference
    def run(
        self,
        report: Callable[[CutValue], None],
        dtype: torch.dtype | None,
        *,
        device: Any = None,
        reference: Any = None,
        noise: float = 0.0,
        gradients: bool = True,
        needs: Callable[[Key], bool] = always,
        trace: bool = False,
    ) -> ModuleReplay:
        """One pass; `dtype` None is the program's own, with its autocast. `needs` tells of which
        weights the gradients are computed; `trace` notes the calls of torch."""
        lender = Lender(dtype, device)
        copied = lender.clone(self.module, self.values)
        names = {key: self.rename(path) for key, path in name_modules(copied, self.path).items()}
        args, kwargs = arguments_in(self.args, self.kwargs, dtype, device)
        made = ModuleReplay(
            names,
            report,
            lender,
            reference=reference,
            gradients=gradients,
            needs=needs,
            noise=noise,
            skip=self.skip,
            wide=dtype is torch.float64,
            trace=trace,
        )

        def holds() -> bool:
            within = made.open_modules()
            self.entered.update(within[-1:])
            return self.mixed is None or not self.mixed.isdisjoint(within)

        precise = exactly() if dtype is not None else contextlib.nullcontext()
        single = held_off(holds) if dtype is not None else contextlib.nullcontext()
        given = pytree.put_back((self.args, self.kwargs))
        with given, keep_generators(), precise, single, default_of(dtype):
            self.hold(made)
            try:
                made.run(copied, args, kwargs)
            finally:
                self.hold(None)
        return made

    def is_native_float32(self) -> bool:
        """Whether the program computes this call in float32 throughout."""
        for device in ("cpu", *(m.__name__.split(".")[-1] for m in accelerators())):
            if torch.is_autocast_enabled(device):
                return False
        values = [p.dtype for p in self.module.parameters() if p.is_floating_point()]
        given = pytree.tensors((self.args, dict(self.kwargs)))
        values += [t.dtype for _, t in given if t.is_floating_point()]
        return all(dtype == torch.float32 for dtype in values)


# Type, place, and whether autocast that a module enters by itself is held off: code that casts its
# values by hand beside it may not run without.
ATTEMPTS = (
    (torch.float64, "cpu", True),
    (torch.float64, None, True),
    (torch.float32, None, True),
    (torch.float32, None, False),
)


def make_reference(isolated: IsolatedPass, budget: int, tensors: TensorStore) -> Float64Reference:
    """The baseline's side: the float64 pass and the baseline's own errors against it. The tensors
    of the reference go to `tensors`, up to `budget` bytes. Raises OSError.

    Where float64 on the CPU does not work, float32 where the program runs takes its place, and the
    notes say so.
    """
    notes: list[Any] = []
    tensors.write()
    before = tensors.files
    for dtype, device, held in ATTEMPTS:
        if held or isolated.entered:
            isolated.mixed = None if held else set()
            reference = Float64Reference(tensors=tensors, notes=[*notes])
            try:
                attempt_reference(isolated, reference, tensors, budget, dtype, device)
                return reference
            except OSError:
                raise
            except Exception as error:  # the program's own code in a dtype it wasn't made for
                what = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
                where = device or "the device"
                text = "no golden in {dtype} on {device}: {what}"
                notes.append(Text(text, dtype=dtype, device=where, what=what))
                tensors.back_to(before)
    return Float64Reference(notes=notes)


def attempt_reference(
    isolated: IsolatedPass,
    reference: Float64Reference,
    tensors: TensorStore,
    budget: int,
    dtype: torch.dtype,
    device: Any,
) -> None:
    """One attempt; raises what the program's own code raises."""

    def report(found: CutValue) -> None:
        store(reference, tensors, found, budget)

    made = isolated.run(report, dtype, device=device, trace=True)
    reference.trace = made.trace.calls if made.trace is not None else {}
    reference.lines = made.lines
    reference.mixed = sorted(isolated.entered) if isolated.mixed is None else []
    reference.calls = dict(made.calls)
    reference.scalars = {f"{p}#{c}": v for (p, c), v in made.scalars.items()}
    reference.draws = dict(made.draws.log)
    reference.notes += [
        Text("{module}: no gradients ({why})", module=p, why=why)
        for p, why in made.failures.items()
    ]
    own_errors(isolated, reference)


def own_errors(isolated: IsolatedPass, reference: Float64Reference) -> None:
    """How far the baseline itself is from the reference, as it is and with its inputs shaken."""

    def measure(name: str) -> Callable[[CutValue], None]:
        def report(found: CutValue) -> None:
            row = reference.rows.get(found.key)
            value = reference.value(found.key)
            if row is not None and value is not None and found.tensor is not None:
                error = relative_error(found.tensor, value)
                setattr(row, name, max(getattr(row, name), error))

        return report

    def run_all(name: str, dtype: torch.dtype | None, noise: float) -> None:
        report, held = measure(name), reference.holds
        for shaken in (0.0, noise):
            isolated.run(report, dtype, reference=reference, noise=shaken, needs=held)
        # Constants made inside of a module are not shaken with its inputs: sin(t · f) carries the
        # rounding of f times t. One unit in the last place of every result shows that.
        for seed in (11, 12):
            with Noise(1.0, seed):
                isolated.run(report, dtype, reference=reference, needs=held)

    run_all("error32", torch.float32, ROUNDING[torch.float32])
    if isolated.is_native_float32() and not reference.mixed:
        return
    reference.native = True
    with contextlib.suppress(RuntimeError):
        run_all("error", None, BFLOAT)


def store(reference: Float64Reference, tensors: TensorStore, found: CutValue, budget: int) -> None:
    """Keep one value of the reference, rounded to float32, while it fits."""
    if found.tensor is None:
        place = (*found.key, found.owner, found.owner_call, found.order)
        reference.rows[found.key] = Cut(*place, "none", [], missing=True)
        return
    value = found.tensor.detach()
    dtype = str(value.dtype).removeprefix("torch.")
    norm = 0.0
    if value.numel():
        plain = value if value.is_floating_point() or value.is_complex() else value.double()
        wide = torch.complex128 if value.is_complex() else torch.float64
        norm = float(torch.linalg.vector_norm(plain, dtype=wide).real)
    place = (*found.key, found.owner, found.owner_call, found.order)
    row = reference.rows[found.key] = Cut(*place, dtype, list(value.shape), norm=norm)
    kept_as = KEPT_AS.get(value.dtype, value.dtype)
    size = value.numel() * kept_as.itemsize
    # Gradients of weights are as large as the program: they leave room for all that is small.
    weight = found.key[2] == GRADIENT and found.key[3].startswith("param.")
    full = reference.bytes + size > (budget * WEIGHTS if weight else budget)
    if full and weight:  # it is nowhere else: no need to copy and to hash it
        return
    value = value.to("cpu", kept_as, copy=True)
    content = content_of(value)
    if content not in tensors:
        if full:
            return
        reference.bytes += size
        tensors.add(content, value)
    row.content = content
