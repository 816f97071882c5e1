"""Causes by experiment: the wrong module runs again with a candidate in place of what it does.

A candidate explains a fault when it removes at least 90 % of the error, and more of an error of few
numbers, which chance explains as well (`chance.py`). What removes less is no cause: none is named
then, nor where two causes explain the same error.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from joymigrate.verify.chance import MOST_LEFT, independent, most_left
from joymigrate.verify.measure import flat, relative_error
from joymigrate.verify.module_replay import ARGUMENTS, OUTPUT, CutValue, Key, ModuleReplay
from joymigrate.verify.rest_evidence import Case, case_of
from joymigrate.verify.summaries import summary
from joymigrate.verify.tape import Tape
from joymigrate.verify.tape_entries import Slot, is_weight

SURE = 0.01  # of the error left: no other call is tried
ALIKE = 10.0  # times as much left by another cause: both explain it
SECONDS = 30.0  # for all experiments of one process
MOST_CALLS = 6  # of one kind in one module that are tried
EPS_AT = {"layer_norm": 4, "rms_norm": 3, "group_norm": 4, "instance_norm": 7, "batch_norm": 7}
EPS = (1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)
ACTIVATIONS = ("relu", "silu", "gelu", "tanh", "sigmoid", "softplus")
NARROW = (torch.float16, torch.bfloat16)
FACTORS = (0.5, 2.0, math.sqrt(0.5), math.sqrt(2.0), 0.25, 4.0)
BASES = (1e4, 5e5, 1e6)


@dataclass(slots=True)
class TorchCall:
    """One call of torch in the wrong module."""

    index: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    func: Any = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is tried: the cause that it stands for, in words, and the call that it changes."""

    cause: str
    words: str
    index: int
    change: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Try:
    """What one try left of the error, and how many numbers it took from the error."""

    left: float
    cause: str
    words: str
    fitted: int = 0


class Inside(TorchFunctionMode):
    """Counts the calls of one module's own code, and changes one of them."""

    def __init__(self, where: Callable[[], str | None], owner: str) -> None:
        super().__init__()
        self.where, self.owner = where, owner
        self.calls: list[TorchCall] = []
        self.count = -1
        self.candidate: Candidate | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.where() != self.owner:
            return func(*args, **kwargs)
        self.count += 1
        name = str(getattr(func, "__name__", "")).strip("_")
        if self.candidate is None:
            self.calls.append(TorchCall(self.count, name, tuple(args), dict(kwargs), func))
        elif self.candidate.index == self.count:
            return self.candidate.change(func, tuple(args), dict(kwargs))
        return func(*args, **kwargs)


@dataclass(slots=True)
class ModuleRerun:
    """Runs the wrong module again, and measures one of its values."""

    isolated: Any
    reference: Any
    key: Key
    owner: str
    dtype: torch.dtype
    began: float = field(default_factory=time.monotonic)
    calls: list[TorchCall] = field(default_factory=list)
    value: torch.Tensor | None = None

    def run(self, candidate: Candidate | None = None) -> float:
        """The error of the value; infinite where the candidate does not run."""
        found: list[float] = []
        held: list[ModuleReplay] = []
        real = self.isolated.hold

        def hold(replay: ModuleReplay | None) -> None:
            held[:] = [replay] if replay is not None else []
            real(replay)

        def report(value: CutValue) -> None:
            golden = self.reference.value(self.key)
            if value.key == self.key and value.tensor is not None and golden is not None:
                found.append(relative_error(value.tensor, golden))
                if candidate is None:
                    self.value = value.tensor.detach().to("cpu").clone()

        inside = Inside(lambda: held[0].stack[-1].path if held and held[0].stack else None,
                        self.owner)  # fmt: skip
        inside.candidate = candidate
        self.isolated.hold = hold
        try:
            with inside:
                self.isolated.run(report, self.dtype, reference=self.reference, gradients=False)
        except Exception:  # a candidate need not fit the module
            return math.inf
        finally:
            self.isolated.hold = real
        if candidate is None:
            self.calls = inside.calls
        return found[0] if found else math.inf

    def keep_case(self, facts: Mapping[str, Any]) -> Case | None:
        """(case, tensors) of the value's calls in the module's own code, on the baseline's inputs;
        None where they can't be written down."""
        held: list[ModuleReplay] = []
        found: list[Slot] = []
        real = self.isolated.hold

        def within() -> bool:
            return bool(held and held[0].stack and held[0].stack[-1].path == self.owner)

        tape = Tape(within, lambda tensor: "weight" if is_weight(tensor) else "given")

        def hold(replay: ModuleReplay | None) -> None:
            held[:] = [replay] if replay is not None else []
            real(replay)

        def report(value: CutValue) -> None:
            if value.key == self.key and value.tensor is not None and not found:
                tape.inside = tape.full = True  # what comes later may write into it
                found.append(tape.slot(value.tensor))
                tape.inside = False

        golden = self.reference.value(self.key)
        self.isolated.hold = hold
        try:
            with tape:
                self.isolated.run(report, self.dtype, reference=self.reference, gradients=False)
            tape.inside = True
            if not found or golden is None:
                return None
            if found[0].number in tape.externals.keys() - tape.changed.keys():
                return None  # handed on as it came
            again = relative_error(tape.rerun(found, {}).values[0], golden)
            if not math.isclose(again, facts["error"], rel_tol=0.5):
                return None  # something else made it
            for external in tape.externals.values():
                external.role = self.label(external.value()) or external.role
            return case_of(facts, tape, found[0], {}, summary(golden))
        except Exception:  # the program's own code, or calls of no public name
            return None
        finally:
            self.isolated.hold = real

    def label(self, value: torch.Tensor | None) -> str | None:
        """Which input of the module, or result of a module below it, this is."""
        if value is None:
            return None
        mine = value.detach().to("cpu")
        for label, known in values_in_hand(self.reference, self.owner):
            if known.shape == mine.shape and torch.equal(known.to(mine.dtype), mine):
                return label
        return None

    def known_values(self, golden: torch.Tensor) -> dict[str, torch.Tensor]:
        """Tensors that the module had in its hands, of the value's shape."""
        return known_values(self.reference, self.key, self.owner, golden)

    @property
    def late(self) -> bool:
        """Whether the time for experiments is over."""
        return time.monotonic() - self.began > SECONDS


