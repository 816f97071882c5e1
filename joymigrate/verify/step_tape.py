"""The rest of a step: what the program computes between its models' outputs and its update.

Each moment at which a value leaves that part is an event: the inputs of a model, a loss as a
backward pass begins, gradients as an optimiser takes them, parameters and other state as a step
ends, results as they are read. The baseline stores what an event was made from and its value in
float64; a replay feeds that to its own tape, and compares.
"""

from __future__ import annotations

import contextlib
import weakref
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import torch
from safetensors.torch import save as save_torch

from joymigrate.verify import crash, pytree, source_lines
from joymigrate.verify.call_trace import MOST_CALLS
from joymigrate.verify.calls import plain_name
from joymigrate.verify.constants import given_constants
from joymigrate.verify.evidence_pack import REST_CASE, REST_EVIDENCE
from joymigrate.verify.isolated_pass import content_of
from joymigrate.verify.rest_evidence import keep_case
from joymigrate.verify.rest_stage import UNREPEATED, key_of
from joymigrate.verify.state_names import names_of_state
from joymigrate.verify.summaries import apart, summary
from joymigrate.verify.tape import COMPARES, TAKES, Tape
from joymigrate.verify.tape_entries import (
    External,
    TapeEntry,
    TapeSlot,
    constants_in,
    is_weight,
    slots_in,
)
from joymigrate.verify.tape_matching import match_externals
from joymigrate.verify.transforms import tensors_in
from joymigrate.verify.wrong_call import FLOOR, RATIO

MOST_EVENTS = {"input": 12, "loss": 8, "gradients": 4, "state": 1, "output": 1}  # of one step
MOST_READS = 32  # values read in one step
ROLE_CALLS = 8  # the last calls that make a value: what it is
HALF = (torch.float16, torch.bfloat16)
CASTS = {
    "float",
    "half",
    "to",
    "type",
    "detach",
    "clone",
    "cpu",
}  # calls that say nothing of a value


