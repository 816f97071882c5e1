"""Experiments on one wrong value of a module, where both sides make the same calls (`calls`).

An experiment explains a fault when it removes at least 90 % of the error, and more of an error of
few numbers, which chance explains as well (`chance.py`). What removes less is no cause: none is
named then, nor where two causes explain the same error.
"""

from __future__ import annotations

import contextlib
import math
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


@dataclass(slots=True)
class TorchCall:
    """One call of torch in the wrong module."""

    index: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    func: Any = None


@dataclass(frozen=True, slots=True)
class Try:
    """What one try left of the error, and how many numbers it took from the error."""

    left: float
    cause: str
    words: str
    fitted: int = 0


class Inside(TorchFunctionMode):
    """Keeps the calls of one module's own code."""

    def __init__(self, where: Callable[[], str | None], owner: str) -> None:
        super().__init__()
        self.where, self.owner = where, owner
        self.calls: list[TorchCall] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.where() != self.owner:
            return func(*args, **kwargs)
        name = str(getattr(func, "__name__", "")).strip("_")
        self.calls.append(TorchCall(len(self.calls), name, tuple(args), dict(kwargs), func))
        return func(*args, **kwargs)


@dataclass(slots=True)
class ModuleRerun:
    """Runs the wrong module again, and measures one of its values."""

    isolated: Any
    reference: Any
    key: Key
    owner: str
    dtype: torch.dtype
    calls: list[TorchCall] = field(default_factory=list)
    value: torch.Tensor | None = None

    def run(self) -> float:
        """The error of the value; infinite where the module does not run."""
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
                self.value = value.tensor.detach().to("cpu").clone()

        inside = Inside(lambda: held[0].stack[-1].path if held and held[0].stack else None,
                        self.owner)  # fmt: skip
        self.isolated.hold = hold
        try:
            with inside:
                self.isolated.run(report, self.dtype, reference=self.reference, gradients=False)
        except Exception:  # the program's own code
            return math.inf
        finally:
            self.isolated.hold = real
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


def explain(bench: ModuleRerun) -> dict[str, Any]:
    """{cause, words, left} of the experiment that explains the error of one value; {tried} alone
    where none does, or two of other causes do."""
    before = bench.run()
    golden = bench.reference.value(bench.key)
    if not 0 < before < math.inf or bench.value is None or golden is None:
        return {"tried": 0}
    tries = list(on_values(bench.value, golden, bench.known_values(golden)))
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