def explain(bench: ModuleRerun) -> dict[str, Any]:
    """{cause, words, left} of the experiment that explains the error of one value; {tried} alone
    where none does, or two of other causes do."""
    before = bench.run()
    golden = bench.reference.value(bench.key)
    if not 0 < before < math.inf or bench.value is None or golden is None:
        return {"tried": 0}
    tries: list[Try] = []
    for candidate in candidates(bench.calls):
        if bench.late:
            break
        tries.append(Try(bench.run(candidate) / before, candidate.cause, candidate.words))
        if tries[-1].left < SURE:
            break
    if not tries or tries[-1].left >= SURE:
        tries += on_values(bench.value, golden, bench.known_values(golden))
    found = best_of(tries, numbers_of(bench.value, golden))
    if found is None:
        return {"tried": len(tries)}
    return {"tried": len(tries), "left": found.left, "cause": found.cause, "words": found.words}


def numbers_of(value: torch.Tensor, golden: torch.Tensor) -> float:
    """How many independent numbers are wrong; 0 where that can't be told."""
    a, g = flat(value), flat(golden)
    return independent((a - g).numpy()) if a.shape == g.shape else 0.0


def best_of(tries: Sequence[Try], numbers: float) -> Try | None:
    """The try that explains an error of so many independent numbers, unless one of another cause
    explains it as well."""
    good = [t for t in tries if t.left < most_left(numbers, t.fitted, len(tries))]
    best = min(good, key=lambda t: t.left, default=None)
    if best is None:
        return None
    near = max(ALIKE * best.left, SURE * MOST_LEFT)
    alike = [t for t in good if t.cause != best.cause and t.left <= near]
    return None if alike else best


def candidates(calls: list[TorchCall]) -> Iterator[Candidate]:
    """What can be changed in the calls that a module makes, the likeliest first."""
    seen: dict[str, int] = {}
    for call in calls:
        seen[call.name] = seen.get(call.name, 0) + 1
        if seen[call.name] <= MOST_CALLS:
            for maker in (
                eps,
                activation,
                mask,
                attention,
                scalar,
                narrowing,
                statistics,
                reduction,
            ):
                yield from maker(call)


