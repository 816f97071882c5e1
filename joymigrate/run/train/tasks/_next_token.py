"""What pre-training and fine-tuning share: rows of tokens, each predicted from those before it.

Shapes: B rows, L tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.models import text_part
from joymigrate.run.train.tasks.task import Task, next_token_sum, rows

if TYPE_CHECKING:
    import torch


class NextToken(Task):
    """A task of causal language models, whose documents may share rows."""

    PIPELINE: ClassVar[bool] = True
    PACKS: ClassVar[bool] = True
    router: torch.Tensor | None = None  # the last pass's loss of balance between experts

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Rows of tokens, labels and positions."""
        length = self.context.max_length if self.context.fixed_length else None
        return rows(samples, self.tokenizer.pad_token_id or 0, length)

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """Logits [B, L, V]; keeps what the model says of its experts' balance."""
        found = model(**self.inputs(batch), use_cache=False)
        self.router = getattr(found, "aux_loss", None)
        logits: torch.Tensor = found.logits
        return logits

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cross entropy of the next token."""
        return next_token_sum(output, batch["labels"])

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Cross entropy, and the experts' balance where the configuration asks for it.

        The balance is a mean over the pass, weighted as transformers weights it: the loss is
        `cross entropy + router_aux_loss_coef * balance`, here times the pass's targets.
        """
        total = super().loss(model, batch)
        if self.router is None:
            return total
        targets = (batch["labels"][:, 1:] != -100).sum()
        whole: torch.Tensor = total + router_share(model) * self.router * targets
        return whole

    def figures(self) -> dict[str, float]:
        """The balance between experts, before its coefficient."""
        return {} if self.router is None else {"router_loss": float(self.router.detach())}


def router_share(model: Any) -> float:
    """The coefficient of the experts' balance in a model's configuration."""
    text = text_part(getattr(model, "module", model).config)
    return float(getattr(text, "router_aux_loss_coef", 0.0) or 0.0)
