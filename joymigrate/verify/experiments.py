"""The wrong module runs again: its calls of torch, which are looked at one by one, and its case."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from joymigrate.verify.measure import relative_error
from joymigrate.verify.module_replay import ARGUMENTS, OUTPUT, CutValue, Key, ModuleReplay
from joymigrate.verify.rest_evidence import Case, case_of
from joymigrate.verify.summaries import summary
from joymigrate.verify.tape import Tape
from joymigrate.verify.tape_entries import TapeSlot, is_weight


@dataclass(slots=True)
class TorchCall:
    """One call of torch in the wrong module."""

    index: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    func: Any = None


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
        found: list[TapeSlot] = []
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
