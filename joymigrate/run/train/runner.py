"""One step's forward and backward passes, on whatever layout the model has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from joymigrate.errors import JoyError
from joymigrate.run.train.feed import RankShare, move_batch
from joymigrate.run.train.parallel import ParallelModel
from joymigrate.run.train.tasks import Task

if TYPE_CHECKING:
    import torch


class StepRunner(Protocol):
    """Leaves the gradients of the step's mean loss; returns this rank's sum of losses."""

    def step(self, portion: RankShare, scale: float) -> torch.Tensor: ...
    def figures(self) -> dict[str, float]: ...


def runner_for(laid: ParallelModel, task: Task, passes: int) -> StepRunner:
    """The runner of a layout."""
    if laid.layout.pp == 1:
        return AccumulatedPasses(laid, task)
    if not task.PIPELINE:
        raise JoyError("this task does not run in pipeline stages", where="layout.pp")
    return PipelineRunner(laid, task, passes)


class AccumulatedPasses:
    """Pass after pass, gradients exchanged with the last one."""

    def __init__(self, laid: ParallelModel, task: Task) -> None:
        self.laid, self.task = laid, task

    def step(self, portion: RankShare, scale: float) -> torch.Tensor:
        """Gradients are averaged over these ranks, so the sum is scaled up by their number."""
        laid = self.laid
        factor = scale * laid.layout.gradient_ranks / portion.weight
        total: Any = 0.0
        last = len(portion.passes) - 1
        device = laid.device.at()
        for number, batch in enumerate(portion.passes):
            with self.exchanging(number == last):
                with laid.device.autocast(laid.dtype):
                    loss = self.task.loss(laid.module, move_batch(batch, device))
                scaled: Any = loss * factor
                scaled.backward()
            total = total + loss.detach()
        result: torch.Tensor = total
        return result

    def figures(self) -> dict[str, float]:
        """What the task says of its last pass."""
        return self.task.figures()

    @contextlib.contextmanager
    def exchanging(self, on: bool) -> Iterator[None]:
        """Whether this pass exchanges gradients."""
        from torch.distributed.fsdp import FSDPModule
        from torch.nn.parallel import DistributedDataParallel

        module = self.laid.module
        if isinstance(module, DistributedDataParallel) and not on:
            with module.no_sync():
                yield
            return
        for part in module.modules() if self.laid.layout.gradient_ranks > 1 else ():
            if isinstance(part, FSDPModule):
                part.set_requires_gradient_sync(on, recurse=True)
                break
        yield


class PipelineRunner:
    """Pipeline stages: the passes of a step are its micro-batches."""

    def __init__(self, laid: ParallelModel, task: Task, passes: int) -> None:
        from joymigrate.run.train.pipeline import Pipeline

        self.laid, self.task = laid, task
        self.pipeline = Pipeline(laid, task, passes)

    def step(self, portion: RankShare, scale: float) -> torch.Tensor:
        """The sum of losses on the last stage, 0 on the others."""
        import torch

        device = self.laid.device.at()
        names = portion.passes[0].keys()
        joined = {name: torch.cat([one[name] for one in portion.passes]) for name in names}
        factor = scale * self.laid.layout.data_ranks / portion.weight
        with self.laid.device.autocast(self.laid.dtype):
            found = self.pipeline.step(move_batch(joined, device), factor)
        return torch.zeros((), device=device) if found is None else found

    def figures(self) -> dict[str, float]:
        """What the task says of its last pass."""
        return self.task.figures()