def with_argument(position: int, name: str, value: Any) -> Any:
    """A call with another argument."""

    def change(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > position:
            args = (*args[:position], value, *args[position + 1 :])
        else:
            kwargs = {**kwargs, name: value}
        return func(*args, **kwargs)

    return change


def argument(call: TorchCall, position: int, name: str, default: Any = None) -> Any:
    """What a call was given."""
    return call.args[position] if len(call.args) > position else call.kwargs.get(name, default)


def eps(call: TorchCall) -> Iterator[Candidate]:
    """Another eps: of a norm, or a small number that is added."""
    position = EPS_AT.get(call.name)
    if position is not None:
        have = argument(call, position, "eps", 1e-5)
    elif call.name in ("add", "radd", "clamp_min", "maximum") and len(call.args) > 1:
        position, have = 1, call.args[1]
        if not (isinstance(have, float) and 0 < have <= 1e-2):
            return
    else:
        return
    for value in (v for v in EPS if v != have):
        words = f"eps {value:g} in place of {have}"
        yield Candidate("eps or scale", words, call.index, with_argument(position, "eps", value))


def activation(call: TorchCall) -> Iterator[Candidate]:
    """Another activation."""
    if call.name not in (*ACTIVATIONS, "leaky_relu") or not call.args:
        return
    functional = torch.nn.functional
    if call.name == "gelu":
        have = call.kwargs.get("approximate", "none")
        other = "tanh" if have == "none" else "none"
        change = with_argument(1, "approximate", other)
        words = f"gelu with approximate={other} in place of {have}"
        yield Candidate("activation", words, call.index, change)
    for name in (n for n in ACTIVATIONS if n != call.name):
        other_call = getattr(functional, name, None) or getattr(torch, name)

        def change(func: Any, args: Any, kwargs: Any, other_call: Any = other_call) -> Any:
            return other_call(args[0])

        yield Candidate("activation", f"{name} in place of {call.name}", call.index, change)


def mask(call: TorchCall) -> Iterator[Candidate]:
    """A mask shifted by one, inverted, or filled with another value."""
    if call.name in ("tril", "triu"):
        have = argument(call, 1, "diagonal", 0)
        for value in (have - 1, have + 1):
            words = f"the mask's diagonal {value} in place of {have}"
            yield Candidate("mask", words, call.index, with_argument(1, "diagonal", value))
    if call.name in ("masked_fill", "masked_fill_") and len(call.args) > 2:

        def inverted(func: Any, args: Any, kwargs: Any) -> Any:
            return func(args[0], ~args[1], *args[2:], **kwargs)

        yield Candidate("mask", "the mask inverted", call.index, inverted)
        if call.args[2] != -math.inf:
            change = with_argument(2, "value", -math.inf)
            yield Candidate("mask", f"-inf in place of {call.args[2]}", call.index, change)


def attention(call: TorchCall) -> Iterator[Candidate]:
    """Attention with or without its causal mask, and with the usual scale."""
    if call.name == "softmax":
        have = argument(call, 1, "dim")
        for value in (v for v in (-1, -2, 1) if v != have):
            words = f"softmax over axis {value} in place of {have}"
            yield Candidate("axis", words, call.index, with_argument(1, "dim", value))
    if call.name != "scaled_dot_product_attention":
        return
    causal = bool(argument(call, 5, "is_causal", False))
    change = with_argument(5, "is_causal", not causal)
    yield Candidate("mask", f"is_causal={not causal}", call.index, change)
    have = call.kwargs.get("scale")
    if have is not None:
        change = with_argument(6, "scale", None)
        yield Candidate("eps or scale", f"the scale left out (it is {have:g})", call.index, change)


def scalar(call: TorchCall) -> Iterator[Candidate]:
    """Another plain factor, or another base of powers."""
    names = ("mul", "rmul", "div", "truediv", "rtruediv", "true_divide", "multiply", "divide")
    if call.name in names and len(call.args) > 1:
        position = next((i for i in (0, 1) if isinstance(call.args[i], int | float)), None)
        if position is not None:
            have = float(call.args[position])
            for value in (1.0, *(have * f for f in FACTORS), have * have):
                words = f"the factor {value:.6g} in place of {have:.6g}"
                change = with_argument(position, "other", value)
                yield Candidate("eps or scale", words, call.index, change)
    if call.name in ("pow", "rpow"):
        for position in (0, 1):
            base = call.args[position] if len(call.args) > position else None
            if isinstance(base, int | float) and base >= 100:
                for value in (v for v in BASES if v != base):
                    words = f"base {value:g} in place of {base:g}"
                    change = with_argument(position, "self", value)
                    yield Candidate("base", words, call.index, change)


def narrowing(call: TorchCall) -> Iterator[Candidate]:
    """A conversion to 16 bits left out."""
    narrow = call.name in ("half", "bfloat16") or (
        call.name in ("to", "type", "type_as")
        and any(v in NARROW for v in (*call.args[1:], *call.kwargs.values())
                if isinstance(v, torch.dtype))
    )  # fmt: skip
    if narrow:

        def wide(func: Any, args: Any, kwargs: Any) -> Any:
            return args[0]

        words = "the conversion to 16 bits left out"
        yield Candidate("reduced precision", words, call.index, wide)


def statistics(call: TorchCall) -> Iterator[Candidate]:
    """A variance with or without Bessel's correction; corners of an interpolation."""
    if call.name in ("var", "std", "var_mean", "std_mean"):
        have = call.kwargs.get("correction", int(bool(call.kwargs.get("unbiased", True))))

        def other(func: Any, args: Any, kwargs: Any) -> Any:
            kept = {k: v for k, v in kwargs.items() if k not in ("correction", "unbiased")}
            return func(*args, **kept, correction=1 - int(have))

        words = f"correction {1 - int(have)} in place of {have}"
        yield Candidate("correction", words, call.index, other)
    for name in ("align_corners", "count_include_pad", "ceil_mode", "antialias"):
        if call.name in ("interpolate", "grid_sample", "avg_pool2d") and name in call.kwargs:
            value = not call.kwargs[name]
            change = with_argument(99, name, value)
            yield Candidate("setting", f"{name}={value}", call.index, change)


def reduction(call: TorchCall) -> Iterator[Candidate]:
    """Settings of a loss."""
    if "loss" not in call.name and "cross_entropy" not in call.name:
        return
    for value in ("mean", "sum"):
        if call.kwargs.get("reduction") not in (None, value):
            change = with_argument(99, "reduction", value)
            yield Candidate("setting", f"reduction={value}", call.index, change)
    smoothing = call.kwargs.get("label_smoothing")
    if smoothing is not None:
        for level in (v for v in (0.0, 0.1) if v != smoothing):
            words = f"label_smoothing={level} in place of {smoothing}"
            change = with_argument(99, "label_smoothing", level)
            yield Candidate("setting", words, call.index, change)


def known_values(
    reference: Any, key: Key, owner: str, golden: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Tensors that the module had in its hands: its inputs, and what the modules below it made."""
    found: dict[str, torch.Tensor] = {}
    for label, value in values_in_hand(reference, owner, key):
        if value.shape == golden.shape:
            found.setdefault(label, value)
    return found


def values_in_hand(
    reference: Any, owner: str, beside: Key | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """(what it is, tensor) of a module's inputs and of what the modules below it made, but the one
    `beside` which they are looked for."""
    for other, row in reference.rows.items():
        path, _, kind, leaf = other
        own = kind == ARGUMENTS and path == owner
        below = kind == OUTPUT and path != owner and path.rpartition(".")[0] == owner
        value = reference.value(other) if own or below else None
        if value is not None and other != beside and not row.missing:
            yield f"input {leaf}" if own else f"the output of {path}", value


def on_values(
    mine: torch.Tensor, golden: torch.Tensor, known: dict[str, torch.Tensor]
) -> Iterator[Try]:
    """What can be tried on the result alone."""
    a, g = flat(mine), flat(golden)
    if a.shape != g.shape or not bool(torch.isfinite(a).all() & torch.isfinite(g).all()):
        return
    error = float(torch.linalg.vector_norm(a - g))

    def left(value: torch.Tensor) -> float:
        return float(torch.linalg.vector_norm(value - g)) / error

    power = float(a @ a)
    if power:
        scale = float(a @ g) / power
        words = f"the result is the baseline's times {1 / scale:.6g}" if scale else ""
        if scale:
            yield Try(left(a * scale), "eps or scale", words, 1)
    shift = float((g - a).mean())
    yield Try(left(a + shift), "eps or scale", f"the result is shifted by {-shift:.6g}", 1)
    for label, value in known.items():
        v = flat(value)
        weight = float((g - a) @ v) / max(float(v @ v), 1e-300)
        missing = f"{label} is missing" if abs(weight - 1) < 0.05 else f"{weight:+.4g} × {label}"
        # A part of a term is its factor; a whole one is left out, or there twice.
        cause = "missing term" if abs(abs(weight) - 1) < 0.05 else "eps or scale"
        yield Try(left(a + weight * v), cause, missing, 1)
    x, y = mine.detach().to("cpu", torch.float64), golden.to(torch.float64)
    if mine.is_complex():
        return
    for axis in range(x.dim()):
        for said, moved in (
            (f"axis {axis} reversed", x.flip(axis)),
            (f"axis {axis} moved by one", x.roll(1, axis)),
            (f"axis {axis} moved by one", x.roll(-1, axis)),
        ):
            yield Try(left(flat(moved)), "permutation", said)
        for other in range(axis + 1, x.dim()):
            if x.shape[axis] == x.shape[other]:
                said = f"axes {axis} and {other} exchanged"
                yield Try(left(flat(x.transpose(axis, other))), "permutation", said)
    with contextlib.suppress(RuntimeError, ValueError):
        yield from try_orders(x, y, left)


def try_orders(
    x: torch.Tensor, y: torch.Tensor, left: Callable[[torch.Tensor], float]
) -> Iterator[Try]:
    """One order of the columns (or rows) that makes the result the baseline's."""
    for axis in {0, x.dim() - 1}:
        if not 2 <= x.shape[axis] <= 4096:
            continue
        one, two = (t.movedim(axis, 0).reshape(t.shape[axis], -1) for t in (x, y))
        if one.shape[1] < 2:
            continue
        distance = torch.cdist(two, one)
        order = distance.argmin(1)
        if len(set(order.tolist())) != len(order):
            continue
        moved = x.index_select(axis, order)
        said = f"the order along axis {axis} is another"
        yield Try(left(flat(moved)), "permutation", said, len(order))
