"""Records one process: what its modules see and make, step by step, and writes it as it goes.

A step ends with the first top-level call after an optimiser's step; in a program without an
optimiser, with the next call of the same outermost module. Nothing in a step waits for the device.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec

import numpy as np
import torch
from safetensors.numpy import save

from joymigrate.verify import crash, graphs, origins, pytree
from joymigrate.verify.arguments import Arguments
from joymigrate.verify.bundle.table import index_bytes
from joymigrate.verify.bundle.write import RankWriter
from joymigrate.verify.environment import environment
from joymigrate.verify.handed_batches import BatchGiver, BatchKeeper
from joymigrate.verify.identity_map import IdentityMap
from joymigrate.verify.inventory import Inventory, hashable, tensor_hash
from joymigrate.verify.log import Log
from joymigrate.verify.modes import is_training, mode_of
from joymigrate.verify.module_names import ModuleNames, plain, unwrapped
from joymigrate.verify.module_replay import ModuleReplay
from joymigrate.verify.optimisers import probe, settings_of
from joymigrate.verify.printing import Printing
from joymigrate.verify.program_log import ProgramLog
from joymigrate.verify.ranks import data_parallel, holds_whole, mesh, rank_and_world
from joymigrate.verify.replay_session import ReplaySession
from joymigrate.verify.run_watch import RunWatch
from joymigrate.verify.settings import Settings
from joymigrate.verify.shard_map import ShardMap, Spread
from joymigrate.verify.sketch import Shard
from joymigrate.verify.step_tape import StepTape
from joymigrate.verify.tape_entries import storage

LATE = 4  # from this step on, every power of two is looked at
WATCHED_CALLS = 16  # of a mode that first shows after the recorded steps
MOST_CALLS = {True: 16, False: 4}  # of one module in one step, with gradients and without

Given = ParamSpec("Given")
Work = Callable[Concatenate["Recorder", Given], None]


def own(method: Work[Given]) -> Work[Given]:
    """Calls of torch in this method are ours. The tape can't always be taken off: a mode that the
    program entered after it lies above."""

    @functools.wraps(method)
    def work(self: Recorder, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        with self.own_work():
            method(self, *args, **kwargs)

    return work


class Recorder:
    """The state of a recording in one process."""

    def __init__(self, settings: Settings, stop: Callable[[], None]) -> None:
        self.settings = settings
        self.stop = stop  # puts back what was patched
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.module_names = ModuleNames()
        self.log = Log()
        self.inventory = Inventory()
        self.shard_map = ShardMap()
        self.replay_session = ReplaySession(settings, self.open_writer)
        self.module_replay: ModuleReplay | None = None
        self.tape = StepTape(self)
        self.log_of_program = ProgramLog()
        self.run_watch = RunWatch()
        kept = settings.arguments
        self.arguments = Arguments(kept, settings.arguments_bytes) if kept else None
        most = settings.batches_bytes
        self.batch_keeper = BatchKeeper(most) if most else None
        baseline = self.replay_session.baseline
        wanted = settings.give_batches and baseline is not None
        self.batch_giver = BatchGiver(baseline.rank) if wanted and baseline is not None else None
        self.printing = Printing(lambda: os.getpid() == self.process and not self.busy)
        self.updating = False  # an optimiser is at work
        self.new_mode = 0  # calls left that are looked at because their mode is new
        self.modes: set[str] = set()
        self.called_any = False  # whether any model was called yet
        self.busy = False  # our own work, which is not recorded
        self.fetching = False  # a loader makes a batch
        self.step = 0
        self.stepped = False
        self.optimisers = 0
        self.probed: IdentityMap[set[str]] = IdentityMap()  # settings by optimiser
        self.called: set[str] = set()
        self.trained: set[str] = set()
        self.stack: list[str] = []
        self.inner: Any = None  # the module of the wrapper that is being called
        self.calls: dict[str, int] = {}
        self.facts: dict[str, Any] = {}
        self.inputs: list[tuple[str, int, str, torch.Tensor, bool]] = []
        self.made: dict[int, torch.Tensor] = {}  # results of top-level calls, by storage
        self.batches: list[dict[str, Any]] = []
        self.given: list[int] = []  # of these the program got the baseline's
        self.spread: tuple[int, int, int] | None = None  # rank, world, rows of the local batch
        self.copies_done = False  # gradients beside copies of parameters are in this step
        self.lossed = False  # a backward pass has begun in this step
        self.transformed: set[str] = set()  # transforms that gave gradients in this step
        self.writer: RankWriter | None = None
        self.notes: list[str] = []
        self.over = False
        self.broken = False  # a step could not be written

    # -- what is watched -------------------------------------------------------------------------

    def watches(self) -> bool:
        """Whether module calls of this moment are the program's own forward."""
        return not (
            self.over
            or self.busy
            or torch._C._current_graph_task_id() >= 0
            or graphs.is_tracing()
            or threading.get_ident() != self.thread
            or os.getpid() != self.process
        )

    @property
    def recording(self) -> bool:
        """Whether this step is recorded."""
        return self.settings.wants(self.step)

    @property
    def exact(self) -> bool:
        """Whether the rest of this step is recorded: in the recorded steps, at every power of two
        after them, and for the first calls of a mode that is new."""
        if self.over or self.step < self.settings.first:
            return False
        late = self.step >= LATE and self.step & (self.step - 1) == 0
        return self.recording or late or self.new_mode > 0

    def call(self, module: Any, args: Any, kwargs: Any, real: Callable[..., Any]) -> Any:
        """One module call of the program."""
        if not self.stack:
            return self.root_call(module, args, kwargs, real)
        if module is self.inner:  # its wrapper's call is the same call
            self.inner = None
            return real(module, *args, **kwargs)
        if not self.recording:
            return real(module, *args, **kwargs)
        place = self.module_names.find(module)
        if place is None:
            return real(module, *args, **kwargs)
        if self.replay_session.in_window(place[1]):
            self.replay_call(*place, module, args, kwargs)
        return self.recorded(":".join(place), module, args, kwargs, real)

    def root_call(self, module: Any, args: Any, kwargs: Any, real: Callable[..., Any]) -> Any:
        """A call from outside of any module: steps begin and end here."""
        root, path = self.module_names.open(module)
        closes = self.stepped or (not self.optimisers and root in self.called)
        self.tape.inputs(f"{root}:{path}", args, kwargs, ahead=int(closes))
        if not self.called_any:  # what came before made the weights
            self.called_any = True
            self.tape.tape.clear()
            with self.own_work():
                self.run_watch.begin()
        if closes:
            self.close_step()
        if self.over:
            return real(module, *args, **kwargs)
        self.called.add(root)
        if torch.is_grad_enabled():
            self.trained.add(root)
        self.log_of_program.call(root, is_training(module), torch.is_grad_enabled(), self.step)
        fresh = self.is_new_mode(root, path, module, args, kwargs)
        self.tape.leave()
        self.watch_call(f"{root}:{path}", pytree.arguments(args, kwargs))
        try:
            if self.recording:
                made = self.recorded_root(root, path, module, args, kwargs, real)
                self.watch_result(f"{root}:{path}", made)
                return made
            if fresh and not self.settings.window:
                self.see(root)
                self.replay_call(root, path, module, args, kwargs)
            place = f"{root}:{path}"
            number = self.calls[place] = self.calls.get(place, -1) + 1
            self.stack.append(root)
            try:
                made = real(module, *args, **kwargs)
            finally:
                self.stack.pop()
            self.tape.outputs(place, number, made)
            self.watch_result(place, made)
            return made
        finally:
            if self.exact:
                self.tape.enter()

    def watch_call(self, place: str, given: dict[str, Any]) -> None:
        """A model's call, as it is seen in every step."""
        leaves = pytree.tensors(given, objects=True)
        derived = {id(t): self.is_derived(t) for _, t in leaves} if self.recording else None
        with self.own_work():
            self.run_watch.call(place, self.step, given, derived)

    def watch_result(self, place: str, made: Any) -> None:
        """A model's result in a call without gradients, as it is seen in every step."""
        if not torch.is_grad_enabled() and not self.over:
            with self.own_work():
                self.run_watch.result(place, self.step, made)

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Calls of torch in here are not the program's."""
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def is_derived(self, tensor: torch.Tensor) -> bool:
        """Whether an input is made from what a model returned."""
        return (
            tensor.grad_fn is not None
            or (type(tensor) is torch.Tensor and storage(tensor) in self.made)
            or id(tensor) in self.tape.derived
        )

    def is_new_mode(self, root: str, path: str, module: Any, args: Any, kwargs: Any) -> bool:
        """Whether a model is called in a way that was not seen before."""
        mode = f"{root}:{path} {mode_of(module, args, kwargs)}"
        if mode in self.modes:
            self.new_mode = max(0, self.new_mode - 1)
            return False
        self.modes.add(mode)
        if not self.recording and self.settings.first <= self.step:
            self.new_mode = WATCHED_CALLS
        return True

    def recorded_root(
        self, root: str, path: str, module: Any, args: Any, kwargs: Any, real: Any
    ) -> Any:
        """A model's call in a recorded step."""
        self.see(root)
        self.spread = data_parallel(module, (args, kwargs))
        whole = self.spread is None or self.spread[1] == 1 or holds_whole(module)
        if whole and (not self.settings.window or self.replay_session.in_window(path)):
            self.replay_call(root, path, module, args, kwargs)
        return self.recorded(f"{root}:{path}", module, args, kwargs, real)

    def loaded(self, module: Any) -> None:
        """A state was loaded into a model that was called before: after which step it was made."""
        found = self.module_names.find(unwrapped(module))
        if found is None or found[1] or not self.watches():
            return
        with self.own_work():
            steps = origins.steps_of_model(found[0], unwrapped(module), self.run_watch)
            if steps is not None:
                self.run_watch.note(f"loaded {found[0]}", self.step, max(steps, default=-1))

    @own
    def see(self, root: str) -> None:
        """Note a model's modules and weights, the first time, and what training made of them."""
        if root in self.inventory.known:
            return
        self.inventory.see(self.module_names, root)
        if self.step > self.settings.first:
            roots, kept = self.module_names, self.inventory
            found = origins.sources(roots, kept.known, kept.weights, root)
            kept.origins |= origins.describe(roots, root, found, self.run_watch)

    def replay_call(self, root: str, path: str, module: Any, args: Any, kwargs: Any) -> None:
        """Passes over copies of the module, before the call itself."""
        self.busy = True
        try:
            self.replay_session.replay_call(self, root, path, unwrapped(module), args, kwargs)
        except Exception as error:  # ours to bear: the program goes on without
            self.module_replay = None
            what = str(error).splitlines()[0][:200] if str(error) else ""
            self.notes.append(f"{root}:{path} is not replayed: {type(error).__name__} {what}")
        finally:
            self.busy = False

    def hold(self, replay: ModuleReplay | None) -> None:
        """Which pass gets module calls."""
        self.module_replay = replay

    def recorded(
        self, place: str, module: Any, args: Any, kwargs: Any, real: Callable[..., Any]
    ) -> Any:
        """One call with its inputs and outputs recorded."""
        number = self.calls[place] = self.calls.get(place, -1) + 1
        wanted = number < MOST_CALLS[torch.is_grad_enabled()]
        if wanted:
            self.arguments_of(place, number, module, pytree.arguments(args, kwargs))
        self.stack.append(place)
        inner = unwrapped(module)
        self.inner = inner if inner is not module else None
        try:
            made = real(module, *args, **kwargs)
        finally:
            self.stack.pop()
            self.inner = None
        if wanted:
            self.outputs(place, number, made)
        if not self.stack:
            self.tape.outputs(place, number, made)
            with self.own_work():
                for _, tensor in pytree.tensors(made):
                    if memory := storage(tensor):
                        self.made[memory] = tensor.detach()
        return made

    @own
    def arguments_of(self, place: str, number: int, module: Any, given: dict[str, Any]) -> None:
        """Record what a call was given."""
        if not self.stack:
            self.keep_inputs(place, number, given)
        if self.settings.inputs or not self.stack:
            for leaf, tensor in pytree.tensors(given):
                self.add(place, number, "in", leaf, tensor)
        if self.step == self.settings.first and number == 0:
            self.inventory.scalars[place] = pytree.scalars(given)
        self.facts.setdefault("training", {}).setdefault(place, []).append(int(is_training(module)))

    @own
    def outputs(self, place: str, number: int, made: Any) -> None:
        """Record what a call made, and the gradients that will come back to it."""
        for leaf, tensor in pytree.tensors(made):
            self.add(place, number, "out", leaf, tensor)
            if not (self.settings.gradients and tensor.requires_grad and tensor.grad_fn):
                continue
            hook = self.coming_back(place, number, leaf, self.shard_map.of(tensor))
            tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def coming_back(
        self, place: str, number: int, leaf: str, spread: Spread | None
    ) -> Callable[[torch.Tensor | None], None]:
        """A hook that records the gradient of one output, if it comes within the step.

        torch gives None for an output of a function that another output's gradient alone reaches.
        """
        step = self.step

        def hook(gradient: torch.Tensor | None) -> None:
            if gradient is not None and self.step == step and not self.over:
                self.add(place, number, "gout", leaf, gradient, spread)

        return hook

    def add(
        self,
        place: str,
        number: int,
        kind: str,
        leaf: str,
        tensor: torch.Tensor,
        spread: Spread | None = None,
    ) -> None:
        """Record one tensor of the step."""
        spread = spread or self.shard_map.of(tensor)
        if self.spread and tensor.dim() and kind in ("in", "out", "gout"):
            rank, world, rows = self.spread
            if rows and tensor.shape[0] % rows == 0:
                offset = (rank * tensor.shape[0], *([0] * (tensor.dim() - 1)))
                shape = (world * tensor.shape[0], *tensor.shape[1:])
                spread = ("batch", Shard(offset, shape))
                # The processes' gradients are averaged: theirs of a mean loss is `world` times one
                # process's share.
                tensor = tensor.detach() / world if kind == "gout" else tensor
        self.log.add(place, number, kind, leaf, tensor, spread)

    def keep_inputs(self, place: str, number: int, given: dict[str, Any]) -> None:
        """Copies of a top-level call's inputs: the batch, whose bytes identify it."""
        for leaf, tensor in pytree.tensors(given, objects=True):
            if type(tensor) is torch.Tensor and hashable(tensor):
                kept = tensor.detach().clone()
                self.inputs.append((place, number, leaf, kept, self.is_derived(tensor)))

    # -- optimisers and losses -------------------------------------------------------------------

    def before_update(self, optimiser: Any) -> None:
        """Gradients as the optimiser gets them, its settings, and what its code does."""
        if not self.watches():
            return
        self.tape.before_update(optimiser)
        self.log_of_program.update(optimiser)
        self.updating = True
        if self.recording:
            self.gradients_of(optimiser)

    @own
    def gradients_of(self, optimiser: Any) -> None:
        """The gradients of an optimiser's weights, its settings, and what its code does."""
        names = self.inventory.parameter_names(self.module_names)
        groups: list[dict[str, Any]] = []
        for group in optimiser.param_groups:
            held = [names.get(id(p), f"?:{i}") for i, p in enumerate(group["params"])]
            groups.append({"settings": settings_of(group), "params": held})
            for name, parameter in zip(held, group["params"], strict=True):
                if parameter.grad is not None and self.settings.gradients:
                    place, _, leaf = name.rpartition(".")
                    self.log.add(place, 0, "grad", leaf, parameter.grad)
        if not any(id(p) in names for g in optimiser.param_groups for p in g["params"]):
            self.copied_gradients()
        # The learning rate changes at every step of a schedule; the code does not.
        kind = [{**g["settings"], "lr": None, "initial_lr": None} for g in groups]
        probed = self.probed.setdefault(optimiser, set())
        results: list[dict[str, Any]] = []
        if str(kind) not in probed:
            probed.add(str(kind))
            results = probe(optimiser)
        entry = {"class": type(optimiser).__name__, "groups": groups, "probe": results}
        self.facts.setdefault("optimisers", []).append(entry)

    def copied_gradients(self) -> None:
        """Gradients of models whose optimiser works on copies of their parameters."""
        if not self.settings.gradients or self.copies_done:
            return
        self.copies_done = True
        for root in sorted(self.trained):
            for name, parameter in self.module_names.modules[root].named_parameters():
                place, _, leaf = f"{root}:{name}".rpartition(".")
                place, leaf = (place, leaf) if place else (f"{root}:", name)
                if parameter.grad is not None:
                    self.log.add(place, 0, "grad", leaf, parameter.grad)

    def after_update(self, optimiser: Any) -> None:
        """Parameters and state after the update; the step's end is near."""
        if not self.watches():  # the probe's step is ours
            return
        self.updating = False
        self.stepped = True
        if self.recording:
            self.results_of(optimiser)

    @own
    def results_of(self, optimiser: Any) -> None:
        """The weights and the state of an optimiser."""
        names = self.inventory.parameter_names(self.module_names)
        for group in optimiser.param_groups:
            for index, parameter in enumerate(group["params"]):
                place, _, leaf = names.get(id(parameter), f"?:{index}").rpartition(".")
                self.log.add(place, 0, "param", leaf, parameter)
                for key, value in optimiser.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor) and value.dim():
                        self.log.add(place, 0, "state", f"{leaf}.{key}", value)

    def loss(self, tensors: Any) -> None:
        """What a backward pass begins with."""
        if not self.watches():
            return
        self.log_of_program.backward += 1
        with self.own_work():
            self.run_watch.loss(self.step, tensors)
        functional = not self.called and not self.tape.differentiating
        if functional and self.lossed:  # a program without modules: a step ends here
            self.tape.end_of_step(clear=False)
            self.close_step(functional=True)
            self.tape.loss(tensors)
            self.tape.tape.clear()
        else:
            self.tape.loss(tensors)
            if functional:
                self.tape.tape.clear()
        self.lossed = True
        if not self.recording:
            return
        given = tensors if isinstance(tensors, list | tuple) else [tensors]
        for tensor in given:
            if isinstance(tensor, torch.Tensor) and tensor.numel() == 1:
                number = self.calls["loss:"] = self.calls.get("loss:", -1) + 1
                with self.own_work():
                    self.add_loss(number, tensor.detach().reshape(1))

    def add_loss(self, number: int, value: torch.Tensor) -> None:
        """Record a loss of one element."""
        if self.spread and self.spread[1] > 1:  # each process has its own mean
            value = value / self.spread[1]
            self.log.add("loss:", number, "loss", "", value, ("partial", Shard((0,), (1,))))
        else:
            self.log.add("loss:", number, "loss", "", value)

    def transform(self, call: Any, name: str, given: Any) -> None:
        """Gradients by a transform of torch.func: without modules, its next call begins a step."""
        self.log_of_program.backward += 1
        alone = not self.called and not self.optimisers
        key = f"{name} {id(getattr(call, 'origin', call))}"
        closes = alone and key in self.transformed
        if alone and not self.called_any:  # what came before made the weights
            self.called_any = True
            self.tape.tape.clear()
            with self.own_work():
                self.run_watch.begin()
        self.tape.arguments(name, given, closes)
        if not alone:
            return
        if closes:
            self.tape.end_of_step()
            self.close_step(functional=True)
        self.transformed.add(key)

    def batch(self, iterator: Any, value: Any) -> Any:
        """A batch that a data loader hands out; what the program gets is returned."""
        if self.over or os.getpid() != self.process:
            return value
        with self.own_work():
            loader, number = self.run_watch.batch(iterator, value)
            if self.batch_keeper is not None:
                self.batch_keeper.keep(loader, number, value, self.open_writer)
            giver, handed = self.batch_giver, value
            if giver is not None:
                handed = giver.give(loader, number, value)
        self.tape.handed_out(handed)
        if len(self.batches) > 4 * (self.settings.last + 1):
            return handed
        found = {}
        with self.own_work():
            for leaf, tensor in pytree.tensors(value, objects=True):
                if tensor.device.type == "cpu" and hashable(tensor):
                    found[leaf] = tensor_hash(tensor)
        self.batches.append(found)
        if handed is not value:
            self.given.append(len(self.batches) - 1)
        return handed

    # -- writing ---------------------------------------------------------------------------------

    def close_step(self, functional: bool = False) -> None:
        """End a step and write it."""
        if self.over:
            return
        if not functional:
            self.tape.end_of_step()
        with self.own_work():
            self.run_watch.end_of_step(self.step, self.models(), self.exact)
        if self.recording and self.worth_writing():
            if not self.optimisers:
                self.own_update()
            self.buffers()
            try:
                self.flush()
            except OSError as error:
                self.stopped(error)
                self.inputs = []
                self.finish()
                return
        self.step += 1
        self.stepped = False
        self.called.clear()
        self.trained.clear()
        self.calls.clear()
        self.facts, self.inputs, self.made = {}, [], {}
        self.lossed = functional
        self.copies_done = False
        self.transformed.clear()
        if self.exact:
            self.tape.enter()
        else:
            self.tape.leave()

    def worth_writing(self) -> bool:
        """Whether anything of this step was recorded; a program without modules has events only."""
        alone = not self.module_names.modules and not self.broken
        return bool(self.log.meta or self.inputs or (alone and self.tape.events))

    def models(self) -> dict[str, Any]:
        """Models that were called with gradients in this step."""
        return {root: self.module_names.modules[root] for root in sorted(self.trained)}

    @own
    def buffers(self) -> None:
        """Buffers of trained models as a step ends, also those that nothing reads."""
        for root in sorted(self.trained):
            for name, buffer in self.module_names.modules[root].named_buffers():
                place, _, leaf = f"{root}:{plain(name)}".rpartition(".")
                place, leaf = (place, leaf) if place else (f"{root}:", plain(name))
                self.log.add(place, 0, "buffer", leaf, buffer)

    @own
    def own_update(self) -> None:
        """Parameters of a program that updates them without an optimiser of torch."""
        for root in sorted(self.trained):
            for name, parameter in self.module_names.modules[root].named_parameters():
                place, _, leaf = f"{root}:{name}".rpartition(".")
                place, leaf = (place, leaf) if place else (f"{root}:", name)
                if parameter.grad is not None and self.settings.gradients:
                    self.log.add(place, 0, "grad", leaf, parameter.grad)
                self.log.add(place, 0, "param", leaf, parameter)

    def flush(self) -> None:
        """Write the step: records, facts, and what was taught in it."""
        self.busy = True
        try:
            writer = self.open_writer()
            meta, stats, sketches = self.log.take()
            index = np.frombuffer(index_bytes(meta), np.uint8)
            arrays: dict[str, Any] = {"stats": stats, "sketch": sketches, "index": index}
            writer.add(f"step-{self.step}.safetensors", save(arrays))
            self.facts["inputs"] = [
                {"place": p, "call": c, "leaf": leaf, "derived": derived, **tensor_hash(tensor)}
                for p, c, leaf, tensor, derived in self.inputs
            ]
            writer.add_json(f"step-{self.step}.json", self.facts)
            self.replay_session.write(writer, self.step, self.inputs)
            self.tape.write(writer, self.step)
            if self.arguments is not None:
                self.arguments.write(writer)
            if self.batch_keeper is not None:
                self.batch_keeper.write(writer)
            writer.add_json("log.json", self.log_of_program.to_json())
            writer.add_json("watch.json", self.watched())
            writer.add_json("printed.json", self.printing.to_json())
            writer.add_json("program.json", self.program())
            writer.facts["steps"] = [*writer.facts.get("steps", []), self.step]
            writer.commit()
        finally:
            self.busy = False

    def flush_rest(self) -> None:
        """Write what was seen after the recorded steps."""
        self.busy = True
        try:
            writer = self.open_writer()
            if self.batch_keeper is not None:
                self.batch_keeper.write(writer)
            self.replay_session.write(writer, self.step, [])
            self.tape.write(writer, self.step)
            writer.add_json("log.json", self.log_of_program.to_json())
            writer.add_json("watch.json", self.watched())
            writer.add_json("printed.json", self.printing.to_json())
            writer.add_json("program.json", self.program())
            writer.commit()
        finally:
            self.busy = False

    def watched(self) -> dict[str, Any]:
        """What was seen of every step, and which batches were the baseline's."""
        given = self.batch_giver.given if self.batch_giver is not None else {}
        return {**self.run_watch.to_json(), "given": given}

    def program(self) -> dict[str, Any]:
        """Everything that is known once."""
        return {
            **self.inventory.to_json(self.module_names),
            "batches": self.batches,
            "given_batches": self.given,
            "environment": environment(),
            "optimisers": self.optimisers,
            "notes": [*self.notes, *self.replay_session.notes, *self.notes_of_parts()],
        }

    def notes_of_parts(self) -> list[str]:
        """What was kept of operators' arguments and of loaders' batches."""
        return [n for part in (self.arguments, self.batch_keeper) if part for n in part.notes()]

    def open_writer(self) -> RankWriter:
        """The writer of this process, once its rank is known."""
        if self.writer is None:
            rank, world = rank_and_world()
            folder = self.settings.path / f"rank-{rank}"
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                raise OSError(
                    errno.EEXIST, "another process of the program records as this rank"
                ) from None
            self.writer = RankWriter(folder, {"rank": rank, "world": world, "mesh": mesh()})
        return self.writer

    def finish(self) -> None:
        """End the recording in this process; at its end, say what ended it."""
        if os.getpid() != self.process:
            return
        if not self.over:
            self.end()
        broken = crash.uncaught()
        if broken is not None and self.writer is not None:
            self.writer.facts["crash"] = {"step": self.step, **broken}
            try:
                self.writer.commit()
            except OSError as error:
                self.say(f"the program's exception is not recorded: {error.strerror or error}")

    def end(self) -> None:
        """Write what is there of the step, and let go of torch."""
        self.tape.end_of_step()
        with self.own_work():
            self.run_watch.end_of_step(self.step, self.models(), self.exact)
        try:
            if self.recording and self.worth_writing():
                if not self.optimisers:
                    self.own_update()
                self.buffers()
                self.flush()
            elif self.writer is not None and not self.broken:
                self.flush_rest()
        except OSError as error:
            self.stopped(error)
        self.tape.leave()
        self.over = True
        self.stop()

    def stopped(self, error: OSError) -> None:
        """The step can't be written, and so none after it."""
        self.broken = True
        self.say(f"recording ends at step {self.step}: {error.strerror or error}")
        if error.errno and error.errno != errno.EEXIST:
            crash.leave_stop(self.settings.path, self.step, error.errno)

    def say(self, text: str) -> None:
        """A line for the user."""
        self.notes.append(text)
        print(f"verify: {text}", file=sys.stderr, flush=True)
