"""What is learned from features: clicks, the order of a query's documents, the next item, several.

These tasks are chosen by `task:` of a job whose data have a schema of features. A batch's tensors
are those of `lookup.collate`. B rows, T targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train.columns import Batch
from joymigrate.run.train.samples.batch import SampleBatch
from joymigrate.run.train.samples.schema import FeatureSchema
from joymigrate.run.train.tasks.task import Task, TaskContext

if TYPE_CHECKING:
    import torch

    from joymigrate.run.train.samples.job import TableSettings
    from joymigrate.run.train.semantic_ids.codes import SemanticIds


LEAST = 1024  # rows of a pass where rows are ranked among each other, and of train evaluate


class FeatureTask(Task):
    """A model over features; labels are 0 or 1."""

    TOKENIZER: ClassVar[bool] = False
    MODEL: ClassVar[str] = "deepfm"  # where from_config names none
    LABELS: ClassVar[tuple[float, float]] = (-math.inf, math.inf)  # what a label may be
    LEAST: ClassVar[int] = 1  # rows of a pass over held-out data
    schema: FeatureSchema
    tables: TableSettings

    def __init__(self, context: TaskContext, schema: FeatureSchema, tables: TableSettings) -> None:
        super().__init__(context)
        self.schema, self.tables = schema, tables
        self.check()

    def check(self) -> None:
        """The schema has what the task needs."""
        if len(self.schema.label) != 1:
            raise JoyError(
                f"this task has one label, the schema names {len(self.schema.label)}",
                where="task",
                help="task: multitask learns several",
            )

    def fields(self) -> dict[str, str]:
        """Nothing is cached: rows are read from Parquet."""
        return {}

    def samples_of(self, batch: SampleBatch) -> Batch:
        """Rows of the sample engine as tensors."""
        from joymigrate.run.train.samples.lookup import collate

        least, most = self.LABELS
        labels = batch.labels
        if labels.size and not (least <= labels.min() and labels.max() <= most):
            wrong = labels[(labels < least) | (labels > most)][0]
            raise JoyError(
                f"a label is {wrong:g}; this task takes {least:g} to {most:g}",
                where="data",
                help="mend the column of the label, or take task: ranking for degrees of relevance",
            )
        return collate(self.schema, batch)

    def build(self, source: Any) -> Any:
        """The model of the asked kind and sizes with random rows, or that of an export's folder."""
        import torch

        from joymigrate.run.train import recommendation
        from joymigrate.run.train.samples.lookup import Recommender

        settings = source.settings if source.path is None else exported_sizes(source.path)
        sizes = recommendation.sizes_of({"model_type": self.MODEL, **settings})
        model = Recommender(self.schema, sizes, self.tables, source.seed, self.codes())
        if source.path is not None:
            model.start_from(source.path)
        return model.to(getattr(torch, source.dtype))

    def codes(self) -> SemanticIds | None:
        """The semantic ids of the items, for tasks that have some."""
        return None

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """Logits [B, T]."""
        found: torch.Tensor = model(batch)
        return found

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """The task's loss, and what the model adds (DIEN's auxiliary one)."""
        import torch

        found = self.objective(self.forward(model, batch), batch)
        dense = getattr(getattr(model, "module", model), "dense", None)
        more = getattr(dense, "extra_loss", None)
        return found if more is None else torch.add(found, more)

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Binary cross entropy, summed."""
        import torch

        return torch.nn.functional.binary_cross_entropy_with_logits(
            output.float(), batch["labels"], reduction="sum"
        )

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """The probability of the first target for every row."""
        shares = output.float().sigmoid()[:, 0].tolist()
        labels = batch["labels"][:, 0].tolist()
        groups = batch["groups"].tolist() if "groups" in batch else [0] * len(shares)
        return [
            {
                "prediction": int(share > 0.5),
                "score": share,
                "reference": int(label) if label in (0, 1) else label,
                "group": group,
            }
            for share, label, group in zip(shares, labels, groups, strict=True)
        ]

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """AUC, GAUC over the groups, log loss."""
        from joymigrate.run.train.samples.metrics import click_metrics

        grouped = self.schema.group is not None
        return click_metrics(
            [row["score"] for row in rows],
            [row["reference"] for row in rows],
            [row["group"] for row in rows] if grouped else None,
        )


class ClickTask(FeatureTask):
    """Whether there is a click; a label between 0 and 1 is a probability."""

    LABELS: ClassVar[tuple[float, float]] = (0.0, 1.0)


class ListTask(FeatureTask):
    """The order of a query's documents: rows of one `group` are compared with each other.

    The loss is the cross entropy between the relevances and the softmax of the scores of a group's
    rows in one batch (ListNet, Cao et al., 2007); keep a group's rows together in the files and
    switch shuffling off, or a batch sees parts of groups.
    """

    LABELS: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def check(self) -> None:
        """Rows are grouped."""
        super().check()
        if self.schema.group is None:
            raise JoyError(
                "ranking compares the rows of a group", where="data.schema", help="group: COLUMN"
            )

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Summed over the rows: each group counts as often as it has rows."""
        import torch

        scores, marks = output.float()[:, 0], batch["labels"][:, 0]
        _, owner, sizes = batch["groups"].unique(return_inverse=True, return_counts=True)
        count = len(sizes)
        top = scores.new_full((count,), -torch.inf).scatter_reduce(0, owner, scores, "amax")
        moved = scores - top[owner].detach()
        total = scores.new_zeros(count).index_add(0, owner, moved.exp())
        logs = moved - total.log()[owner]
        sums = scores.new_zeros(count).index_add(0, owner, marks)
        share = marks / sums.clamp(min=1e-12)[owner]
        losses: torch.Tensor = -(share * logs * sizes[owner])
        return losses.sum()

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """NDCG and recall at 10 over the groups; AUC beside them."""
        from joymigrate.run.train.samples.metrics import list_metrics

        scores, marks = [row["score"] for row in rows], [row["reference"] for row in rows]
        return list_metrics(scores, marks, [row["group"] for row in rows], 10)


