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
from typing import Any

import torch

from joymigrate.verify import crash, graphs, origins, pytree
from joymigrate.verify.arguments import ArgumentRecorder
from joymigrate.verify.inventory import ModuleInventory
from joymigrate.verify.loader_batches import BatchGiver, BatchKeeper
from joymigrate.verify.modes import is_training, mode_of
from joymigrate.verify.module_names import ModuleNames, unwrap
from joymigrate.verify.module_replay import ModuleReplay
from joymigrate.verify.optimisers import updates_of
from joymigrate.verify.plateaus import Plateaus
from joymigrate.verify.printing import Printing
from joymigrate.verify.program_log import ProgramLog
from joymigrate.verify.ranks import computes_alone, data_parallel
from joymigrate.verify.replay_session import ReplaySession
from joymigrate.verify.run_watch import RunWatch
from joymigrate.verify.settings import RecordingSettings
from joymigrate.verify.source_lines import where
from joymigrate.verify.step_files import StepFiles
from joymigrate.verify.step_tape import StepTape
from joymigrate.verify.step_values import StepValues
from joymigrate.verify.tape_entries import is_weight, storage
from joymigrate.verify.written_inputs import WrittenInputs

LATE = 4  # from this step on, every power of two is looked at
WATCHED_CALLS = 16  # of a mode that first shows after the recorded steps
LEAVING = 30.0  # seconds in which a program that is ended early may clean up
MOST_CALLS = {True: 16, False: 4}  # of one module in one step, with gradients and without


