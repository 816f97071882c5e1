"""What a program computes outside of its models: recorded call by call, and run again in float64.

A tape holds torch calls of the public API with the tensors that come from elsewhere (outputs of
models, labels, parameters, gradients). Run again with another side's values in their place, it says
whether both sides compute the same, to the last digits, in whatever type the program works.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from joymigrate.verify.call_trace import describe_call
from joymigrate.verify.isolated_pass import default_of, exactly, keep_generators, raw_bytes
from joymigrate.verify.layout import copy_as
from joymigrate.verify.source_lines import where
from joymigrate.verify.summaries import apart, summary
from joymigrate.verify.tables import Tables, made_before_models
from joymigrate.verify.tape_draws import RANDOM, Seeds, drawn_by, is_draw, state_after
from joymigrate.verify.tape_entries import (
    MOST_NUMBERS,
    External,
    Rerun,
    TapeEntry,
    TapeSlot,
    device_types,
    is_inplace,
    numbers_read,
    run_entry,
    slots_in,
    storage,
    version,
    widen,
    with_constants,
    written_by,
)
from joymigrate.verify.traced_number import Number, numbers_in
from joymigrate.verify.transforms import Again, Taken, map_leaves, tensors_in
from joymigrate.verify.uninitialised_memory import fill_blanks
from joymigrate.verify.wrong_call import look_at

VIEWS = ("T", "mT", "H", "mH", "real", "imag")
TORCH = str(Path(torch.__file__).parent)
LIBRARY = tuple(f"{TORCH}/{part}/" for part in ("optim", "amp", "nn/utils", "distributed"))
INNER = (f"{TORCH}/", f"{Path(__file__).parents[1]}/", "<")  # a read passes through these
READS = ("tolist", "__float__", "__int__", "__format__", "__repr__", "numpy", "__array__")
TAKES = ("tolist", "numpy", "__array__")  # a tensor leaves torch as a whole
AS_IT_IS = ("detach", "clone", "to", "contiguous")  # a copy of the same
CHOICES = ("__int__", "__index__", "__bool__", "item", "tolist", "numpy", "__array__")
COMPARES = (
    "__eq__",
    "eq",
    "__ne__",
    "ne",
    "gt",
    "lt",
    "ge",
    "le",
    "argmax",
    "argmin",
    "topk",
    "sort",
)
CONSTANTS = ("tensor", "as_tensor", "asarray")  # of plain numbers: they come from elsewhere
NARROW = (torch.bfloat16, torch.float16)
FILLS = ("copy_", "fill_", "zero_")
MOST_CHOSEN = 1 << 16  # whole numbers that are read at once
MOST_TABLE = 1 << 22  # elements of a table that is computed again, and of all together
MOST_TABLES = 1 << 24
MOST_ROUNDED = 0.1  # relative
ZERO = 1e-6  # what rounding leaves where a cosine is zero
MOST_ENTRIES = 20_000  # of one tape; a program that does more per step is told so


class Tape(TorchFunctionMode):
    """Records while `active` says so; elsewhere every call passes through."""

    def __init__(self, active: Callable[[], bool], role: Callable[[torch.Tensor], str]) -> None:
        super().__init__()
        self.active = active
        self.role = role
        self.inside = False
        self.seeds = Seeds()
        self.numbers: deque[float] = deque(maxlen=MOST_NUMBERS)  # that were read, of late
        self.tables = Tables()
        self.begun = False  # a model was called: what comes from elsewhere may carry its rounding
        self.read_any = False  # the program has read from a tensor, and may make others of that
        self.count = 0  # of slots so far: a number that was read in an earlier step names none here
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.entries: list[TapeEntry] = []
        self.externals: dict[int, External] = {}
        self.known: dict[int, tuple[weakref.ref[torch.Tensor], TapeSlot]] = {}
        self.groups: dict[int, int] = {}  # slot → group of slots that share memory
        self.stores: dict[int, int] = {}  # memory of externals → group
        self.roles: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self.changed: dict[int, External] = {}  # externals that the tape has changed
        self.read: list[tuple[str, TapeSlot]] = []
        self.read_at: dict[int, str] = {}  # slot → the line of the program that read it
        self.choices: list[TapeSlot] = []  # whole numbers and truths that the program read
        self.chosen: list[int] = []  # hashes of their values
        self.compared: dict[int, int | None] = {}  # hashes of what comparisons came to, by slot
        self.drawn: list[
            tuple[str, TapeSlot]
        ] = []  # what random numbers were drawn by: chances, means
        self.drawn_by: dict[int, list[TapeSlot]] = {}  # the same, by the slot of what was drawn
        self.states: dict[int, int] = {}  # slot of what was drawn → the generator's state then
        self.untraced: set[int] = set()  # groups from which plain numbers were taken
        self.drifting: set[int] = set()  # groups of other values than constants
        self.full = False

    def begin(self) -> None:
        """The first call of a model is near: what came before made weights and tables."""
        self.note_tables(made_before_models(self.is_drifting))
        self.begun, self.read_any = True, False
        self.clear()

    def end(self) -> None:
        """A step ends: what it made of constants alone is a table from here on."""
        if self.begun and not self.read_any:
            made = [(ref(), slot) for ref, slot in self.known.values()]
            new = [t for t, s in made if t is not None and s.number not in self.externals]
            self.note_tables([t for t in new if not self.is_drifting(t)])
        self.clear()

    def note_tables(self, tensors: Sequence[torch.Tensor]) -> None:
        """These are tables, each with the rounding of its own calls: a cosine near zero, or one
        less nearly one, has more of it than its type."""
        self.tables.note(tensors)
        tables = [t for t in tensors if t.numel() <= MOST_TABLE and self.tables.has(t)]
        literal = [t for t in tables if self.role_of(t).startswith("made:")]
        self.tables.roundings |= {id(t): 0.0 for t in literal if not self.computed_or_changed(t)}
        # What numpy holds may be written where nobody sees it.
        held = {self.groups[s.number] for n, s in self.read if n in ("numpy", "__array__")}
        computed = [t for t in tables if self.computed(t) and self.group(t) not in held]
        if not computed or self.full:
            return
        slots = [self.known[id(t)][1] for t in computed]
        size = sum(e.tensor.numel() for e in self.needed(slots)[1])
        if size + sum(t.numel() for t in computed) > MOST_TABLES:
            return
        was, self.inside = self.inside, True
        try:
            values = self.rerun(slots, {}).values
        except Exception:  # calls that were not made for float64: nobody knows
            return
        finally:
            self.inside = was
        for tensor, value in zip(computed, values, strict=True):
            if value.shape == tensor.shape:
                error = apart(summary(tensor.detach()), summary(value))
                off = float((tensor.detach().cpu().double() - value.cpu()).abs().max())
                if error <= MOST_ROUNDED or off <= ZERO:  # else other code has changed it
                    self.tables.roundings[id(tensor)] = error

    def is_drifting(self, tensor: torch.Tensor) -> bool:
        """Whether a value that the tape knows comes from a model, or from random numbers."""
        held = self.known.get(id(tensor))
        known = held is not None and held[0]() is tensor
        return known and held is not None and self.groups[held[1].number] in self.drifting

    # -- recording -------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.inside or not self.active():
            return func(*args, **kwargs)
        self.inside = True
        try:
            return self.record(func, args, kwargs)
        finally:
            self.inside = False

    def around(self, call: Any, name: str, args: Any, kwargs: Any) -> Any:
        """One call that torch does not hand to function modes."""
        self.inside = True
        try:
            return self.record(call, args, kwargs, name)
        finally:
            self.inside = False

    def whole(self, call: Any, name: str, args: Any, kwargs: Any) -> Any:
        """One call of a transform, with the tensors that its function takes from around it."""
        self.inside = True
        try:
            own = {id(tensor) for tensor in tensors_in((args, kwargs))}
            with Taken(RANDOM.match) as around:
                made = call(*args, **kwargs)
            taken = [t for key, t in around.tensors.items() if key not in own]
            given = [*taken, *tensors_in((args, kwargs))]
            for tensor in given:
                self.slot(tensor)
            stored: tuple[Any, Any] = (self.stored((taken, args, kwargs)), {})
            outputs = list(tensors_in(made))
            again = Again(call, taken, around.random)
            self.note(again, name, stored, given, outputs, [])
            self.drifting |= {self.group(t) for t in outputs} if around.random else set()
            return made
        finally:
            self.inside = False

    def record(self, func: Any, args: Any, kwargs: Any, name: str = "") -> Any:
        """Run one call of the program, and note it."""
        name = name or str(getattr(func, "__name__", func))
        if name in ("__get__", "__set__", "__delete__"):
            return self.attribute(func, name, args, kwargs)
        if name in ("backward", "grad") or self.full:
            return func(*args, **kwargs)
        if name == "set_":  # a tensor of other memory: what `torch.load` makes comes from elsewhere
            made = func(*args, **kwargs)
            self.known.pop(id(made), None)
            return made
        given = list(tensors_in((args, kwargs)))
        if name in CONSTANTS and not given and not list(numbers_in((args, kwargs))):
            made = func(*args, **kwargs)
            self.roles[id(made)] = (weakref.ref(made), f"made:{name}")
            return made
        for tensor in given:  # before the call may change them
            self.slot(tensor)
        if is_inplace(name, kwargs, args):
            self.keep(given)
        versions = [version(tensor) for tensor in given]
        groups = [self.group(tensor) for tensor in given]
        stored = self.stored(args), self.stored(kwargs)
        told = describe_call(name, func, args, kwargs)
        made = func(*args, **kwargs)
        fill_blanks(name, made, kwargs)
        mutated = [t for t, v in zip(given, versions, strict=True) if version(t) != v]
        # Under a dispatch mode torch counts no version for some in-place calls.
        written = written_by(name, args)
        mutated += [t for t in written if not any(t is known for known in mutated)]
        self.wrote({g for t, g in zip(given, groups, strict=True) if any(t is m for m in mutated)})
        outputs = list(tensors_in(made))
        self.read_any |= bool(given) and name in (*READS, *CHOICES)
        if name == "item" and isinstance(made, float) and given:
            if not read_by_library():
                self.reads("item", self.slot(given[0]))
                self.numbers.append(made)
            return self.number(made, func, args)
        if not outputs and not mutated:
            if name in CHOICES and given and not given[0].is_floating_point():
                self.choices.append(self.slot(given[0]))
                if given[0].numel() <= MOST_CHOSEN:
                    self.chosen.append(zlib.crc32(raw_bytes(given[0])))
            if name in READS and given and not read_by_library():
                self.reads(name, self.slot(given[0]))
                if given[0].is_floating_point() and name in ("tolist", "__float__", "__int__"):
                    self.untraced.add(self.group(given[0]))
                    self.numbers.extend(numbers_read(made))
            return made
        if is_draw(name, args, kwargs):
            self.draw(name, outputs, mutated, args, kwargs)
            return made
        if name == "empty" and all(tensor.numel() == 0 for tensor in outputs):
            return made  # newer torch puts what it loads into such a one, and tells no mode of it
        self.note(func, name, stored, given, outputs, mutated, told)
        return made

    def note(
        self,
        func: Any,
        name: str,
        stored: tuple[Any, Any],
        given: list[torch.Tensor],
        outputs: list[torch.Tensor],
        mutated: list[torch.Tensor],
        told: Any = None,
    ) -> None:
        """Append one entry. On the meta device nothing is computed."""
        if any(tensor.is_meta for tensor in outputs):
            return
        reads = {self.group(t) for t in given}
        reads |= {self.groups[s.number] for s in slots_in(stored)}
        writes = {self.group(t) for t in mutated}
        results: list[TapeSlot] = []
        drifts = bool(reads & self.drifting)
        for tensor in outputs:
            twin = next((t for t in given if t is tensor), None)
            if twin is not None:
                results.append(self.slot(tensor))  # `x.float()` of a float32 tensor is x
                continue
            memory = storage(tensor)
            alias = next((t for t in given if memory and storage(t) == memory), None)
            slot = self.fresh(self.group(alias) if alias is not None else None)
            self.bind(tensor, slot)
            results.append(slot)
            writes.add(self.groups[slot.number])
            if name in COMPARES and not tensor.is_floating_point():
                small = tensor.numel() <= MOST_CHOSEN
                self.compared[slot.number] = zlib.crc32(raw_bytes(tensor)) if small else None
        self.drifting |= writes if drifts else set()
        entry = TapeEntry(
            func,
            name,
            *stored,
            results,
            reads,
            writes,
            torch.is_grad_enabled(),
            self.filled(name, given),
            any(tensor.dtype in NARROW for tensor in outputs),
            in_16_bits(outputs),
            torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled(),
            told,
        )
        self.entries.append(entry)
        self.full = len(self.entries) >= MOST_ENTRIES

    def filled(self, name: str, given: list[torch.Tensor]) -> int:
        """The group that a call leaves nothing of: what was there before does not matter."""
        if name not in FILLS or not given:
            return 0
        group = self.group(given[0])
        bytes_ = given[0].numel() * given[0].element_size()
        with contextlib.suppress(RuntimeError, NotImplementedError):
            whole = given[0].is_contiguous() and given[0].untyped_storage().nbytes() == bytes_
            return group if whole and group not in map(self.group, given[1:]) else 0
        return 0

    def wrote(self, groups: set[int]) -> None:
        """The call that just ran has changed these: it stays on the tape."""
        for external in self.externals.values() if groups else ():
            if self.groups[external.slot.number] in groups:
                self.changed[external.slot.number] = external
                external.version = version(external.tensor)

    def attribute(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """`x.T` is a call; `p.data = x` a change; sizes and types are nothing."""
        what = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "__set__" and what == "data" and isinstance(args[1], torch.Tensor):
            external = self.externals.get(self.slot(args[0]).number)
            source = self.slot(args[1])
            self.keep([args[0]])
            self.drifting.add(self.group(args[0]))
            made = func(*args, **kwargs)
            self.bind(args[0], source)
            if external is not None:
                self.changed[source.number] = external
            return made
        made = func(*args, **kwargs)
        if isinstance(made, torch.Tensor) and what == "data":
            # The same memory under a version counter of its own: keep what was there.
            self.keep([args[0]])
            self.tables.forget(args[0])
            self.bind(made, self.slot(args[0]))
        elif isinstance(made, torch.Tensor) and what in VIEWS:
            self.note(func, what, (self.stored(args), {}), [args[0]], [made], [])
        return made

    def draw(
        self, name: str, outputs: list[Any], mutated: list[Any], args: Any, kwargs: Any
    ) -> None:
        """Random numbers come from elsewhere; what they are drawn by is the program's."""
        by = [self.held(tensor, name) for tensor in drawn_by(name, args, kwargs)]
        for tensor in outputs or mutated:
            self.roles[id(tensor)] = (weakref.ref(tensor), f"draw:{name.rstrip('_')}")
            self.known.pop(id(tensor), None)
            number = self.slot(tensor).number
            self.drawn_by[number] = by
            state = state_after(kwargs.get("generator"), tensor)
            if state is not None:
                self.states[number] = state
        generator = kwargs.get("generator")
        if isinstance(generator, torch.Generator):
            self.seeds.note(generator)

    def held(self, tensor: torch.Tensor, name: str) -> TapeSlot:
        """The value of a tensor as a draw takes it; the program may change it afterwards."""
        slot = self.slot(tensor)
        if slot.number not in self.externals:
            copied = tensor.detach().clone()
            self.note(torch.clone, "clone", ((slot,), {}), [tensor], [copied], [])
            slot = self.slot(copied)
            self.drawn.append((name, slot))
        return slot

    def number(self, made: float, call: Callable[..., Any], args: Any) -> Any:
        """A number that the tape can compute again."""
        if not self.active():
            return made
        slot = self.fresh(None)
        reads = {self.group(t) for t in tensors_in(args)}
        reads |= {
            self.groups[n.slot.number] for n in numbers_in(args) if n.slot.number in self.groups
        }
        stored = self.stored(args)
        group = self.groups[slot.number]
        self.drifting.add(group)
        self.entries.append(TapeEntry(call, "number", stored, {}, [slot], reads, {group}, False))
        number = Number(made)
        number.slot, number.tape = slot, self
        number.computed = bool(list(numbers_in(args)))
        return number

    def show(self, how: str, slot: TapeSlot) -> None:
        """The program writes a number that it has computed: a result, while its step goes on."""
        if self.active() and slot.number in self.groups:
            self.reads(how, slot)

    def reads(self, how: str, slot: TapeSlot) -> None:
        """The program reads a value as numbers."""
        self.read.append((how, slot))
        self.read_at.setdefault(slot.number, where())

    def saves(self, tensor: torch.Tensor) -> None:
        """The program writes a tensor to a file: a result, unless it is a copy of what came from
        elsewhere, as a weight is."""
        slot = self.slot(tensor)
        copies = {*AS_IT_IS, *device_types()}
        if any(entry.name not in copies for entry in self.needed([slot])[0]):
            self.reads("save", slot)

    def keep(self, given: Iterable[torch.Tensor]) -> None:
        """Copy externals that the next call may change."""
        groups = {self.group(tensor) for tensor in given}
        for external in self.externals.values():
            if external.kept is None and self.groups[external.slot.number] in groups:
                value = external.value()
                external.kept = value.clone() if value is not None else None

    def slot(self, tensor: torch.Tensor) -> TapeSlot:
        """The slot of a tensor; one that the tape doesn't know comes from elsewhere."""
        held = self.known.get(id(tensor))
        if held is not None and held[0]() is tensor:
            external = self.externals.get(held[1].number)
            stale = external is not None and external.tensor is tensor
            if not stale or external is None or external.version == version(tensor):
                return held[1]
        memory = storage(tensor)
        slot = self.fresh(self.stores.get(memory) if memory else None)
        if memory:
            self.stores[memory] = self.groups[slot.number]
        self.bind(tensor, slot)
        named = self.roles.get(id(tensor))
        role = named[1] if named is not None and named[0]() is tensor else self.role(tensor)
        self.externals[slot.number] = External(
            slot, tensor, version(tensor), role, differentiable=tensor.requires_grad
        )
        if role.startswith("draw:") or (self.begun and not role.startswith(("made:", "table"))):
            self.drifting.add(self.groups[slot.number])
        return slot

    def fresh(self, group: int | None) -> TapeSlot:
        """A new slot, in a group of its own or in one that is known."""
        self.count += 1
        self.groups[self.count] = self.count if group is None else group
        return TapeSlot(self.count)

    def bind(self, tensor: torch.Tensor, slot: TapeSlot) -> None:
        """This tensor is that value."""
        self.known[id(tensor)] = (weakref.ref(tensor), slot)

    def group(self, tensor: torch.Tensor) -> int:
        """The group of a tensor's slot."""
        return self.groups[self.slot(tensor).number]

    def computed_or_changed(self, tensor: torch.Tensor) -> bool:
        """Whether the tape has made or changed this tensor."""
        held = self.known.get(id(tensor))
        if held is None or held[0]() is not tensor:
            return False
        return held[1].number not in self.externals or held[1].number in self.changed

    def call_as(self, tensor: torch.Tensor, role: str) -> None:
        """Give a tensor that comes from elsewhere its name."""
        self.roles[id(tensor)] = (weakref.ref(tensor), role)
        self.known.pop(id(tensor), None)

    def role_of(self, tensor: torch.Tensor) -> str:
        """The name that a tensor from elsewhere was given; empty without one."""
        named = self.roles.get(id(tensor))
        return named[1] if named is not None and named[0]() is tensor else ""

    def called_as(self, role: str) -> torch.Tensor | None:
        """The tensor of that name, with the value that it came with."""
        tensor = next((ref() for ref, name in self.roles.values() if name == role), None)
        if tensor is None:
            return None
        external = next((e for e in self.externals.values() if e.tensor is tensor), None)
        return external.value() if external is not None else tensor.detach()

    def computed(self, tensor: torch.Tensor) -> bool:
        """Whether the tape made this tensor."""
        held = self.known.get(id(tensor))
        return held is not None and held[0]() is tensor and held[1].number not in self.externals

    def stored(self, value: Any) -> Any:
        """Arguments with slots for tensors."""

        def store(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return self.slot(leaf)
            if isinstance(leaf, Number):
                return leaf.slot if leaf.slot.number in self.groups else float(leaf)
            return leaf

        return map_leaves(value, store)

    # -- running again ---------------------------------------------------------------------------

    def needed(self, sinks: Sequence[TapeSlot]) -> tuple[list[TapeEntry], list[External], bool]:
        """The entries and externals that some values come from, in the order in which they are
        used, and whether a plain number was read from one of them on the way."""
        groups = {self.groups[slot.number] for slot in sinks}
        used = {slot.number for slot in sinks}
        wanted = []
        for entry in reversed(self.entries):
            valued = bool(entry.writes & groups)
            made = used.intersection(slot.number for slot in entry.results)
            if not valued and not made:
                continue
            given = {slot.number for slot in slots_in((entry.args, entry.kwargs))}
            # A view that was made before all of its memory was replaced: no value of it matters.
            if valued or made - given:
                wanted.append(entry)
                used |= given
            if valued:
                groups |= entry.reads | entry.writes
                groups.discard(entry.fills)
        groups |= {group for entry in wanted for group in entry.reads | entry.writes}
        wanted.reverse()
        # What only one side looks at before (a stand-in, a vendor's wrapper) moves nothing.
        uses = [slot.number for entry in wanted for slot in slots_in((entry.args, entry.kwargs))]
        place = {number: at for at, number in reversed([*enumerate(uses)])}
        outside = [e for e in self.externals.values() if e.slot.number in used]
        outside.sort(key=lambda e: place.get(e.slot.number, len(uses)))
        return wanted, outside, bool(groups & self.untraced)

    def replaced(self, entries: Sequence[TapeEntry]) -> set[int]:
        """Slots of what these entries overwrite before they read it: weights of a new model, say,
        that are loaded at once."""
        touched: set[int] = set()
        found: set[int] = set()
        seen: set[int] = set()  # slots so far
        for entry in entries:
            given = {slot.number for slot in slots_in((entry.args, entry.kwargs))}
            seen |= given
            if entry.fills and entry.fills not in touched:
                found |= {slot for slot in seen if self.groups[slot] == entry.fills}
            made = {slot.number for slot in entry.results}
            if not (made and made.isdisjoint(given) and entry.writes <= entry.reads):  # a view
                touched |= entry.reads | entry.writes
        return found

    def rerun(
        self,
        sinks: Sequence[TapeSlot],
        values: Mapping[int, torch.Tensor],
        *,
        gradients: bool = False,
        constants: Sequence[float] = (),
    ) -> Rerun:
        """Compute the sinks again in float64 on the CPU. `values` replace externals by slot,
        `constants` the plain numbers in the calls, in their order.

        Raises RuntimeError where the value of an external is gone, and what torch raises.
        """
        entries, outside, _ = self.needed(sinks)
        if constants:
            entries = with_constants(entries, constants)
        changes = any(is_inplace(e.name, e.kwargs, e.args) for e in entries)
        env: dict[int, Any] = {}
        starts: dict[str, torch.Tensor] = {}
        with keep_generators(), exactly(), default_of(torch.float64), torch.enable_grad():
            for external in outside:
                value = values.get(external.slot.number, external.value())
                if value is None:
                    raise RuntimeError(f"{external.role} was changed by other code")
                wide = widen(value)
                if gradients and external.differentiable and wide.is_floating_point():
                    wide.requires_grad_(True)
                    starts[f"{external.role}@{external.slot.number}"] = wide
                    wide = wide.clone() if changes else wide
                env[external.slot.number] = wide
            for entry in entries:
                with torch.set_grad_enabled(entry.gradients):
                    made = run_entry(entry, env)
                if entry.name == "number":
                    env[entry.results[0].number] = made
                    continue
                for slot, tensor in zip(entry.results, tensors_in(made), strict=True):
                    # What the program rounds to another type stays rounded, in float64.
                    narrow = tensor.is_floating_point() and tensor.dtype != torch.float64
                    env[slot.number] = tensor.double() if narrow else tensor
            result = Rerun([env[slot.number] for slot in sinks])
            if gradients and starts:
                end = result.values[0]
                if end.requires_grad:
                    got = torch.autograd.grad(
                        end.sum(), list(starts.values()), allow_unused=True, retain_graph=False
                    )
                    result.gradients = dict(zip(starts, got, strict=True))
        return result

    def find_wrong_call(self, sinks: Sequence[TapeSlot]) -> dict[str, Any] | None:
        """The first call behind some values that is wrong by itself, on the operands that it had
        here, and how both sides tell it (`call`). Raises what torch raises."""
        entries, outside, _ = self.needed(sinks)
        held = {e.slot.number: e.value() for e in outside}
        env: dict[int, Any] = {n: copy_as(value) for n, value in held.items() if value is not None}

        def place(leaf: Any) -> Any:
            return env[leaf.number] if isinstance(leaf, TapeSlot) else leaf

        with keep_generators(), torch.no_grad():
            for entry in entries:
                args, kwargs = (map_leaves(v, place) for v in (entry.args, entry.kwargs))
                found = look_at(entry.call, args, kwargs) if entry.told is not None else None
                if found is not None:
                    return {**{k: v for k, v in found.items() if k != "case"}, "call": entry.told}
                made = entry.call(*args, **kwargs)
                results = [made] if entry.name == "number" else tensors_in(made)
                numbers = [slot.number for slot in entry.results]
                env.update(zip(numbers, results, strict=True))
        return None


def in_16_bits(outputs: Iterable[torch.Tensor]) -> bool:
    """Whether autocast made a call's results what they are."""
    return any(t.dtype in NARROW and torch.is_autocast_enabled(t.device.type) for t in outputs)


def read_by_library() -> bool:
    """Whether torch reads a value for itself: an optimiser's own count, a scaler's found overflow.

    Only one side may do so (a fused optimiser reads nothing), and it is no result of the program.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(LIBRARY):
            return True
        if not file.startswith(INNER):
            return False
        frame = frame.f_back
    return False
