"""Embedding: texts that belong together lie close (InfoNCE over the batch).

Negatives are the other texts of the same forward pass and the records' own; so here, unlike in the
other tasks, `batch.micro` and the layout change the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _inputs
from joymigrate.run.train.tasks.task import TOKENS, Task, TaskContext

if TYPE_CHECKING:
    import torch

POOLING = ("mean", "last", "first")


class EmbeddingTask(Task):
    """A unit vector per text."""

    MODEL: ClassVar[str] = "AutoModel"
    SCHEMA: ClassVar[str] = '{"anchor": "…", "positive": "…"}; "negative" may stand beside'
    OPTIONS: ClassVar[Mapping[str, Any]] = {"temperature": 0.05, "pooling": "mean"}
    # Anchor, positive and negative, one after another.
    FIELDS: ClassVar[Mapping[str, str]] = {"tokens": TOKENS, "lengths": "int32"}

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        if self.options["pooling"] not in POOLING:
            raise JoyError(
                f"unknown pooling '{self.options['pooling']}'", help=f"one of {', '.join(POOLING)}"
            )

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample per pair or triple; to predict on, the anchor alone will do."""
        import numpy as np

        texts = [record.text("anchor", "query", "text")]
        if self.context.references or record.get("positive") is not None:
            texts.append(record.text("positive"))
            if record.get("negative") is not None:
                texts.append(record.text("negative"))
        if any(records.is_blank(text, record) for text in texts):
            return []
        length = self.context.max_length
        made = [_inputs.token_ids(record, self.tokenizer, text, length) for text in texts]
        return [
            {
                "tokens": np.concatenate(made),
                "lengths": np.array([len(row) for row in made]),
                "weight": np.ones(1),
            }
        ]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """All anchors, then all positives, then the negatives there are."""
        import numpy as np

        split = [np.split(s["tokens"], np.cumsum(s["lengths"])[:-1]) for s in samples]
        counts = [sum(len(one) > place for one in split) for place in range(3)]
        ordered = [one[place] for place in range(3) for one in split if len(one) > place]
        ids, mask = _inputs.pad_rows(ordered, self.tokenizer.pad_token_id or 0)
        return {"input_ids": ids, "attention_mask": mask, "counts": counts}

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """Unit vectors of all texts [N, D]."""
        import torch

        mask = batch["attention_mask"]
        states_NLD = model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
        states_NLD = states_NLD.float()
        if self.options["pooling"] == "mean":
            weights = mask.unsqueeze(-1).to(states_NLD.dtype)
            pooled_ND = (states_NLD * weights).sum(1) / weights.sum(1)
        elif self.options["pooling"] == "last":
            rows = torch.arange(len(mask), device=mask.device)
            pooled_ND = states_NLD[rows, mask.sum(1) - 1]
        else:
            pooled_ND = states_NLD[:, 0]
        return torch.nn.functional.normalize(pooled_ND, dim=-1)

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cross entropy of each anchor's own positive among all positives and negatives."""
        import torch

        anchors = batch["counts"][0]
        closeness = output[:anchors] @ output[anchors:].T / float(self.options["temperature"])
        own = torch.arange(anchors, device=output.device)
        return torch.nn.functional.cross_entropy(closeness, own, reduction="sum")

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """The anchor's vector, its positive's as the reference, and how close they are."""
        anchors, positives, _ = batch["counts"]
        found = []
        for row in range(anchors):
            one: dict[str, Any] = {"prediction": output[row].tolist()}
            if positives == anchors:
                other = output[anchors + row]
                one |= {"reference": other.tolist(), "score": float(output[row] @ other)}
            found.append(one)
        return found

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Each anchor against the positives of all: reciprocal rank, and how often its own wins."""
        import torch
        from torchmetrics.functional.retrieval import retrieval_reciprocal_rank

        known = [row for row in rows if "reference" in row]
        if len(known) < 2:
            return {}
        anchors = torch.tensor([row["prediction"] for row in known])
        positives = torch.tensor([row["reference"] for row in known])
        closeness = anchors @ positives.T
        ranks = [
            float(retrieval_reciprocal_rank(line, torch.arange(len(line)) == row))
            for row, line in enumerate(closeness)
        ]
        hits = (closeness.argmax(1) == torch.arange(len(known))).float().mean()
        return {"mrr": sum(ranks) / len(ranks), "recall_at_1": float(hits)}


TASK = EmbeddingTask
