"""Reinforcement learning on a recommender that writes semantic ids (OneRec's kind).

A step reads the histories of a batch, lets the model write `group` items for each, asks a function
what each is worth, and takes one optimiser step. Draws depend on seed, step and rank: a run that
was killed goes on with the same ones. B rows, G items of a row, K levels.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train.samples.generative import GenerativeTask
from joymigrate.run.train.samples.lookup import ROLLOUT
from joymigrate.run.train.tasks.task import Batch

if TYPE_CHECKING:
    import torch

    from joymigrate.run.beam import Trie
    from joymigrate.run.train.recommendation.inputs import RowInputs

FACTS = ("history", "item", "codes", "target", "label")


class RewardedTask(GenerativeTask):
    """What both kinds share: the items' trie, rewards, and a frozen copy to stay close to.

    `reward: FILE.py:NAME`, beside the job file. The function takes some of `history` (the row's
    items, the oldest first), `item` and `codes` (what was written), `target` and `label` (the
    logged item and what became of it), and returns a number. Items are rows of the table.
    """

    MODEL: ClassVar[str] = "onerec"

    def check_options(self) -> None:
        """There are ids, a reward, and a group."""
        if self.options["codes"] is None:
            raise JoyError(
                "this task learns from ids that the model writes, and the job names none",
                where="task.codes",
                help="task: {codes: FILE}; joymigrate train ids makes them",
            )
        if self.options["reward"] is None:
            raise JoyError("this task needs a reward", where="task.reward",
                           help="reward: FILE.py:NAME, beside the job file")  # fmt: skip
        group = self.options["group"]
        if not isinstance(group, int) or isinstance(group, bool) or group < 2:
            raise JoyError(f"group is 2 or more, got {group!r}", where="task.group")
        self.frozen: Any = None
        self.reward: Any = None
        self.last: dict[str, float] = {}

    @property
    def needs_frozen(self) -> bool:
        """Whether the loss compares with the model that the run began with."""
        raise NotImplementedError

    def build(self, source: Any) -> Any:
        """The model; and where it is compared, the same once more."""
        model = super().build(source)
        if not self.writes(model):
            raise JoyError(
                f"'{model.sizes['model_type']}' writes no ids",
                where="model.from_config.model_type",
                help="model_type: onerec",
            )
        if self.needs_frozen:
            if self.tables.cache_rows is not None and self.tables.store != "memory":
                raise JoyError(
                    "the frozen copy of this task has rows of its own, and the store is one",
                    where="tables.store",
                    help="leave tables.store and cache_rows out",
                )
            self.frozen = super().build(source).eval().requires_grad_(False)
        return model

    def prepare(self, model: Any) -> None:
        """The reward."""
        from joymigrate.run.train.reinforcement.rewards import load_reward

        self.reward = load_reward(self.options["reward"], Path(), FACTS)

    @functools.cached_property
    def trie(self) -> Trie:
        """The ids of all items."""
        from joymigrate.run.beam import Trie

        assert self.semantic is not None
        return Trie.of(self.semantic.codes, self.semantic.ids)

    def trie_on(self, device: torch.device) -> Trie:
        """The same where the model is."""
        if self.trie.first.device != device:
            self.trie = self.trie.to(device)
        return self.trie

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Summed over rows. Everything happens inside the one call of the model."""
        losses: torch.Tensor = model({**batch, ROLLOUT: functools.partial(self.rollout, batch)})
        return losses.sum()

    def rollout(self, batch: Batch, dense: Any, found: RowInputs) -> torch.Tensor:
        """Write, reward, and the loss of each row [B]."""
        raise NotImplementedError

    def worth(
        self, batch: Batch, row: int, codes: torch.Tensor, items: torch.Tensor
    ) -> list[float]:
        """What each of a row's written items is worth."""
        name = self.schema.sequences()[0]
        seen = batch[f"{name}.ids"][row][batch[f"{name}.mask"][row]].tolist()
        facts = {
            "history": seen,
            "target": int(batch[f"{self.target}.ids"][row]),
            "label": float(batch["labels"][row, 0]),
        }
        return [
            self.reward({**facts, "item": item, "codes": written})
            for item, written in zip(items.tolist(), codes.tolist(), strict=True)
        ]

    def frozen_memory(self, batch: Batch) -> Any:
        """What the frozen copy makes of the batch's histories."""
        self.frozen.to(batch["labels"].device)
        return self.frozen.dense.read(self.frozen.look_up(batch))

    def figures(self) -> dict[str, float]:
        """The mean reward of the last pass."""
        return self.last


