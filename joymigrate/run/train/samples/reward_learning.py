"""Reinforcement learning on a recommender that writes semantic ids (OneRec's kind).

A step reads the histories of a batch, lets the model write `group` items for each, asks functions
or reward models what each is worth, and takes one optimiser step. Draws depend on seed, step and
rank: a run that was killed goes on with the same ones. B rows, G items of a row, K levels.

`rollouts` says who writes: `model` (the one in training), `engine` (a copy of its dense part in
the same process), `actors` (`writers` copies with the rewards, Ray actors of their own).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train.columns import Batch
from joymigrate.run.train.reinforcement.rollout_task import RolloutTask
from joymigrate.run.train.samples.generative import GenerativeTask
from joymigrate.run.train.samples.lookup import ROLLOUT

if TYPE_CHECKING:
    import torch

    from joymigrate.run.beam import Trie
    from joymigrate.run.train.recommendation.inputs import RowInputs
    from joymigrate.run.train.reinforcement.rollouts import SampledAnswer
    from joymigrate.run.train.samples.item_judge import ItemJudge
    from joymigrate.run.train.samples.item_writer import ItemWriter


class RewardedTask(RolloutTask, GenerativeTask):
    """What both kinds share: the items' trie, rewards, and a frozen copy to stay close to.

    `reward: FILE.py:NAME`, beside the job file. The function takes some of `history` (the row's
    items, the oldest first), `item` and `codes` (what was written), `target` and `label` (the
    logged item and what became of it), and returns a number. Items are rows of the table. A folder
    of an exported click model may stand there too (`item_judge.py`), or a list of both.
    """

    MODEL: ClassVar[str] = "onerec"
    FACTS: ClassVar[Sequence[str]] = ("history", "item", "codes", "target", "label")

    def check_options(self) -> None:
        """There are ids, a reward, and a group."""
        if self.options["codes"] is None:
            raise JoyError(
                "this task learns from ids that the model writes, and the job names none",
                where="task.codes",
                help="task: {codes: FILE}; joymigrate train ids makes them",
            )
        if not self.options["reward"]:
            raise JoyError("this task needs a reward", where="task.reward",
                           help="reward: FILE.py:NAME, beside the job file")  # fmt: skip
        self.start_rollouts()
        self.frozen: Any = None
        self.config: dict[str, Any] = {}

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
        """The rewards, where this process asks them."""
        from joymigrate.run.train.samples import item_writer

        if self.options["rollouts"] != "actors":
            self.load_rewards()
        self.config = item_writer.config_of(model)

    @property
    def place(self) -> Path:
        """The names of rewards are whole: those of a job are made so before."""
        return Path()

    def judge(self, folder: Path) -> ItemJudge:
        """An exported click model."""
        from joymigrate.run.train.samples.item_judge import ItemJudge

        return ItemJudge(folder, self.schema, self.target)

    @functools.cached_property
    def item_of(self) -> dict[tuple[int, ...], int]:
        """The item of each semantic id."""
        known = self.semantic
        assert known is not None
        return dict(zip(map(tuple, known.codes.tolist()), known.ids.tolist(), strict=True))

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

    @property
    def draws(self) -> float | None:
        """The temperature of drawn items; None: the likeliest ones by beams."""
        raise NotImplementedError

    def engine_writer(self, config: Mapping[str, Any], device: Any) -> ItemWriter:
        """A copy of the dense part, without weights yet."""
        from joymigrate.run.train.samples.item_writer import ItemWriter

        return ItemWriter(config, device.at(), self.trie_on(device.at()))

    def written(
        self, writer: ItemWriter, batch: Batch, seed: int, first: int = 0
    ) -> list[list[SampledAnswer]]:
        """`group` items of a writer for each history."""
        return writer.write(batch["prompts"], int(self.options["group"]), self.draws, seed, first)

    def asked(self, batch: Batch, dense: Any, found: RowInputs) -> tuple[torch.Tensor, list[float]]:
        """Codes of the written items [B x G, K], row by row, and what each is worth."""
        import torch

        from joymigrate.run.train.reinforcement.engine_writer import whole_weights
        from joymigrate.run.train.samples.item_writer import prompts_of

        where = batch["labels"].device
        records = self.records(batch)
        if self.options["rollouts"] == "model":
            answers = self.own(dense, found, where)
            values = self.rewarded({"records": records}, answers, where)
        else:
            asks = {"prompts": prompts_of(found), "records": records}
            answers, values = self.by_writers(whole_weights(dense), self.config, asks, where)
        codes = [one.tokens for group in answers for one in group]
        made = torch.tensor(codes, dtype=torch.long, device=where)
        return made.view(-1, self.trie.rounds), values

    def own(self, dense: Any, found: RowInputs, where: torch.device) -> list[list[SampledAnswer]]:
        """Items written by the model in training itself."""
        raise NotImplementedError

    def records(self, batch: Batch) -> list[dict[str, Any]]:
        """What a reward may ask of each row, and what reward models read of it."""
        name = self.schema.sequences()[0]
        ids, mask = batch[f"{name}.ids"].cpu(), batch[f"{name}.mask"].cpu()
        targets, labels = batch[f"{self.target}.ids"].tolist(), batch["labels"][:, 0].tolist()
        rows: list[dict[str, Any]] = [
            {"history": ids[row][mask[row]].tolist(), "target": target, "label": label}
            for row, (target, label) in enumerate(zip(targets, labels, strict=True))
        ]
        if self.has_judges:
            held = {key: tensor.cpu() for key, tensor in batch.items() if key != "labels"}
            for row, record in enumerate(rows):
                record["inputs"] = {key: tensor[row] for key, tensor in held.items()
                                    if len(tensor) == len(rows)}  # fmt: skip
        return rows

    @property
    def has_judges(self) -> bool:
        """Whether a reward is a model."""
        named = self.options["reward"]
        return any(Path(one).is_dir() for one in ([named] if isinstance(named, str) else named))

    def rewarded(
        self,
        batch: Mapping[str, Any],
        found: Sequence[Sequence[SampledAnswer]],
        device: Any = "cpu",
    ) -> list[float]:
        """What each written item is worth: the sum of all rewards."""
        told, rows = [], []
        for record, group in zip(batch["records"], found, strict=True):
            facts = {key: value for key, value in record.items() if key != "inputs"}
            for one in group:
                item = self.item_of[tuple(one.tokens)]
                told.append({**facts, "item": item, "codes": one.tokens})
                rows.append(record.get("inputs"))
        items = [facts["item"] for facts in told]
        return self.summed(told, lambda judge: judge.scores(rows, items, device))

    def frozen_memory(self, batch: Batch) -> Any:
        """What the frozen copy makes of the batch's histories."""
        self.frozen.to(batch["labels"].device)
        return self.frozen.dense.read(self.frozen.look_up(batch))