class NextItemTask(FeatureTask):
    """The next item of a sequence: every event is told from those before it (SASRec).

    Rows with a label of 0 teach nothing. Negatives are other rows' items. Held-out
    data are looked at by ranking the row's item among 100 items of the other rows of a pass (the
    paper takes random ones), so a pass has at least `LEAST` rows.
    """

    MODEL: ClassVar[str] = "sasrec"
    OPTIONS: ClassVar[Mapping[str, Any]] = {"negatives": 100}
    LEAST: ClassVar[int] = LEAST

    def check(self) -> None:
        """There is a sequence of items."""
        super().check()
        if not self.schema.sequences():
            raise JoyError(
                "this task needs a feature of type sequence", where="data.schema", help="add one"
            )

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """Logits of the right and of a wrong item at every event [B, L, 2]."""
        return next_item_logits(model, batch)

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """The model is called through `forward` of the module, so that gradients are exchanged."""
        return self.objective(self.forward(model, batch), batch)

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Binary cross entropy of right and wrong items (eq. 7), the mean over a row's events."""
        import torch

        name = self.schema.sequences()[0]
        mask = batch[f"{name}.mask"] & (batch["labels"][:, :1] > 0)
        right, wrong = output.float().unbind(-1)
        losses = torch.nn.functional.softplus(-right) + torch.nn.functional.softplus(wrong)
        counts = mask.sum(1).clamp(min=1)
        total: torch.Tensor = ((losses * mask).sum(1) / counts).sum()
        return total

    def predict(self, model: Any, batch: Batch) -> Iterator[dict[str, Any]]:
        """The rank of the row's item among those of other rows, from 0."""
        import torch

        x = model.look_up(batch)
        _, mask, target = x.events[0]
        last = (mask.sum(1) - 1).clamp(min=0)
        at = torch.arange(len(last), device=last.device)
        state = model.states(x)[at, last]
        scores = state @ target.T
        name = self.schema.singles()[self.schema.singles().index(model.targets[0])]
        items = batch[f"{name}.ids"]
        count = min(int(self.options["negatives"]), len(items) - 1)
        for row in range(len(items)):
            others = (row + 1 + torch.arange(count, device=items.device)) % len(items)
            others = others[items[others] != items[row]]
            # Equal scores, and those that are no numbers, come before the right one.
            rank = int((~(scores[row, others] < scores[row, row])).sum())
            yield {
                "prediction": rank,
                "score": float(scores[row, row]),
                "reference": int(batch["labels"][row, 0]),
                "among": len(others) + 1,
            }

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Recall (hit rate) and NDCG at 10, and MRR, over the rows with a label of 1."""
        from joymigrate.run.train.samples.metrics import rank_metrics

        ranks = [row["prediction"] for row in rows if row["reference"]]
        if not ranks:
            return {}
        among = sum(row["among"] for row in rows) / len(rows)
        return {**rank_metrics(ranks), "ranked_among": among}


def next_item_logits(model: Any, batch: Batch) -> torch.Tensor:
    """Through the module's own call, which DDP needs: the batch says what is wanted."""
    import torch

    found: torch.Tensor = model({**batch, "next": torch.ones(())})
    return found