class Recorder:
    """The state of a recording in one process."""

    def __init__(self, settings: RecordingSettings, stop: Callable[[], None]) -> None:
        self.settings = settings
        self.stop = stop  # puts back what was patched
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.module_names = ModuleNames()
        self.inventory = ModuleInventory()
        self.values = StepValues(self)
        self.files = StepFiles(self)
        self.replay_session = ReplaySession(settings, self.files.open_writer)
        self.module_replay: ModuleReplay | None = None
        self.tape = StepTape(self)
        self.log_of_program = ProgramLog()
        self.run_watch = RunWatch()
        self.plateaus = Plateaus(self)
        kept = settings.arguments
        self.arguments = ArgumentRecorder(kept, settings.arguments_bytes) if kept else None
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
        self.by_hand = False  # weights are updated without any of the optimisers
        self.optimisers = 0
        self.called: set[str] = set()
        self.trained: set[str] = set()
        self.stack: list[str] = []
        self.root_calls = 0  # of models from outside of any, so far
        self.inner: Any = None  # the module of the wrapper that is being called
        self.calls: dict[str, int] = {}
        self.made: dict[int, torch.Tensor] = {}  # results of top-level calls, by storage
        self.written = WrittenInputs()
        self.lossed = False  # a backward pass has begun in this step
        self.transformed: set[str] = set()  # transforms that gave gradients in this step
        self.missed = 0  # calls of modules in other threads
        self.notes: list[str] = []
        self.lines: dict[str, str] = {}  # of first calls: modules by place, loss, update
        self.recorder_errors: list[Any] = []  # errors of our own that the program went on after
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
        """Whether the program's calls of this moment are recorded: in exact steps, and before them,
        after an update: what the next step's models are given is made there."""
        return self.is_exact(self.step) or (self.stepped and self.is_exact(self.step + 1))

    def is_exact(self, step: int) -> bool:
        """Whether the rest of a step is recorded: in the recorded steps, at every power of two
        after them, and for the first calls of a mode that is new."""
        if self.over or step < self.settings.first:
            return False
        late = step >= LATE and step & (step - 1) == 0
        return self.settings.wants(step) or late or self.new_mode > 0

    def is_missed(self) -> bool:
        """Whether a call of this moment is the program's own, in a thread that is not looked at."""
        return (
            threading.get_ident() != self.thread
            and not self.over
            and torch._C._current_graph_task_id() < 0
            and os.getpid() == self.process
        )

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
        self.root_calls += 1
        root, path = self.module_names.open(module)
        self.values.note_flat(module)
        self.inventory.changed()
        closes = self.closes(root)
        self.tape.inputs(f"{root}:{path}", module, args, kwargs, ahead=int(closes))
        if not self.called_any:  # what came before made the weights
            self.called_any = True
            with self.own_work():
                self.tape.tape.begin()
                self.run_watch.begin()
        if closes:
            self.close_step()
        if self.over:
            return real(module, *args, **kwargs)
        self.lines.setdefault(f"{root}:{path}", where())
        self.called.add(root)
        if torch.is_grad_enabled():
            self.trained.add(root)
        self.log_of_program.call(root, is_training(module), torch.is_grad_enabled(), self.step)
        fresh = self.is_new_mode(root, path, module, args, kwargs)
        self.tape.leave()
        self.watch_call(f"{root}:{path}", pytree.arguments(args, kwargs))
        try:
            if fresh and self.step != self.settings.first:  # training may have made its weights
                with self.own_work():
                    self.run_watch.held(root, self.step, self.module_names.modules[root])
            if self.recording:
                with self.own_work():
                    given = self.written.before(t for _, t in pytree.tensors((args, kwargs)))
                made = self.recorded_root(root, path, module, args, kwargs, real)
                with self.own_work():
                    self.written.after(given)
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

    def closes(self, root: str) -> bool:
        """Whether a call of this model begins another step: after an optimiser's update, and where
        the program updates by hand or not at all, the next call of the same model."""
        if self.stepped or root not in self.called:
            return self.stepped
        if self.lossed and not (self.by_hand or self.log_of_program.updates):
            changed = [external.tensor for external in self.tape.tape.changed.values()]
            # A weight that has no gradient is moved without being trained: an average, a copy.
            self.by_hand = any(is_weight(t) and t.grad is not None for t in changed)
        return self.by_hand or not self.optimisers

    def watch_call(self, place: str, given: dict[str, Any]) -> None:
        """A model's call, as it is seen in every step."""
        leaves = pytree.tensors(given, objects=True)
        derived = {id(t): self.is_derived(t) for _, t in leaves} if self.recording else None
        with self.own_work():
            chosen = bool(self.tape.tape.choices)
            self.run_watch.blind |= self.run_watch.chooses and not self.exact
            self.run_watch.call(place, self.step, given, derived, chosen)

    def watch_result(self, place: str, made: Any) -> None:
        """A model's result in a call without gradients, as it is seen in every step."""
        if not torch.is_grad_enabled() and not self.over:
            with self.own_work():
                self.run_watch.result(place, self.step, made)

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Calls of torch in here are not the program's, and no function mode sees them: a step has
        thousands of them."""
        before, self.busy = self.busy, True
        try:
            with torch._C.DisableTorchFunction():
                yield
        finally:
            self.busy = before

    def is_derived(self, tensor: torch.Tensor) -> bool:
        """Whether an input is made from what a model returned."""
        return (
            tensor.grad_fn is not None
            or (type(tensor) is torch.Tensor and storage(tensor) in self.made)
            or id(tensor) in self.tape.derived
            or self.written.has(tensor)
        )

    def fills_caches(self) -> bool:
        """Whether this is a recorded step of a program whose models write their inputs: the first
        call of a static cache tells nothing of how it is read."""
        return self.recording and bool(self.written.known)

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
        self.values.spread = data_parallel(module, (args, kwargs))
        whole = self.values.spread is None or self.values.spread[1] == 1 or computes_alone(module)
        if whole and (not self.settings.window or self.replay_session.in_window(path)):
            self.replay_call(root, path, module, args, kwargs)
        made = self.recorded(f"{root}:{path}", module, args, kwargs, real)
        with self.own_work():
            self.replay_session.confirm(root, path, made)
            self.replay_session.witness.hear(root, self.step, self.values.log)
        return made

    def loaded(self, module: Any) -> None:
        """A state was loaded into a model that was called before: after which step it was made."""
        found = self.module_names.find(unwrap(module))
        if found is None or found[1] or not self.watches():
            return
        with self.own_work():
            steps = origins.steps_of_model(found[0], unwrap(module), self.run_watch)
            if steps is not None:
                self.run_watch.note(f"loaded {found[0]}", self.step, max(steps, default=-1))

    def loaded_optimiser(self, optimiser: Any) -> None:
        """A state was loaded into an optimiser that has stepped: how many updates it has seen."""
        name = self.log_of_program.order.get(optimiser)
        if name is None or not self.watches():
            return
        with self.own_work():
            number = max(updates_of(optimiser), default=-1)
            self.run_watch.note(f"loaded {name}", self.step, number)

    def see(self, root: str) -> None:
        """Note a model's modules and weights, the first time and when it grew."""
        roots, kept = self.module_names, self.inventory
        if kept.is_complete(roots, root):
            return
        with self.own_work():
            roots.refresh(root)
            kept.see(roots, root, self.step)

    def replay_call(self, root: str, path: str, module: Any, args: Any, kwargs: Any) -> None:
        """Passes over copies of the module, before the call itself."""
        self.busy = True
        try:
            self.replay_session.replay_call(self, root, path, module, args, kwargs)
        except Exception as error:  # ours to bear: the program goes on without
            self.module_replay = None
            self.note_error(error)
            what = str(error).splitlines()[0][:200] if str(error) else ""
            self.notes.append(f"{root}:{path} is not replayed: {type(error).__name__} {what}")
        finally:
            self.busy = False

    def note_error(self, error: BaseException) -> None:
        """Note an exception that was caught, where it is our own."""
        said = crash.recorder_error(error)
        if said is not None and said not in self.recorder_errors:
            self.recorder_errors.append(said)

    def hold(self, replay: ModuleReplay | None) -> None:
        """Which pass gets module calls."""
        self.module_replay = replay

    def recorded(
        self, place: str, module: Any, args: Any, kwargs: Any, real: Callable[..., Any]
    ) -> Any:
        """One call with its inputs and outputs recorded."""
        number = self.calls[place] = self.calls.get(place, -1) + 1
        if place not in self.lines:
            self.lines[place] = where()
        wanted = number < MOST_CALLS[torch.is_grad_enabled()]
        if wanted:
            self.values.arguments_of(place, number, module, pytree.arguments(args, kwargs))
        self.stack.append(place)
        inner = unwrap(module)
        self.inner = inner if inner is not module else None
        try:
            made = real(module, *args, **kwargs)
        finally:
            self.stack.pop()
            self.inner = None
        if wanted:
            self.values.outputs(place, number, made)
        if not self.stack:
            self.tape.outputs(place, number, made)
            with self.own_work():
                for _, tensor in pytree.tensors(made):
                    if memory := storage(tensor):
                        self.made[memory] = tensor.detach()
        return made

    # -- optimisers and losses -------------------------------------------------------------------

    def before_update(self, optimiser: Any) -> None:
        """Gradients as the optimiser gets them, its settings, and what its code does."""
        if not self.watches():
            return
        self.tape.before_update(optimiser)
        self.lines.setdefault("update", where())
        self.log_of_program.update(optimiser)
        self.updating = True
        if self.recording:
            self.values.gradients_of(optimiser)
        self.tape.leave()  # thousands of calls that are not the program's

    def in_closure(self, optimiser: Any, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure that an optimiser's step calls: the program's own work, and its gradients are
        there after the first call."""
        self.log_of_program.update(optimiser)
        self.updating, first = True, True

        @functools.wraps(closure)
        def call() -> Any:
            nonlocal first
            self.updating = False
            made = closure()  # where it raises, no update is under way any more
            if first and self.watches():
                self.tape.before_update(optimiser)
            self.updating = True
            if first and self.watches() and self.recording:
                self.values.gradients_of(optimiser)
            first = False
            return made

        return call

    def after_update(self, optimiser: Any) -> None:
        """Parameters and state after the update; the step's end is near."""
        if not self.watches():  # the probe's step is ours
            return
        self.updating = False
        self.stepped = True
        with self.own_work():
            self.run_watch.updated(self.step)
        if self.recording:
            self.values.results_of(optimiser)
        if self.exact:
            self.tape.enter()

    def update_broke(self) -> None:
        """An optimiser's step raised: what the program does then is its own work again."""
        if self.updating and self.watches():
            self.updating = False
            if self.exact:
                self.tape.enter()

    def loss(self, tensors: Any) -> None:
        """What a backward pass begins with."""
        if not self.watches():
            return
        self.log_of_program.backward += 1
        self.lines.setdefault("loss", where())
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
                    self.values.add_loss(number, tensor.detach().reshape(1))

    def transform(self, call: Any, name: str, given: Any) -> None:
        """Gradients by a transform of torch.func: without modules, its next call begins a step."""
        self.log_of_program.backward += 1
        alone = not self.called and not self.optimisers
        key = f"{name} {id(getattr(call, 'origin', call))}"
        closes = alone and key in self.transformed
        if alone and not self.called_any:  # what came before made the weights
            self.called_any = True
            with self.own_work():
                self.tape.tape.begin()
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
                self.batch_keeper.keep(loader, number, value, self.files.open_writer)
            giver, handed = self.batch_giver, value
            if giver is not None:
                handed = giver.give(loader, number, value)
        self.tape.handed_out(handed)
        return handed

    # -- writing ---------------------------------------------------------------------------------

    def close_step(self, functional: bool = False) -> None:
        """End a step and write it."""
        if self.over:
            return
        if not functional:
            self.tape.end_of_step()
        with self.own_work():
            self.run_watch.end_of_step(self.step, self.models(), self.is_exact(self.step))
        try:
            self.write_step()
        except OSError as error:
            self.stopped(error)
            self.values.inputs = []
            self.finish()
            return
        self.step += 1
        self.stepped = False
        self.called.clear()
        self.trained.clear()
        self.calls.clear()
        self.made = {}
        self.values.clear()
        self.lossed = functional
        self.transformed.clear()
        if not self.log_of_program.updates:
            self.end_early()
        if self.exact:
            self.tape.enter()
        else:
            self.tape.leave()

    def end_early(self) -> None:
        """End another run of a baseline once it has shown what it was to show: an optimiser's next
        step is where all ranks are. The program cleans up as at any exit, where it can."""
        if self.settings.until is None or self.step <= self.settings.until:
            return
        self.finish()
        if threading.current_thread() is not threading.main_thread():
            os._exit(0)
        leave = threading.Timer(LEAVING, os._exit, (0,))  # it waits for something, or goes on
        leave.daemon = True
        leave.start()
        raise SystemExit(0)

    def write_step(self) -> bool:
        """Write a recorded step as it ends; whether there was one. Raises OSError."""
        if not (self.recording and self.worth_writing()):
            return False
        if not self.log_of_program.updates and crash.uncaught() is None:
            self.values.own_update()  # else the step broke off before its update
        self.values.buffers()
        self.files.flush()
        return True

    def worth_writing(self) -> bool:
        """Whether anything of this step was recorded; a program without modules has events only."""
        alone = not self.module_names.modules and not self.broken
        return bool(self.values.log.meta or self.values.inputs or (alone and self.tape.events))

    def models(self) -> dict[str, Any]:
        """Models that were called with gradients in this step."""
        return {root: self.module_names.modules[root] for root in sorted(self.trained)}

    def finish(self) -> None:
        """End the recording in this process; at its end, say what ended it."""
        if os.getpid() != self.process:
            return
        if not self.over:
            self.end()
        broken = crash.uncaught()
        if broken is not None and self.files.writer is not None:
            self.files.writer.facts["crash"] = {"step": self.step, **broken}
            try:
                self.files.writer.commit()
            except OSError as error:
                self.say(f"the program's exception is not recorded: {error.strerror or error}")

    def end(self) -> None:
        """Write what is there of the step, and let go of torch."""
        self.tape.end_of_step()
        with self.own_work():
            self.run_watch.end_of_step(self.step, self.models(), self.is_exact(self.step))
        try:
            if not self.write_step() and self.files.writer is not None and not self.broken:
                self.files.flush_rest()
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
