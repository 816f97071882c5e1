"""A reward model of items: an exported click model says how likely the written item is clicked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train import recommendation
from joymigrate.run.train.samples.job import TableSettings
from joymigrate.run.train.samples.lookup import ASKED, Recommender
from joymigrate.run.train.samples.schema import FeatureSchema
from joymigrate.schema import read

Inputs = Mapping[str, Tensor]  # of one row of a batch


class ItemJudge:
    """The model of a folder that `train export` wrote, over features that this job has too."""

    def __init__(self, folder: Path, schema: FeatureSchema, target: str) -> None:
        from joymigrate.run.train.samples.tasks import exported_sizes

        sizes = recommendation.sizes_of(exported_sizes(folder))
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))["features"]
        self.schema, self.target = read(FeatureSchema, document, str(folder)), target
        for name, feature in self.schema.features.items():
            if schema.features.get(name) != feature:
                raise JoyError(
                    f"the reward model reads the feature '{name}' as {feature}, and this job's "
                    f"schema has {schema.features.get(name, 'no such one')}",
                    where=str(folder),
                    help="train the reward model with this job's schema",
                )
        crosses = [name for name, one in self.schema.features.items() if target in one.of]
        for name in (*self.schema.bags(), *crosses):
            raise JoyError(
                f"a reward model reads no bags, and no crosses of the item: '{name}'",
                where=str(folder),
            )
        if target not in self.schema.features or self.schema.dense() != schema.dense():
            raise JoyError(
                f"the reward model does not read '{target}', or other numbers than this job",
                where=str(folder),
                help="train the reward model with this job's schema",
            )
        self.model = Recommender(self.schema, sizes, TableSettings(), seed=0)
        self.model.start_from(folder)
        self.model.eval().requires_grad_(False)

    @torch.no_grad()
    def scores(self, rows: Sequence[Inputs], items: Sequence[int], device: Any) -> list[float]:
        """The probability of a click on each item, in the place of its row's own."""
        if not rows:
            return []
        names = {"numbers", ASKED}
        for name in self.schema.features:
            names |= {f"{name}.ids", f"{name}.mask", f"{name}.times"}
        made = {
            name: torch.stack([row[name] for row in rows]).to(device)
            for name in names & rows[0].keys()
        }
        made[f"{self.target}.ids"] = torch.tensor(items, device=device)
        made["labels"] = torch.zeros(len(rows), len(self.schema.label), device=device)
        self.model.to(device)
        found: list[float] = self.model(made)[:, 0].float().sigmoid().tolist()
        return found