class MultiTask(FeatureTask):
    """Several labels at once; a label that is -1 is not known and teaches nothing."""

    MODEL: ClassVar[str] = "mmoe"
    LABELS: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    OPTIONS: ClassVar[Mapping[str, Any]] = {"weights": None}

    def check(self) -> None:
        """There are several labels, and as many weights."""
        weights = self.options["weights"]
        if weights is not None and len(weights) != len(self.schema.label):
            raise JoyError(
                f"{len(weights)} weights for {len(self.schema.label)} labels", where="task.weights"
            )

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Weighted sum of binary cross entropies."""
        import torch

        labels = batch["labels"]
        known = labels >= 0
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            output.float(), labels.clamp(min=0), reduction="none"
        )
        weights = torch.tensor(self.options["weights"] or [1.0] * labels.shape[1])
        found: torch.Tensor = (losses * known * weights.to(losses)).sum()
        return found

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """Probabilities and labels by name."""
        names = self.schema.label
        rows = []
        groups = batch["groups"].tolist() if "groups" in batch else None
        for at, (shares, labels) in enumerate(
            zip(output.float().sigmoid().tolist(), batch["labels"].tolist(), strict=True)
        ):
            rows.append(
                {
                    "prediction": dict(zip(names, shares, strict=True)),
                    "score": shares[0],
                    "reference": dict(zip(names, labels, strict=True)),
                    "group": groups[at] if groups is not None else 0,
                }
            )
        return rows

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The metrics of clicks, for every label."""
        from joymigrate.run.train.samples.metrics import click_metrics

        found: dict[str, float] = {}
        for name in self.schema.label:
            known = [row for row in rows if row["reference"][name] >= 0]
            made = click_metrics(
                [row["prediction"][name] for row in known],
                [row["reference"][name] for row in known],
                [row["group"] for row in known] if self.schema.group is not None else None,
            )
            found |= {f"{name}.{key}": value for key, value in made.items()}
        return found


def exported_sizes(folder: Path) -> dict[str, Any]:
    """Kind and sizes of a model that `train export` wrote; `JoyError` for another folder."""
    import json

    from joymigrate.run.train.samples.lookup import ARCHITECTURE

    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if found.pop("architecture") != ARCHITECTURE:
            raise KeyError
        found.pop("features")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise JoyError(
            "no model over features is there",
            where=str(folder),
            help="model.path names a folder of train export; model.from_config makes random rows",
        ) from None
    return dict(found)