class ItemGrpo(RewardedTask):
    """Group relative policy optimisation: items that earn more than their group become likelier.

    The items of a row are drawn from the model at `temperature`.
    """

    OPTIONS: ClassVar[Mapping[str, Any]] = {
        **{"codes": None, "reward": None, "group": 8, "temperature": 1.0},
        **{"epsilon": 0.2, "epsilon_high": None, "beta": 0.0, "scale": True},
        **{"rollouts": "model", "writers": 1},
    }

    @property
    def needs_frozen(self) -> bool:
        """Only with `beta`."""
        return bool(self.options["beta"])

    @property
    def draws(self) -> float | None:
        """Drawn ones."""
        return float(self.options["temperature"])

    def own(self, dense: Any, found: RowInputs, where: torch.device) -> list[list[SampledAnswer]]:
        """All rows of the batch together."""
        from joymigrate.run.train.samples.generated_ids import draw_ids

        group = int(self.options["group"])
        memory = dense.read(found).each(group)
        codes, _ = draw_ids(dense, memory, self.trie_on(where), float(self.options["temperature"]))
        return in_groups(codes.tolist(), group)

    def rollout(self, batch: Batch, dense: Any, found: RowInputs) -> torch.Tensor:
        """One group of drawn items for each row."""
        import torch

        from joymigrate.run.train.reinforcement import policy
        from joymigrate.run.train.samples.generated_ids import log_probabilities

        wish = self.options
        group, temperature = int(wish["group"]), float(wish["temperature"])
        trie = self.trie_on(batch["labels"].device)
        codes, values = self.asked(batch, dense, found)
        memory = dense.read(found).each(group)
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
            "distinct": len(set(map(tuple, codes.tolist()))) / max(1, len(codes)),
        }
        return losses.view(-1, group).mean(1)


class ItemDpo(RewardedTask):
    """Direct preference optimisation on the model's own beams (OneRec, section 3.4).

    Beam search writes the `group` likeliest items of a row; the best rewarded one is preferred to
    the worst. A row whose items are worth the same teaches nothing.
    """

    OPTIONS: ClassVar[Mapping[str, Any]] = {
        **{"codes": None, "reward": None, "group": 8},
        **{"beta": 0.1, "loss": "sigmoid", "smoothing": 0.0, "rollouts": "model", "writers": 1},
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

    @property
    def draws(self) -> float | None:
        """The likeliest ones."""
        return None

    def own(self, dense: Any, found: RowInputs, where: torch.device) -> list[list[SampledAnswer]]:
        """Beams over all rows of the batch."""
        from joymigrate.run.train.reinforcement.rollouts import SampledAnswer
        from joymigrate.run.train.samples.generated_ids import best_ids

        trie, group = self.trie_on(where), int(self.options["group"])
        rows = best_ids(dense, dense.read(found), trie, group)
        return [[SampledAnswer(one) for one in codes.tolist()] for codes, _ in rows]

    def rollout(self, batch: Batch, dense: Any, found: RowInputs) -> torch.Tensor:
        """The best and the worst of the beams of each row."""
        import torch

        from joymigrate.run.train.reinforcement import policy
        from joymigrate.run.train.samples.generated_ids import log_probabilities

        trie = self.trie_on(batch["labels"].device)
        codes, worth = self.asked(batch, dense, found)
        memory, group = dense.read(found), int(self.options["group"])
        kept: list[torch.Tensor] = []
        apart: list[bool] = []
        for at in range(0, len(worth), group):
            values = worth[at : at + group]
            best, worst = values.index(max(values)), values.index(min(values))
            kept += [codes[at + best], codes[at + worst]]
            apart.append(values[best] > values[worst])
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
            "reward": round(sum(worth) / max(1, len(worth)), 6),
            "pairs": sum(apart) / max(1, len(apart)),
        }
        return losses * mask


def in_groups(codes: Sequence[list[int]], group: int) -> list[list[SampledAnswer]]:
    """One behind the other, as groups."""
    from joymigrate.run.train.reinforcement.rollouts import SampledAnswer

    made = [SampledAnswer(one) for one in codes]
    return [made[at : at + group] for at in range(0, len(made), group)]
