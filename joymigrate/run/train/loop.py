"""The training loop: step, look, save; back to a good checkpoint when the loss goes wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train import gradients, optimise
from joymigrate.run.train.checkpoint import Checkpointer
from joymigrate.run.train.data_state import check_rows
from joymigrate.run.train.feed import StepFeed
from joymigrate.run.train.flops import StepFlops
from joymigrate.run.train.group import barrier
from joymigrate.run.train.guard import GuardAction, SpikeGuard
from joymigrate.run.train.held_out import BestModel, Evaluator
from joymigrate.run.train.job import Job
from joymigrate.run.train.logs import TrainingLog
from joymigrate.run.train.parallel import ParallelModel
from joymigrate.run.train.randomness import seed_step
from joymigrate.run.train.run_folder import LEFT_OUT, RunFolder
from joymigrate.run.train.runner import StepRunner
from joymigrate.run.train.scaling import LossScale

STATUS_EVERY_S = 1.0


@dataclass
class LoopParts:
    """Everything a loop works with."""

    job: Job
    steps: int
    laid: ParallelModel
    runner: StepRunner
    optimiser: Any
    feed: StepFeed[Any]
    keeper: Checkpointer
    folder: RunFolder
    work: StepFlops
    peak: float | None  # FLOP/s of all cards
    data_rank: int
    speaks: bool  # whether this rank's loss counts: one per data rank
    first_rank: bool
    log: TrainingLog | None
    tell: Callable[[str], None]
    traffic: Any = None  # of rounded gradients, else None
    updates: int = 1  # optimiser steps with the samples of a step
    evaluator: Evaluator | None = None


@dataclass
class TrainingState:
    """What a checkpoint brings back beside the tensors."""

    step: int = 0
    position: int = 0  # samples consumed
    tokens: int = 0
    skipped: list[int] = field(default_factory=list)  # positions left out after a rollback
    scale: float = 65536.0
    rows: dict[str, Any] | None = None  # where the sample engine stands
    best: dict[str, Any] | None = None  # see `BestModel`


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The figures of one step over all ranks."""

    loss: float
    norm: float
    tokens: int
    stop: bool


