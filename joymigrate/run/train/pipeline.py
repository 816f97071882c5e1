"""Pipeline parallel: the model's stages on torch.distributed.pipelining, one forward one backward.

The stage calls transformers' own base model, whose foreign layers were replaced by identities, so
masks and rotary tables are made by the model's own code on every stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from joymigrate.run.train import gradients
from joymigrate.run.train.parallel import ParallelModel
from joymigrate.run.train.tasks import Task

if TYPE_CHECKING:
    import torch


class Stage(nn.Module):
    """Some consecutive layers; the first takes tokens [B, L], the last gives logits [B, L, V]."""

    def __init__(self, model: Any, *, first: bool, last: bool) -> None:
        super().__init__()
        self.base = getattr(model, model.base_model_prefix)
        self.head = model.lm_head
        self.first, self.last = first, last

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Hidden states [B, L, D], or logits."""
        source = {"input_ids": x} if self.first else {"inputs_embeds": x}
        found: torch.Tensor = self.base(
            **source, position_ids=position_ids, use_cache=False
        ).last_hidden_state
        return self.head(found) if self.last else found


class Pipeline:
    """Runs the micro-batches of one step through the stages of this and the other ranks."""

    def __init__(self, laid: ParallelModel, task: Task, passes: int) -> None:
        import torch.distributed as dist
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        mesh, layout = laid.mesh, laid.layout
        group = mesh["pp"].get_group()
        number = mesh["pp"].get_local_rank()
        self.first, self.last = number == 0, number == layout.pp - 1
        self.task, self.scale = task, 1.0
        module = Stage(laid.model, first=self.first, last=self.last)
        stage = PipelineStage(module, number, layout.pp, laid.device.at(), group=group)
        self.copies = mesh["dp_replicate"].get_group() if layout.dp > 1 else None
        self.parameters = [p for p in laid.model.parameters() if p.requires_grad]
        self.schedule = Schedule1F1B(stage, passes, loss_fn=self.loss, scale_grads=False)
        self.tied = tied_group(laid, dist) if is_tied(laid.model) else None
        self.embedding = laid.model.get_input_embeddings() if self.tied is not None else None

    def loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The task's loss of one micro-batch, scaled so that gradients are those of the mean."""
        return self.task.objective(output, {"labels": labels}) * self.scale

    def step(self, batch: dict[str, Any], scale: float) -> torch.Tensor | None:
        """Forward and backward of a whole batch; the sum of losses on the last stage, else None."""
        import torch

        self.scale = scale
        places = {"position_ids": batch["position_ids"]}
        inputs = (batch["input_ids"],) if self.first else ()
        losses: list[torch.Tensor] = []
        target = batch["labels"] if self.last else None
        self.schedule.step(*inputs, target=target, losses=losses if self.last else None, **places)
        self.share_tied()
        if self.copies is not None:
            gradients.average(self.parameters, self.copies)
        return torch.stack([x.detach() for x in losses]).sum() / scale if self.last else None

    def share_tied(self) -> None:
        """A tied embedding lies on the first and the last stage: its gradient is their sum."""
        import torch.distributed as dist

        if self.embedding is not None and (self.first or self.last):
            gradient = self.embedding.weight.grad
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            dist.all_reduce(local, group=self.tied)


def is_tied(model: Any) -> bool:
    """Whether the head shares the embedding's weight."""
    return bool(getattr(model.config, "tie_word_embeddings", False))


def tied_group(laid: ParallelModel, dist: Any) -> Any:
    """The group of the first and the last stage that this rank belongs to, or None between."""
    mine = None
    grid = laid.mesh.mesh  # [pp, dp, fsdp, tp] of ranks
    for pair in grid[[0, -1]].flatten(1).T.tolist():
        group = dist.new_group(pair)
        if dist.get_rank() in pair:
            mine = group
    return mine if mine is not None else dist.GroupMember.NON_GROUP_MEMBER
