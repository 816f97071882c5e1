"""Ranking: documents of a query in order of relevance, each read together with the query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _inputs
from joymigrate.run.train.tasks.task import TOKENS

if TYPE_CHECKING:
    import torch


class Ranking(_inputs.ScoredTexts):
    """A score per document; the loss compares the documents of one query (softmax over them)."""

    SCHEMA: ClassVar[str] = '{"query": "…", "documents": ["…", …], "relevance": [1, 0, …]}'
    # All documents, one after another.
    FIELDS: ClassVar[Mapping[str, str]] = {
        **{"tokens": TOKENS, "lengths": "int32", "relevance": "float32"}
    }

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample per query."""
        import numpy as np

        query = record.text("query")
        documents = record.listed("documents", records.as_text)
        known = self.context.references or record.get("relevance") is not None
        unknown = [float("nan")] * len(documents)
        relevance = record.listed("relevance", records.as_number) if known else unknown
        if not documents or len(relevance) != len(documents):
            raise JoyError(
                f"{len(documents)} documents have {len(relevance)} relevances", where=record.where
            )
        marks = np.asarray(relevance, dtype=np.float32)
        if known and (marks < 0).any():
            raise JoyError(f"a relevance is 0 or more, got {relevance}", where=record.where)
        if self.context.references and not marks.sum() > 0:
            record.fate.dropped = "no document is relevant"
            return []
        length = self.context.max_length
        made = [
            _inputs.token_ids(record, self.tokenizer, query, length, text) for text in documents
        ]
        return [
            {
                "tokens": np.concatenate(made),
                "lengths": np.array([len(row) for row in made]),
                "relevance": marks,
                "weight": np.ones(1),
            }
        ]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Documents of all queries as rows; `sizes` says how many each query has."""
        import numpy as np
        import torch

        rows = []
        for sample in samples:
            rows += np.split(sample["tokens"], np.cumsum(sample["lengths"])[:-1])
        ids, mask = _inputs.pad_rows(rows, self.tokenizer.pad_token_id or 0)
        marks = np.concatenate([sample["relevance"] for sample in samples])
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": torch.from_numpy(marks),
            "sizes": [len(sample["lengths"]) for sample in samples],
        }

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cross entropy between the share of relevance and the softmax of scores, per query."""
        import torch

        losses = [
            -(marks / marks.sum() * made.log_softmax(0)).sum()
            for made, marks in by_query(output, batch)
        ]
        return torch.stack(losses).sum()

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """Scores in the documents' order, and the best document's number."""
        found = []
        for made, marks in by_query(output, batch):
            known = {} if bool(marks.isnan().any()) else {"reference": marks.tolist()}
            one = {"prediction": made.tolist(), "score": float(made.max()), **known}
            found.append({**one, "best": int(made.argmax())})
        return found

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """NDCG over the relevances, and the mean reciprocal rank of the first relevant one."""
        import torch
        from torchmetrics.functional.retrieval import (
            retrieval_normalized_dcg,
            retrieval_reciprocal_rank,
        )

        gains, ranks = [], []
        for row in rows:
            if sum(row.get("reference") or ()) > 0:
                made, marks = torch.tensor(row["prediction"]), torch.tensor(row["reference"])
                gains.append(float(retrieval_normalized_dcg(made, marks)))
                ranks.append(float(retrieval_reciprocal_rank(made, marks > 0)))
        if not gains:
            return {}
        return {"ndcg": sum(gains) / len(gains), "mrr": sum(ranks) / len(ranks)}


def by_query(output: torch.Tensor, batch: Batch) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Scores and relevances of each query's documents."""
    import torch

    sizes = batch["sizes"]
    yield from zip(
        torch.split(output.float(), sizes), torch.split(batch["labels"], sizes), strict=True
    )


TASK = Ranking