class Loop:
    """One run in one process."""

    def __init__(self, parts: LoopParts, stop: Callable[[], bool]) -> None:
        self.parts, self.asked_to_stop = parts, stop
        self.state = TrainingState()
        guard = parts.job.guard
        self.guard = SpikeGuard(
            guard.spike, guard.window, guard.rollbacks, guard.on_spike, guard.patience
        )
        self.doubtful: list[int] = []  # positions of the looks that may lead astray
        self.scale = LossScale(on=parts.job.dtype == "float16")
        self.parameters = [p for p in parts.laid.model.parameters() if p.requires_grad]
        self.counted = self.since = 0.0
        self.rows_before = 0
        self.next_status = 0.0
        self.previous = 0  # the position of the step that was taken last
        self.last: dict[str, Any] = {}  # the figures of the last step that was looked at
        self.stages = parts.laid.mesh["pp"].get_group() if parts.laid.layout.pp > 1 else None
        self.twice = self.counted_elsewhere()
        self.epoch = 0
        self.best: BestModel | None = None
        if parts.evaluator is not None and parts.job.eval is not None:
            self.best = BestModel(parts.job.eval, parts.evaluator.data.digest)

    def counted_elsewhere(self) -> Any:
        """A tied embedding on the last stage, whose gradient the first one counts."""
        from joymigrate.run.train.pipeline import is_tied

        laid = self.parts.laid
        if self.stages is None or not is_tied(laid.model):
            return None
        last = laid.mesh["pp"].get_local_rank() == laid.layout.pp - 1
        return laid.model.get_input_embeddings().weight if last else None

    def run(self) -> str:
        """Train to the end, or until asked to stop: `finished` or `stopped`."""
        parts = self.parts
        saved = parts.keeper.load()
        check_rows((saved or {}).get("data"), parts.feed.identity(), parts.tell)
        self.restore(saved)
        if self.state.step:
            parts.tell(f"continuing behind step {self.state.step} of {parts.steps}")
        self.rows_before = self.state.position
        if not self.state.step:
            self.evaluate()
        self.since = time.monotonic()
        while self.state.step < parts.steps and not self.ends_early():
            seen = self.step()
            if seen is None:
                continue
            if self.judge(seen):
                continue
            better = self.evaluates() and self.evaluate()
            self.save_if_due(seen.stop or better or self.ends_early())
            if seen.stop and self.state.step < parts.steps and not self.ends_early():
                parts.keeper.wait()
                return "stopped"
        parts.keeper.wait()
        self.tell_left_out()
        return "finished"

    # -- held-out data ------------------------------------------------------------------------

    def ends_early(self) -> bool:
        """Whether no better model came for as long as the job waits for one."""
        return self.best is not None and self.best.ends

    def evaluates(self) -> bool:
        """Whether held-out data are looked at behind the present step."""
        wish, state = self.parts.job.eval, self.state
        if wish is None:
            return False
        due = not state.step % wish.every if wish.every else self.parts.feed.epoch(
            state.position) > self.epoch  # fmt: skip
        return due or state.step == self.parts.steps

    def evaluate(self) -> bool:
        """Look at held-out data, and say whether the model is the best so far."""
        parts, step, best = self.parts, self.state.step, self.best
        if parts.evaluator is None or best is None:
            return False
        started = time.monotonic()
        figures = parts.evaluator.measure()
        better = best.on(step, figures)
        seconds = time.monotonic() - started
        self.since += seconds  # no part of a step's time
        self.state.best, self.epoch = best.document(), parts.feed.epoch(self.state.position)
        known = {key: clean(value) for key, value in figures.items()}
        if parts.log is not None:
            parts.log.evaluated({"step": step, "seconds": round(seconds, 3), **known})
            parts.folder.report(evaluation={"step": step, **known}, best=self.state.best)
        if best.ends and step:
            parts.tell(
                f"no better {best.wish.metric} in {best.worse} evaluations: the run ends at step "
                f"{step}, the best is of step {best.step}"
            )
        return better

    def tell_left_out(self) -> None:
        """Say which rows the sample engine has left out, by reason."""
        left_out = (self.parts.feed.state(self.state.position) or {}).get("skipped", {})
        for reason, count in sorted(left_out.items()):
            self.parts.tell(f"{count} rows left out: {reason}")
        if left_out and self.parts.first_rank:
            self.parts.folder.report(left_out=left_out)

    def judge(self, seen: StepFigures) -> bool:
        """Whether the run went back to a checkpoint, because of what was seen of a step."""
        overflow = self.scale.on and not math.isfinite(seen.norm)  # the scale sees to it
        action = self.guard.on(self.state.step, seen.loss, None if overflow else seen.norm)
        self.doubtful.append(self.previous)
        if action in (GuardAction.ROLL_BACK, GuardAction.FAIL):
            self.roll_back(action)
        elif action is GuardAction.WARN:
            self.parts.tell(f"{self.guard.reason}: going on (guard.on_spike is warn)")
            if self.parts.first_rank:
                self.parts.folder.report(warning=self.guard.reason)
        if self.guard.above == 0:
            self.doubtful.clear()
        return action is GuardAction.ROLL_BACK

    # -- one step -----------------------------------------------------------------------------

    def step(self) -> StepFigures | None:
        """One optimiser step; its figures when this step is looked at."""
        parts, state = self.parts, self.state
        position = self.after_skipped(state.position)
        following = self.after_skipped(parts.feed.after(position))
        more = state.step + 1 < parts.steps
        portion = parts.feed.take(position, following if more else None)
        self.previous = position
        seed_step(parts.job.seed, state.step, parts.data_rank)
        rate = parts.job.optimiser.lr * optimise.factor(parts.job.schedule, state.step, parts.steps)
        for _ in range(parts.updates):
            parts.optimiser.zero_grad(set_to_none=True)
            total = parts.runner.step(portion, self.scale.factor)
            norm = gradients.global_norm(self.parameters, self.stages, self.twice)
            self.update(norm, rate)
        state.step += 1
        if parts.job.logging.samples and parts.speaks:
            parts.folder.consumed(parts.data_rank, state.step, portion.samples)
        state.position = parts.feed.after(position)
        self.counted += portion.tokens
        if not self.is_looked_at():
            return None
        seen = self.look(total, norm, portion.weight)
        state.tokens += seen.tokens
        self.record(seen, rate)
        return seen

    def after_skipped(self, position: int) -> int:
        """The next position that is not left out."""
        while position in self.state.skipped:
            position = self.parts.feed.after(position)
        return position

    def update(self, norm: Any, rate: float) -> None:
        """Clip and let the optimiser step; a float16 step that overflowed is left out."""
        parts = self.parts
        if self.scale.on:
            factor = 1.0 / self.scale.factor
            norm.mul_(factor)
            if not self.scale.accept(math.isfinite(float(norm))):
                return
            scaled = [p.grad for p in self.parameters if p.grad is not None]
            for gradient in scaled:
                gradient.mul_(factor)
        if parts.job.optimiser.clip > 0:
            gradients.clip(self.parameters, norm, parts.job.optimiser.clip)
        optimise.set_rate(parts.optimiser, rate)
        parts.optimiser.step()

    def is_looked_at(self) -> bool:
        """Whether the present step's figures are read (which waits for the device)."""
        every, step = self.parts.job.logging.every, self.state.step
        looks = step % every == 0 or step == self.parts.steps
        return looks or self.is_due(step) or self.evaluates()

    def look(self, total: Any, norm: Any, weight: float) -> StepFigures:
        """Sum loss and tokens over the ranks, and see whether anybody was asked to stop."""
        import torch
        import torch.distributed as dist

        parts = self.parts
        device = parts.laid.device.at()
        own = torch.tensor(
            [self.counted if parts.speaks else 0.0, float(self.asked_to_stop())],
            dtype=torch.float32 if not parts.laid.device.is_cpu else torch.float64,
        ).to(device)
        loss = total.to(own.dtype) if parts.speaks else torch.zeros((), device=device).to(own.dtype)
        figures = torch.cat([loss.reshape(1), own])
        if dist.is_initialized():
            dist.all_reduce(figures)
        summed, tokens, stop = figures.tolist()
        self.counted = 0.0
        return StepFigures(summed / weight, float(norm), int(tokens), stop > 0)

    def record(self, seen: StepFigures, rate: float) -> None:
        """Write the step's figures, on the first rank."""
        parts, state = self.parts, self.state
        now = time.monotonic()
        steps = parts.job.logging.every
        elapsed, self.since = now - self.since, now
        if parts.log is None:
            return
        per_s = seen.tokens / elapsed if elapsed > 0 else 0.0
        figures = {
            "step": state.step,
            "loss": seen.loss,
            "tokens": state.tokens,
            "samples": state.position,
            "lr": rate,
            "grad_norm": seen.norm,
            "tokens_per_s": round(per_s, 1),
            "step_s": round(elapsed / steps, 6),
            "mfu": parts.work.mfu(per_s, parts.peak),
        }
        figures |= self.rows_read(elapsed) | parts.feed.figures() | parts.runner.figures()
        parts.log.write(figures)
        self.last = {key: clean(value) for key, value in figures.items()}
        if now >= self.next_status or state.step == parts.steps:
            self.next_status = now + STATUS_EVERY_S
            parts.folder.report(state="running", **self.last)

    def rows_read(self, elapsed: float) -> dict[str, Any]:
        """Rows per second of the sample engine, and the rows that it left out."""
        known = self.parts.feed.state(self.state.position)
        if known is None:
            return {}
        rows, self.rows_before = known["consumed"] - self.rows_before, known["consumed"]
        per_s = rows / elapsed if elapsed > 0 else 0.0
        return {"rows_per_s": round(per_s, 1), "skipped": sum(known["skipped"].values())}

    # -- checkpoints --------------------------------------------------------------------------

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint belongs behind this step."""
        every = self.parts.job.checkpoint.every
        return step == self.parts.steps or (every > 0 and step % every == 0)

    def save_if_due(self, stopping: bool) -> None:
        """Start a checkpoint behind the present step, if one is due."""
        state = self.state
        if not (self.is_due(state.step) or stopping):
            return
        state.scale = self.scale.value
        self.parts.keeper.save(
            state.step,
            step=state.step,
            position=state.position,
            tokens=state.tokens,
            skipped=state.skipped,
            scale=state.scale,
            rows=self.parts.feed.state(state.position),
            data=self.parts.feed.identity(),
            layout=self.parts.laid.layout.name,
            best=state.best,
        )

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Take over what a checkpoint brought back, and cut the metrics to it."""
        if saved is not None:
            known = {k: v for k, v in saved.items() if k in TrainingState.__dataclass_fields__}
            self.state = TrainingState(**known)
            self.scale.value = self.state.scale
            if self.state.rows is not None:
                self.parts.feed.restore(self.state.rows)
        self.epoch = self.parts.feed.epoch(self.state.position)
        if self.best is not None:
            shelf = self.parts.keeper.shelf
            reason = self.best.restore(self.state.best, lambda step: shelf.place(step).is_dir())
            if reason is not None:
                self.parts.tell(reason)
            if saved is not None and saved.get("data") != self.parts.feed.identity():
                self.best.worse = 0  # other data may give a better one
                self.state.best = self.best.document()
        if self.parts.first_rank:
            self.parts.folder.cut(self.state.step)
        if self.parts.job.logging.samples:
            barrier()

    def roll_back(self, action: GuardAction) -> None:
        """Load the last good checkpoint and leave out the samples that led astray."""
        parts, bad = self.parts, self.state
        reason = self.guard.reason
        newest = parts.keeper.newest()
        if action is GuardAction.FAIL or newest is None:
            why = "no checkpoint to go back to" if newest is None else "rolled back often enough"
            raise JoyError(
                f"{reason}; {why}",
                where=str(parts.folder.path),
                help="lower optimiser.lr, look at the data near this step, or set checkpoint.every",
            )
        left_out = list(self.doubtful)
        self.restore(parts.keeper.load(newest))
        self.state.skipped = [*bad.skipped, *left_out]
        self.guard.forget()
        steps = "that step" if len(left_out) == 1 else f"{len(left_out)} steps"
        parts.tell(
            f"{reason}: back to step {newest}, leaving out the samples of {steps} ({LEFT_OUT})"
        )
        if parts.first_rank:
            for position in left_out:
                parts.folder.leave_out(reason, position, parts.feed.samples_at(position))
            parts.folder.report(rollbacks=self.guard.used, rolled_back_to=newest, reason=reason)


def clean(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
