"""The wrong module runs again: its calls of torch, which are looked at one by one, and its case."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from joymigrate.verify.measure import relative_error
from joymigrate.verify.module_replay import ARGUMENTS, OUTPUT, CutValue, Key, ModuleReplay
from joymigrate.verify.rest_evidence import Case, case_of
from joymigrate.verify.summaries import summary
from joymigrate.verify.tape import Tape
from joymigrate.verify.tape_entries import TapeSlot, is_weight
from joymigrate.verify.wrong_call import WrongCallSearch


@dataclass(slots=True)
class ModuleRerun:
    """Runs the wrong module again, and measures one of its values."""

    isolated: Any
    reference: Any
    key: Key
    owner: str
    dtype: torch.dtype
    wrong: dict[str, Any] | None = None  # its first call that is wrong by itself
    value: torch.Tensor | None = None
    replay: ModuleReplay | None = None  # while it runs

    def run(self) -> None:
        """Look for a wrong call in the module's own code, and keep its value."""

        def report(value: CutValue) -> None:
            if value.key == self.key and value.tensor is not None:
                self.value = value.tensor.detach().to("cpu").clone()

        search = WrongCallSearch(self.within)
        with contextlib.suppress(Exception):  # the program's own code
            self.again(search, report)
        self.wrong = search.found

    def within(self) -> bool:
        """Whether the module's own code is at work."""
        stack = self.replay.stack if self.replay is not None else []
        return bool(stack and stack[-1].path == self.owner)

    def again(self, mode: Any, report: Callable[[CutValue], None]) -> None:
        """Run the module once more under a mode."""
        real = self.isolated.hold

        def hold(replay: ModuleReplay | None) -> None:
            self.replay = replay
            real(replay)

        self.isolated.hold = hold
        try:
            with mode:
                self.isolated.run(report, self.dtype, reference=self.reference, gradients=False)
        finally:
            self.isolated.hold = real

    def keep_case(self, facts: Mapping[str, Any]) -> Case | None:
        """(case, tensors) of the value's calls in the module's own code, on the baseline's inputs;
        None where they can't be written down."""
        found: list[TapeSlot] = []
        tape = Tape(self.within, lambda tensor: "weight" if is_weight(tensor) else "given")

        def report(value: CutValue) -> None:
            if value.key == self.key and value.tensor is not None and not found:
                tape.inside = tape.full = True  # what comes later may write into it
                found.append(tape.slot(value.tensor))
                tape.inside = False

        golden = self.reference.value(self.key)
        try:
            self.again(tape, report)
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
        """Tensors of the value's shape that the module had in its hands: its inputs, and what the
        modules below it made."""
        found: dict[str, torch.Tensor] = {}
        for label, value in values_in_hand(self.reference, self.owner, self.key):
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
