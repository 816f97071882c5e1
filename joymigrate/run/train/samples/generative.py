"""The generative task: the next item, by its row (HSTU) or written as a semantic id (OneRec).

B rows, L events, N negatives, K levels, V entries of a level.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train.columns import Batch
from joymigrate.run.train.samples.metrics import rank_metrics
from joymigrate.run.train.samples.tasks import FeatureTask

if TYPE_CHECKING:
    import torch

    from joymigrate.run.train.semantic_ids.codes import SemanticIds

OWN = "own"  # the events that this process computes [B, L], in a batch


class GenerativeTask(FeatureTask):
    """Learns the item that comes next. Rows with a label of 0 teach nothing.

    A model with a state after every event (hstu, sasrec) learns at every event: cross entropy of
    the next item's cosine, over `temperature`, among `negatives` random items (0: all items), as
    the mean over a row's events (Zhai et al., 2024, section 4.1.1). The published code draws
    negatives for each event (`negatives_for: event`, which costs B x L x N rows) and takes the
    mean over all events of a batch (`mean_over: events`).
    A model that writes ids (onerec) learns the codes of the row's item.

    `train evaluate` ranks the row's item among all items of the table, or of `codes`, and among
    those that its sequence does not hold (as published code does).
    """

    MODEL: ClassVar[str] = "hstu"
    CUTS: ClassVar[bool] = True
    OPTIONS: ClassVar[Mapping[str, Any]] = {
        **{"negatives": 128, "negatives_for": "batch", "mean_over": "row"},
        **{"temperature": 0.05, "codes": None},
    }

    def check(self) -> None:
        """There is a sequence of items, in a table of known size."""
        super().check()
        if not self.schema.sequences():
            raise JoyError(
                "this task needs a feature of type sequence", where="data.schema", help="add one"
            )
        name = self.schema.sequences()[0]
        rows = self.schema.tables()[self.schema.table_of(name)].rows
        if rows is None:
            raise JoyError(
                f"'{name}' is of a dynamic table: nobody knows which items there are",
                where=f"features.{name}",
                help="give the feature of the item `rows`",
            )
        self.items = rows
        self.check_options()

    def check_options(self) -> None:
        """The task's own keys."""
        temperature, negatives = self.options["temperature"], self.options["negatives"]
        if not isinstance(temperature, int | float) or temperature <= 0:
            raise JoyError(f"temperature is above 0, got {temperature!r}", where="task.temperature")
        if not isinstance(negatives, int) or negatives < 0:
            raise JoyError(f"negatives are 0 or more, got {negatives!r}", where="task.negatives")
        for name, known in (
            ("negatives_for", ("batch", "event")),
            ("mean_over", ("row", "events")),
        ):
            if self.options[name] not in known:
                raise JoyError(f"unknown {name} '{self.options[name]}'", where=f"task.{name}",
                               help=f"one of {', '.join(known)}")  # fmt: skip

    @functools.cached_property
    def semantic(self) -> SemanticIds | None:
        """The file of `codes`, read once."""
        from joymigrate.run.train.semantic_ids.codes import read_codes

        named = self.options["codes"]
        return None if named is None else read_codes(Path(named))

    def codes(self) -> SemanticIds | None:
        """The semantic ids of the items."""
        return self.semantic

    @property
    def target(self) -> str:
        """The feature that holds a row's item."""
        from joymigrate.run.train.samples.lookup import candidate_of

        return candidate_of(self.schema, self.schema.sequences()[0])

    # -- loss ---------------------------------------------------------------------------------

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Summed over rows; where sequences are cut over processes, this process's part of it."""
        output = self.forward(model, batch)
        own = getattr(getattr(model, "module", model).dense, "own_BL", None)
        return self.objective(output, batch if own is None else {**batch, OWN: own})

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the rows' ids [B, 1], or cosines [B, L, 1 + N]."""
        if self.writes(model):
            found: torch.Tensor = model(batch)
            return found
        found = model({**batch, "negatives": self.draw(batch)})
        return found

    def draw(self, batch: Batch) -> torch.Tensor:
        """The items that the right one is told from: uniform [N] or [B, L, N], or all [N]."""
        import torch

        device, count = batch["labels"].device, int(self.options["negatives"])
        if not count:
            return torch.arange(self.items, device=device)
        if self.options["negatives_for"] == "event":
            shape = batch[f"{self.schema.sequences()[0]}.ids"].shape
            return torch.randint(self.items, (*shape, count), device=device)
        return torch.randint(self.items, (count,), device=device)

    def writes(self, model: Any) -> bool:
        """Whether the model writes ids."""
        return hasattr(getattr(model, "module", model).dense, "write")

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cross entropy."""
        import torch

        right = batch["labels"][:, 0] > 0
        if output.dim() == 2:  # log-probabilities of whole ids
            lost: torch.Tensor = -(output[:, 0] * right).sum()
            return lost
        name = self.schema.sequences()[0]
        mask = batch[f"{name}.mask"] & right[:, None]
        logs = (output.float() / float(self.options["temperature"])).log_softmax(-1)[..., 0]
        # A masked place may be -inf or nan: it is chosen away, not multiplied.
        if OWN in batch:
            own = batch[OWN]
            lost = torch.where(mask[own], -logs[0], 0.0)
            sums = lost.new_zeros(len(mask)).index_add(0, own.nonzero()[:, 0], lost)
        else:
            sums = torch.where(mask, -logs, 0.0).sum(1)
        if self.options["mean_over"] == "events":  # of a pass; the loop divides by its rows
            over_all: torch.Tensor = sums.sum() / mask.sum().clamp(min=1) * len(mask)
            return over_all
        total: torch.Tensor = (sums / mask.sum(1).clamp(min=1)).sum()
        return total

    # -- evaluation ---------------------------------------------------------------------------

    def predict(self, model: Any, batch: Batch) -> Iterator[dict[str, Any]]:
        """The rank of the row's item among all, and among those not in its sequence, from 0.

        Equal scores come before it, and a score that is no number is last.
        """
        import torch

        items = batch[f"{self.target}.ids"]
        if self.writes(model):
            scores, known = self.probable(model, batch), self.semantic
            assert known is not None
            ids = known.ids.to(items.device)
        else:
            scores = self.compared(model, batch)
            ids = torch.arange(self.items, device=items.device)
        for row, item in enumerate(items.tolist()):
            found = (ids == item).nonzero()
            at = int(found[0, 0]) if len(found) else -1
            mine = scores[row]
            before = ~(mine < mine[at]) if at >= 0 else torch.ones_like(mine, dtype=torch.bool)
            hidden = torch.isin(ids, self.seen(batch, row))
            if at >= 0:
                before[at] = hidden[at] = False
            yield {
                "prediction": int(before.sum()),
                "unseen": int((before & ~hidden).sum()),
                "score": float(mine[at]) if at >= 0 else float("-inf"),
                "reference": int(batch["labels"][row, 0]),
                "among": len(mine),
            }

    def seen(self, batch: Batch, row: int) -> torch.Tensor:
        """The items in a row's sequences of items."""
        import torch

        table = self.schema.table_of(self.schema.sequences()[0])
        names = [one for one in self.schema.sequences() if self.schema.table_of(one) == table]
        return torch.cat([batch[f"{n}.ids"][row][batch[f"{n}.mask"][row]] for n in names])

    def compared(self, model: Any, batch: Batch) -> torch.Tensor:
        """Cosines of the last state with all items [B, items]."""
        import torch

        from joymigrate.run.train.samples.lookup import NEGATIVES

        everything = torch.arange(self.items, device=batch["labels"].device)
        found, rows = model.look_up_both({**batch, NEGATIVES: everything})
        mask = found.events[0][1]
        at = torch.arange(len(mask), device=mask.device)
        state = model.states(found)[at, (mask.sum(1) - 1).clamp(min=0)]
        unit = torch.nn.functional.normalize
        return unit(state, dim=-1) @ unit(rows, dim=-1).T

    def probable(self, model: Any, batch: Batch) -> torch.Tensor:
        """Log-probabilities of all ids [B, N], one row of the batch after the other."""
        import torch

        known = self.semantic
        assert known is not None
        memory = model.dense.read(model.look_up(batch))
        codes = known.codes.to(batch["labels"].device)
        found = []
        for row in range(len(batch["labels"])):
            mine, parts = memory.row(row), []
            for part in torch.split(codes, 2048):
                logits = model.dense.write(mine.repeated(len(part)), part)
                parts.append(model.dense.log_probability(logits, part)[:, 0])
            found.append(torch.cat(parts))
        return torch.stack(found)

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Recall (hit rate) and NDCG at 10, and MRR, over the rows with a label of 1.

        Those that begin with `unseen_` leave out the items of the row's sequence.
        """
        right = [row for row in rows if row["reference"]]
        if not right:
            return {}
        return {
            **rank_metrics([row["prediction"] for row in right]),
            "ranked_among": sum(row["among"] for row in rows) / len(rows),
            **{
                f"unseen_{name}": value
                for name, value in rank_metrics([row["unseen"] for row in right]).items()
            },
        }