class ItemGrpo(RewardedTask):
    """Group relative policy optimisation: items that earn more than their group become likelier.

    The items of a row are drawn from the model at `temperature`.
    """

    OPTIONS: ClassVar[Mapping[str, Any]] = {
        **{"codes": None, "reward": None, "group": 8, "temperature": 1.0},
        **{"epsilon": 0.2, "epsilon_high": None, "beta": 0.0, "scale": True},
    }

    def check_options(self) -> None:
        """The temperature too."""
        super().check_options()
        temperature = self.options["temperature"]
        if not isinstance(temperature, int | float) or temperature <= 0:
            raise JoyError(f"temperature is above 0, got {temperature!r}", where="task.temperature")

    @property
    def needs_frozen(self) -> bool:
        """Only with `beta`."""
        return bool(self.options["beta"])

    def rollout(self, batch: Batch, dense: Any, found: RowInputs) -> torch.Tensor:
        """One group of drawn items for each row."""
        import torch

        from joymigrate.run.train.reinforcement import policy
        from joymigrate.run.train.samples.written import draw_ids, log_probabilities

        wish = self.options
        group, temperature = int(wish["group"]), float(wish["temperature"])
        trie = self.trie_on(batch["labels"].device)
        memory = dense.read(found).each(group)
        codes, leaves = draw_ids(dense, memory, trie, temperature)
        items = trie.items_of(leaves)
        values = [
            value
            for row, (some, written) in enumerate(
                zip(torch.split(items, group), torch.split(codes, group), strict=True)
            )
            for value in self.worth(batch, row, written, some)
        ]
        logs = log_probabilities(dense.write(memory, codes), codes, trie, temperature)
        before = None
        if self.frozen is not None:
            with torch.no_grad():
                frozen = self.frozen_memory(batch).each(group)
                written = self.frozen.dense.write(frozen, codes)
                before = log_probabilities(written, codes, trie, temperature)
        rewards = torch.tensor(values, device=logs.device)
        low, high = float(wish["epsilon"]), wish["epsilon_high"]
        losses = policy.answer_losses(
            logs,
            logs.detach(),
            policy.advantages(rewards, group, scale=bool(wish["scale"])),
            torch.ones_like(logs),
            low=low,
            high=low if high is None else float(high),
            beta=float(wish["beta"]),
            reference_NT=before,
        )
        self.last = {
            "reward": round(float(rewards.mean()), 6),
            "distinct": len(set(items.tolist())) / len(items),
        }
        return losses.view(-1, group).mean(1)


class ItemDpo(RewardedTask):
    """Direct preference optimisation on the model's own beams (OneRec, section 3.4).

    Beam search writes the `group` likeliest items of a row; the best rewarded one is preferred to
    the worst. A row whose items are worth the same teaches nothing.
    """

    OPTIONS: ClassVar[Mapping[str, Any]] = {
        **{"codes": None, "reward": None, "group": 8},
        **{"beta": 0.1, "loss": "sigmoid", "smoothing": 0.0},
    }

    def check_options(self) -> None:
        """The loss too."""
        from joymigrate.run.train.tasks.dpo import LOSSES

        super().check_options()
        if self.options["loss"] not in LOSSES:
            raise JoyError(
                f"unknown loss '{self.options['loss']}'", help=f"one of {', '.join(LOSSES)}"
            )

    @property
    def needs_frozen(self) -> bool:
        """Always."""
        return True

    def rollout(self, batch: Batch, dense: Any, found: RowInputs) -> torch.Tensor:
        """The best and the worst of the beams of each row."""
        import torch

        from joymigrate.run.train.reinforcement import policy
        from joymigrate.run.train.samples.written import best_ids, log_probabilities

        trie = self.trie_on(batch["labels"].device)
        memory = dense.read(found)
        kept: list[torch.Tensor] = []
        apart: list[bool] = []
        worth: list[float] = []
        for row, (codes, leaves) in enumerate(
            best_ids(dense, memory, trie, int(self.options["group"]))
        ):
            values = self.worth(batch, row, codes, trie.items_of(leaves))
            best, worst = values.index(max(values)), values.index(min(values))
            kept += [codes[best], codes[worst]]
            apart.append(values[best] > values[worst])
            worth += values
        pairs = torch.stack(kept)

        def logs(model: Any, read: Any) -> torch.Tensor:
            written = model.write(read.each(2), pairs)
            return log_probabilities(written, pairs, trie, 1.0).sum(1).view(-1, 2)

        with torch.no_grad():
            before = logs(self.frozen.dense, self.frozen_memory(batch))
        better, worse = (logs(dense, memory) - before).unbind(1)
        mask = torch.tensor(apart, device=better.device)
        losses = policy.pair_losses(
            better - worse, self.options["loss"], float(self.options["beta"]),
            float(self.options["smoothing"]),
        )  # fmt: skip
        self.last = {
            "reward": round(sum(worth) / len(worth), 6),
            "pairs": sum(apart) / len(apart),
        }
        return losses * mask