class StepTape:
    """The tape of one process, its events, and what it writes of them."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.tape = Tape(self.active, self.role)
        self.entered = False
        self.names: dict[int, str] = {}
        self.events: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        self.skipped: dict[str, int] = {}  # kind → events that were too many, of all steps
        self.fresh: dict[str, torch.Tensor] = {}  # tensors to be written, by content
        self.derived: set[int] = set()  # inputs of the model that is called, made from a model's
        self.steps: list[int] = []  # looked at to their end
        self.trained: set[int] = set()  # tensors that got a gradient in this step
        # Loaders hand out batches ahead of the step that uses them.
        self.handed: deque[weakref.ref[torch.Tensor]] = deque(maxlen=64)
        self.leaves: dict[int, torch.Tensor] = {}  # what the last loss is differentiated by
        self.grown: list[torch.Tensor] = []  # leaves that the tape knows, also those that it made
        self.noted_seeds = 0  # of those that the tape knows
        self.differentiating = False  # inside of torch.autograd.grad
        self.looked = False  # for a call that is wrong by itself
        self.evidence: tuple[dict[str, Any], dict[str, torch.Tensor]] | None = None
        self.baseline: dict[tuple[str, int, int, str], dict[str, Any]] | None = None

    # -- when the tape runs ----------------------------------------------------------------------

    def active(self) -> bool:
        """Whether calls of this moment are the program's own, outside of its models."""
        recorder = self.recorder
        return bool(
            recorder.exact
            and not recorder.settings.stats_only
            and not recorder.stack
            and not recorder.updating
            and not recorder.fetching
            and recorder.watches()
            and torch._C._functorch.peek_interpreter_stack() is None
        )

    def enter(self) -> None:
        """Look at the program's torch calls from here on."""
        if not self.entered:
            self.tape.__enter__()  # type: ignore[no-untyped-call]
            self.entered = True

    def is_innermost(self) -> bool:
        """Whether the program's torch calls come here first."""
        return self.entered and top_mode() is self.tape

    def leave(self) -> None:
        """Look no more, while nothing of the program's own lies above."""
        if self.is_innermost():
            self.tape.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.entered = False

    # -- names -----------------------------------------------------------------------------------

    def role(self, tensor: torch.Tensor) -> str:
        """What a tensor from elsewhere is, as far as that is known."""
        if any(held() is tensor for held in self.handed):
            return "batch:loader"
        name = self.names.get(id(tensor))
        if name is None and isinstance(tensor, torch.nn.Parameter):
            inventory = self.recorder.inventory
            name = inventory.parameter_names(self.recorder.module_names, [tensor]).get(tensor)
            if name is not None:
                name = self.names[id(tensor)] = f"param:{self.translated(name)}"
        if name is not None:
            return name
        if tensor.requires_grad and tensor.is_leaf:
            return "leaf"
        return "table" if self.tape.tables.has(tensor) else "other"

    def translated(self, place: str) -> str:
        """`root:path` as the baseline calls it."""
        session = self.recorder.replay_session.baseline
        root, _, path = place.partition(":")
        path = path.lstrip(".")
        if session is None:
            return f"{root}:{path}"
        aligned = session.alignments.get(root)
        if aligned is not None:
            owner, _, leaf = path.rpartition(".")
            path = f"{aligned.baseline_names.get(owner, owner)}.{leaf}".lstrip(".")
        return f"{session.roots.get(root, root)}:{path}"

    def outputs(self, place: str, number: int, made: Any) -> None:
        """What a model returned comes from elsewhere, under the model's name."""
        if self.recorder.exact:
            root, _, path = place.partition(":")
            session = self.recorder.replay_session.baseline
            root = session.roots.get(root, root) if session is not None else root
            for leaf, tensor in pytree.tensors(made, objects=True):
                self.tape.call_as(tensor, f"out:{root}:{path}#{number}.{leaf}")

    def handed_out(self, value: Any) -> None:
        """A data loader's batch comes from elsewhere: how it was put together is not looked at."""
        for _, tensor in pytree.tensors(value, objects=True):
            self.handed.append(weakref.ref(tensor))
            self.tape.known.pop(id(tensor), None)

    def saved(self, held: Any) -> None:
        """The program writes values to a file: results, as those that it reads."""
        if self.entered and self.active() and not self.tape.inside:
            for _, tensor in pytree.tensors(held):
                self.tape.saves(tensor)

    def grads(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """(name, parameter, gradient) of everything that is trained."""
        recorder = self.recorder
        for module in recorder.module_names.modules.values():
            mine = list(module.parameters())
            held = recorder.inventory.parameter_names(recorder.module_names, mine)
            for parameter in mine:
                if parameter.grad is not None:
                    name = self.translated(held.get(parameter) or "?:?")
                    yield name, parameter, parameter.grad
        if not recorder.module_names.modules:  # a program of plain tensors
            for number, tensor in enumerate(self.leaves.values()):
                if tensor.is_leaf and tensor.grad is not None:
                    yield f"leaf {number}", tensor, tensor.grad

    # -- events ----------------------------------------------------------------------------------

    def inputs(self, place: str, module: Any, args: Any, kwargs: Any, ahead: int = 0) -> None:
        """A model is about to be called: the inputs that the tape has made, and weights that the
        program computes and lends it (`torch.func.functional_call`)."""
        self.derived = set()
        if not self.active():
            return
        given = pytree.arguments(args, kwargs)
        leaves = dict(pytree.tensors(given, objects=True))
        lent = [(n, p) for n, p in module.named_parameters() if not is_weight(p)]
        leaves |= {f"weight {name}": tensor for name, tensor in lent}
        sinks = {n: t for n, t in leaves.items() if self.tape.computed_or_changed(t)}
        self.derived = {id(t) for t in sinks.values() if self.depends(t)}
        # What a model returned and gets back as it is: a cache.
        returned = {n: self.tape.role_of(t) for n, t in leaves.items() if n not in sinks}
        returned = {n: role for n, role in returned.items() if role.startswith("out:")}
        if sinks or returned:
            session = self.recorder.replay_session.baseline
            if session is not None:  # before its first call, too
                session.baseline_root(self.recorder, place.partition(":")[0])
            where = self.translated(place)
            flows = {n: leaves[n].requires_grad for n in (*sinks, *returned)}
            call = 0 if ahead else self.recorder.calls.get(place, -1) + 1
            facts: dict[str, Any] = {"where": where, "returned": returned, "flows": flows}
            self.event("input", sinks, ahead=ahead, call=call, **facts)

    def depends(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is computed from what a model returned, or from weights."""
        return self.from_models(self.tape.slot(tensor))

    def computed_reads(self) -> list[TapeSlot]:
        """What the program computed and read as numbers in this step, in order."""
        tape = self.tape
        return [slot for _, slot in tape.read if slot.number not in tape.externals]

    def compared_reads(self) -> list[TapeSlot]:
        """Numbers that were read and come from comparisons of what models made: shares of right
        answers."""
        slots = self.computed_reads()[:MOST_READS]
        return [s for s in slots if any(map(self.compares_results, self.tape.needed([s])[0]))]

    def compares_results(self, entry: TapeEntry) -> bool:
        """Whether a call compares what models made: with a label's padding alone it does not."""
        given = slots_in((entry.args, entry.kwargs)) if entry.name in COMPARES else ()
        return any(map(self.from_models, given))

    def comparisons(self, reads: list[TapeSlot]) -> list[int | None]:
        """Hashes of what the comparisons behind these came to; None for one that was too large."""
        needed = self.tape.needed(reads)[0] if reads else []
        numbers = [slot.number for e in needed if e.name in COMPARES for slot in e.results]
        return [self.tape.compared[n] for n in numbers if n in self.tape.compared]

    def from_models(self, slot: TapeSlot) -> bool:
        """The same of a value on the tape."""
        _, outside, _ = self.tape.needed([slot])
        if any(e.role.startswith(("out:", "param:", "grad:", "leaf")) for e in outside):
            return True
        chances = [by for e in outside for by in self.tape.drawn_by.get(e.slot.number, ())]
        return any(self.from_models(by) for by in chances)

    def loss(self, tensors: Any) -> None:
        """A backward pass begins."""
        if not self.active() or self.differentiating:
            return
        outside = [e.tensor for e in self.tape.externals.values() if e.role == "leaf"]
        self.leaves = {id(tensor): tensor for tensor in outside}
        held = [known() for known, _ in self.tape.known.values()]
        self.grown = [t for t in held if t is not None and t.requires_grad and t.is_leaf]
        given = tensors if isinstance(tensors, list | tuple) else [tensors]
        sinks = {f"loss {i}".removesuffix(" 0"): t for i, t in enumerate(given) if is_tensor(t)}
        kept = any(has_values(g.detach()) for _, _, g in self.grads())
        if sinks:
            self.event("loss", sinks, gradients=True, accumulates=kept)

    def after_backward(self) -> None:
        """Gradients as they are now come from elsewhere."""
        if self.active():
            for name, parameter, gradient in self.grads():
                self.trained.add(id(parameter))
                self.tape.call_as(gradient, f"grad:{name}")
            self.trained |= {id(tensor) for tensor in self.grown if tensor.grad is not None}

    def after_grad(self, inputs: Any, made: Any, again: bool) -> None:
        """What `torch.autograd.grad` gave comes from elsewhere; `again`: it has a graph itself."""
        if self.active():
            given = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
            for number, (start, gradient) in enumerate(zip(given, made, strict=False)):
                if isinstance(gradient, torch.Tensor):
                    self.trained |= set() if again else {id(start)}
                    role = self.role(start) if not again else "slope"
                    self.tape.call_as(gradient, f"grad:{role} {number}")

    def arguments(self, name: str, given: Any, ahead: bool) -> None:
        """A transform is about to be called: what the program made by itself of its arguments."""
        if not self.active():
            return
        made = {f"argument {n}": t for n, t in enumerate(tensors_in(given))}
        sinks = {n: t for n, t in made.items() if self.tape.computed(t) and self.depends(t)}
        if sinks:
            call = -1 if ahead else None
            self.event("input", sinks, ahead=int(ahead), call=call, where=name)

    def differentiated(self, given: Any, made: Any) -> None:
        """A transform of torch.func gave gradients: an event, and from here on given values."""
        if not self.active():
            return
        self.trained |= {id(tensor) for tensor in tensors_in(given)}
        found = {f"result {n}": tensor for n, tensor in enumerate(tensors_in(made))}
        floating = {n: t for n, t in found.items() if t.is_floating_point() or t.is_complex()}
        self.event("loss", floating)
        for name, tensor in floating.items():
            self.tape.call_as(tensor, f"grad:transform {self.counts.get('loss', 0)} {name}")

    def before_update(self, optimiser: Any) -> None:
        """An optimiser takes the gradients."""
        if not self.active():
            return
        mine = [p for group in optimiser.param_groups for p in group["params"]]
        names = self.recorder.inventory.parameter_names(self.recorder.module_names, mine)
        sinks: dict[str, torch.Tensor] = {}
        for number, parameter in enumerate(mine):  # also copies that are in no module
            gradient = parameter.grad
            if gradient is not None and self.tape.computed_or_changed(gradient):
                own = names.get(parameter)
                sinks[self.translated(own) if own else f"parameter {number}"] = gradient
        self.event("gradients", sinks)

    def end_of_step(self, clear: bool = True) -> None:
        """State that the tape has changed, and what was read."""
        if not self.recorder.exact or self.recorder.settings.stats_only:
            self.tape.clear()
            return
        tape = self.tape
        was, tape.inside = tape.inside, True
        try:
            sinks: dict[str, Any] = {}
            changed = [e for e in tape.changed.values() if not e.role.startswith("grad:")]
            named = names_of_state(self.recorder) if changed else {}  # looks at every object
            for external in changed:
                key = (external.tensor.data_ptr(), tuple(external.tensor.shape))
                name = named.get(key) or external.role.removeprefix("param:")
                if name in ("other", "leaf", "table") or name.startswith(("out:", "draw:")):
                    continue  # a temporary: what it leads to is an event of its own
                sinks[self.translated(name) if ":" in name else name] = external.slot
            if sinks:
                trained = {e.slot for e in changed if id(e.tensor) in self.trained}
                names = [name for name, slot in sinks.items() if slot in trained]
                held = {e.slot: e.tensor for e in changed}
                if not self.recorder.trained:
                    own = {f"weights:{n}": held[sinks[n]] for n in names}
                    self.recorder.run_watch.own = {**own, **self.recorder.run_watch.own}
                self.event("state", sinks, trained=[*names, *self.kept_beside(sinks, names)])
            compared = self.compared_reads()
            if any(self.from_models(slot) for slot in [*tape.choices[:MOST_READS], *compared]):
                self.recorder.run_watch.chooses = True
                watch = self.recorder.run_watch
                found = [*tape.chosen, *self.comparisons(compared)]
                told = zlib.crc32(repr(found).encode())  # of all, however many they are
                watch.note("choice", self.recorder.step, len(found), told)
                watch.blind |= len(tape.chosen) < len(tape.choices) or None in found
            taken = [slot for name, slot in tape.read[:MOST_READS] if name in TAKES]
            if any(self.from_models(slot) for slot in taken):
                self.recorder.run_watch.takes = True
            # What comes from elsewhere is compared where it comes in; only one side may read it.
            computed = self.computed_reads()
            over = sum(max(0, len(found) - MOST_READS) for found in (computed, tape.drawn))
            if over:
                self.skipped["output"] = self.skipped.get("output", 0) + over
            values = {f"value {n}": slot for n, slot in enumerate(computed[:MOST_READS])}
            for number, (name, slot) in enumerate(tape.drawn[:MOST_READS]):
                values[f"draw {number} by {name}"] = slot
            if values:
                lines = {name: tape.read_at.get(slot.number, "") for name, slot in values.items()}
                self.event("output", values, lines=lines)
            for number, seed in tape.seeds.found[self.noted_seeds :]:
                self.recorder.run_watch.note(f"seed generator {number}", self.recorder.step, seed)
            self.noted_seeds = len(tape.seeds.found)
        finally:
            tape.inside = was
        if clear or self.events:
            self.finished()
        self.counts.clear()
        self.names.clear()
        self.trained.clear()
        tape.changed.clear()
        tape.read.clear()
        tape.read_at.clear()
        tape.drawn.clear()
        tape.choices.clear()
        tape.chosen.clear()
        if clear:
            tape.end()

    def kept_beside(self, sinks: Mapping[str, TapeSlot], trained: Sequence[str]) -> list[str]:
        """State that the new values of trained tensors are computed from: an optimiser's own."""
        tape = self.tape
        entries = tape.needed([sinks[name] for name in trained])[0] if trained else []
        read = {group for entry in entries for group in entry.reads}
        return [n for n, s in sinks.items() if n not in trained and tape.groups[s.number] in read]

    def finished(self) -> None:
        """All events of this step are there, unless the program is breaking off."""
        if crash.uncaught() is None and self.recorder.step not in self.steps:
            self.steps.append(self.recorder.step)

    def event(
        self,
        kind: str,
        sinks: Mapping[str, Any],
        *,
        where: str = "",
        gradients: bool = False,
        ahead: int = 0,
        call: int | None = None,
        **facts: Any,
    ) -> None:
        """One moment: evaluated here, and compared when this is a replay. `call`: the number of
        the model's call in its step."""
        index = self.counts[kind] = self.counts.get(kind, -1) + 1
        # A model's call, not the event: where there is a device, copies to it make more events.
        number = index if call is None else call
        if number >= MOST_EVENTS[kind]:
            self.skipped[kind] = self.skipped.get(kind, 0) + 1
            return
        tape, recorder = self.tape, self.recorder
        was, tape.inside, busy = tape.inside, True, recorder.busy
        recorder.busy = True
        entry: dict[str, Any] = {
            "kind": kind,
            "step": recorder.step + ahead,
            "number": number,
            "index": -1 if ahead else index,
            "line": source_lines.where(),
            **facts,
        }
        if where:
            entry["where"] = where
        try:
            slots = {n: s if isinstance(s, TapeSlot) else tape.slot(s) for n, s in sinks.items()}
            actual = {n: s.detach() for n, s in sinks.items() if not isinstance(s, TapeSlot)}
            if tape.full:
                raise RuntimeError("the step has too many calls outside of its models")
            if self.recorder.settings.baseline:
                self.compare(entry, slots, actual, gradients)
            else:
                self.keep(entry, slots, actual, gradients)
        except Exception as error:  # the program's own calls in a type they were not made for
            said = str(error).splitlines()[0][:200] if str(error) else ""
            entry["error"] = f"{type(error).__name__}: {said}"
            recorder.note_error(error)
        finally:
            recorder.busy, tape.inside = busy, was
        self.events.append(entry)

    def describe(
        self, entry: dict[str, Any], slots: Mapping[str, TapeSlot]
    ) -> tuple[list[TapeEntry], list[External]]:
        """The calls and the tensors from elsewhere that an event is made of; they are told in its
        entry."""
        entries, outside, untraced = self.tape.needed(list(slots.values()))
        lost = self.tape.replaced(entries)
        outside = [external for external in outside if external.slot.number not in lost]
        entry["calls"], entry["untraced"] = len(entries), untraced
        entry["trace"] = [call.told for call in entries if call.told is not None][-MOST_CALLS:]
        entry["half"] = any(e.tensor.dtype in HALF for e in outside)
        entry["narrow"] = any(call.narrow for call in entries)
        return entries, outside

    def keep(
        self, entry: dict[str, Any], slots: dict[str, TapeSlot], actual: Any, gradients: bool
    ) -> None:
        """The baseline's side."""
        entries, outside = self.describe(entry, slots)
        entry["sinks"] = {}
        if entry["kind"] == "output":
            entry["roles"] = {name: self.role_of_value(slot) for name, slot in slots.items()}
        if not slots:
            return
        made = self.tape.rerun(list(slots.values()), {}, gradients=gradients)
        entry["constants"], entry["read"] = constants_in(entries), list(self.tape.numbers)
        entry["externals"] = [self.stored(external) for external in outside]
        places = {external.slot.number: place for place, external in enumerate(outside)}
        for name, value in zip(slots, made.values, strict=True):
            entry["sinks"][name] = summary(value)
            if name in actual:
                entry["sinks"][name]["native"] = apart(summary(actual[name]), summary(value))
                entry["sinks"][name]["dtype"] = str(actual[name].dtype).removeprefix("torch.")
        for name, gradient in made.gradients.items():
            role, _, slot = name.rpartition("@")
            if gradient is not None:
                label = unique(f"gradient at {role}", entry["sinks"])
                entry["sinks"][label] = summary(gradient)
                if int(slot) in places:
                    entry["externals"][places[int(slot)]]["gradient"] = label

    def stored(self, external: External) -> dict[str, Any]:
        """One tensor that an event is made from; its content when it fits."""
        value = external.value()
        if value is None:
            raise RuntimeError(f"{external.role} was changed by other code")
        session = self.recorder.replay_session
        value = value.detach().to("cpu").contiguous()
        content: str | None = content_of(value)
        size = value.numel() * value.element_size()
        known = session.is_kept(content) or content in self.fresh
        if not known and size > session.left:
            content = None
        elif not known and content is not None:
            session.left -= size
            self.fresh[content] = value.clone()
        made = external.role.startswith("made:") and value.is_floating_point()
        return {
            "role": external.role,
            "content": content,
            **({"norm": float(value.double().norm())} if made else {}),
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "device": external.tensor.device.type,
            "generator": self.tape.states.get(external.slot.number),
            "rounding": self.tape.tables.rounding(external.tensor),
        }

    def compare(
        self, entry: dict[str, Any], slots: dict[str, TapeSlot], actual: Any, gradients: bool
    ) -> None:
        """The target's side: its own calls on the baseline's values."""
        theirs = self.event_of(entry)
        entries, outside = self.describe(entry, slots)
        entry["short"] = any(call.short for call in entries)
        entry["cast"] = any(call.cast for call in entries)
        entry["chosen"] = self.recorder.run_watch.chooses
        entry["taken"] = self.recorder.run_watch.takes
        if theirs is None or "error" in theirs:
            entry["unknown"] = True
            return
        if entry["kind"] == "output" and "roles" in theirs:
            roles = {name: self.role_of_value(slot) for name, slot in slots.items()}
            there = pair_values(theirs["roles"], roles)
            entry["alone"] = sorted(roles.keys() - there.values())
            slots = {name: slots[mine] for name, mine in there.items()}
            entry["lines"] = {name: entry["lines"][mine] for name, mine in there.items()}
        returned = {n: theirs["returned"][n] for n in slots if n in theirs.get("returned", ())}
        values, entry["given"], taken = match_externals(
            self.recorder.replay_session.baseline,
            outside,
            theirs.get("externals", []),
            self.tape,
        )
        rows = entry["rows"] = {}
        if not slots:
            return
        constants = given_constants(
            constants_in(entries),
            theirs.get("constants", ()),
            list(self.tape.numbers),
            theirs.get("read", ()),
            self.changing(theirs),
        )
        entry["constants_given"] = bool(constants)
        made = self.tape.rerun(
            list(slots.values()), values, gradients=gradients, constants=constants
        )
        for name, value in zip(slots, made.values, strict=True):
            if name in returned:
                rows[name] = {"returned": self.from_returned(returned[name], actual[name])}
            else:
                rows[name] = self.row(theirs["sinks"].get(name), summary(value))
        labels = {slot: item["gradient"] for slot, item in taken.items() if "gradient" in item}
        for name, gradient in made.gradients.items():
            role, _, slot = name.rpartition("@")
            label = labels.get(int(slot))
            if label is None:
                held = {**rows, **dict.fromkeys(labels.values())}
                label = unique(f"gradient at {role}", held)
            if gradient is not None:
                rows[label] = self.row(theirs["sinks"].get(label), summary(gradient))
        if actual:
            own = self.tape.rerun([slots[name] for name in actual], {})
            for name, value in zip(actual, own.values, strict=True):
                if name not in returned:
                    rows[name]["native"] = apart(summary(actual[name]), summary(value))
                    rows[name]["dtype"] = str(actual[name].dtype).removeprefix("torch.")
        self.look_for_wrong_call(entry, slots, theirs["sinks"])
        if self.evidence is None:
            with contextlib.suppress(RuntimeError, TypeError, ValueError, KeyError):
                self.evidence = keep_case(entry, self.tape, slots, values, theirs["sinks"])

    def look_for_wrong_call(
        self, entry: dict[str, Any], slots: Mapping[str, TapeSlot], theirs: Mapping[str, Any]
    ) -> None:
        """Which call makes a value that is far worse here than the baseline's, in the first event
        that has one."""
        wrong = [
            slots[name]
            for name, row in entry["rows"].items()
            if row.get("native", 0.0) > RATIO * max(theirs.get(name, {}).get("native", 0.0), FLOOR)
        ]
        if wrong and not self.looked:
            self.looked = True
            with contextlib.suppress(Exception):  # the program's own calls, run once more
                entry["operator"] = self.tape.find_wrong_call(wrong)

    def role_of_value(self, slot: TapeSlot) -> str:
        """What a value that the program reads is, by the calls that make it."""
        calls = [call.told for call in self.tape.needed([slot])[0] if call.told is not None]
        return " ".join(plain_name(call[0]) for call in calls[-ROLE_CALLS:])

    def from_returned(self, role: str, given: torch.Tensor) -> float:
        """How far an input is from what the model returned, which the baseline gives back as it
        is."""
        before = self.tape.called_as(role)
        return apart(summary(given), summary(before)) if before is not None else 1e300

    def row(self, theirs: Mapping[str, Any] | None, mine: dict[str, Any]) -> dict[str, Any]:
        """One sink: how far it is from the baseline's."""
        if theirs is None:
            return {"only": "target", "norm": mine["norm"]}
        if theirs["shape"] != mine["shape"]:
            return {"shapes": [theirs["shape"], mine["shape"]]}
        same = bool(theirs.get("content")) and theirs.get("content") == mine.get("content")
        error = 0.0 if same else apart(mine, theirs)
        return {"error": error, "sketch": mine["sketch"]} if error else {"error": 0.0}

    def changing(self, event: Mapping[str, Any]) -> set[int]:
        """Positions of the plain numbers in an event's calls that the baseline has anew in every
        step, as it has times (those of results), or in every run."""
        ours = event.get("constants", ())
        session = self.recorder.replay_session.baseline
        told = session.rank.json(UNREPEATED).get("events", {}) if session is not None else {}
        anew = set(told.get(repr(key_of(event)), {}).get("constants", ()))
        if event["kind"] != "output" or self.baseline is None:
            return anew
        results = [e for e in self.baseline.values() if e["kind"] == "output" and e is not event]
        others = [e.get("constants", ()) for e in results]
        others = [one for one in others if len(one) == len(ours)]
        return anew | {
            i for i, one in enumerate(ours) if others and all(o[i] != one for o in others)
        }

    def event_of(self, entry: Mapping[str, Any]) -> dict[str, Any] | None:
        """The baseline's event of the same kind, step and number."""
        if self.baseline is None:
            session = self.recorder.replay_session.baseline
            events = session.rank.json("tape.json").get("events", [])
            self.baseline = {key_of(e): e for e in events}
        return self.baseline.get(key_of(entry))

    # -- writing ---------------------------------------------------------------------------------

    def write(self, writer: Any, step: int) -> None:
        """Events so far, and tensors that are new."""
        if self.fresh:
            data = {key: value.contiguous() for key, value in self.fresh.items()}
            writer.add(f"tape-{step}.safetensors", save_torch(data))
            self.recorder.replay_session.contents |= self.fresh.keys()
            self.fresh = {}
        if self.events or self.steps:
            found = {"events": self.events, "skipped": self.skipped, "steps": self.steps}
            writer.add_json("tape.json", found)
        if self.evidence is not None:
            writer.add_json(REST_CASE, self.evidence[0])
            writer.add(REST_EVIDENCE, save_torch(self.evidence[1]))


def pair_values(theirs: Mapping[str, str], mine: Mapping[str, str]) -> dict[str, str]:
    """The baseline's values by name with the target's, by what they are: a vendor's scaler reads a
    flag of its own, which is not the loss that the baseline reads in its place. Values that are
    made by other calls are still one another's while they share any of them."""
    names, roles = (list(theirs), list(mine)), (list(theirs.values()), list(mine.values()))
    found: dict[str, str] = {}
    matcher = SequenceMatcher(None, *roles, autojunk=False)
    for tag, a, a_end, b, b_end in matcher.get_opcodes():
        if tag == "equal" or a_end - a == b_end - b:
            pairs = zip(range(a, a_end), range(b, b_end), strict=True)
            alike = [(n, m) for n, m in pairs if share_call(roles[0][n], roles[1][m])]
            found |= {names[0][n]: names[1][m] for n, m in alike}
    return found


def share_call(theirs: str, mine: str) -> bool:
    """Whether two values may be one: they share a call that is no mere cast, or have none."""
    one, two = (set(role.split()) - CASTS for role in (theirs, mine))
    return bool(one & two) or not (one and two)


def has_values(gradient: torch.Tensor) -> bool:
    """Whether a gradient is anything but zeros; a sparse one by the rows that it holds."""
    if gradient.layout is torch.sparse_coo:
        gradient = gradient._values()
    return bool(gradient.count_nonzero())


def unique(label: str, taken: Mapping[str, Any]) -> str:
    """The label, numbered when there is one already."""
    name, number = label, 2
    while name in taken:
        name, number = f"{label} {number}", number + 1
    return name


def is_tensor(value: Any) -> bool:
    """Whether a backward pass can begin here."""
    return isinstance(value, torch.Tensor)


def top_mode() -> Any:
    """The innermost function mode of this thread."""
    size = torch._C._len_torch_function_stack()
    return torch._C._get_function_stack_at(size - 1) if size else None
