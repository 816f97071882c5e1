"""Group relative policy optimisation: answers that earn more than their group become likelier.

A step writes `group` answers to each of its prompts, rewards them by a function, and takes
`updates` optimiser steps with them. Draws depend on seed, step and rank: a run that was killed goes
on with the same.

`rollouts` says who writes: `model` (transformers' model in training), `engine` (our serving engine
in the same process), `actors` (`writers` engines with the rewards, Ray actors of their own); a
`server` may write instead.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.reinforcement.rollout_task import RolloutTask
from joymigrate.run.train.tasks import _language
from joymigrate.run.train.tasks.sft import Sft
from joymigrate.run.train.tasks.task import TOKENS, Task, TaskContext, rows

if TYPE_CHECKING:
    import torch

    from joymigrate.device import Device
    from joymigrate.run.train.reinforcement.engine_writer import EngineWriter
    from joymigrate.run.train.reinforcement.rollouts import SampledAnswer
    from joymigrate.run.train.tasks._reward_model import RewardModel

ELSEWHERE = ("server", "server_model", "rollouts", "writers")  # who writes: other trainers say so


class Grpo(RolloutTask, Task):
    """Prompts alone; `reward` says what an answer is worth.

    `FILE.py:NAME`, the folder of a model that `task: reward` trained, or a list of these (summed).
    """

    SCHEMA: ClassVar[str] = '{"prompt": "…" or [messages], and what the reward reads}'
    FIELDS: ClassVar[Mapping[str, str]] = {"tokens": TOKENS, "record": "uint8"}  # as JSON
    OPTIONS: ClassVar[Mapping[str, Any]] = {
        **{"reward": None, "group": 8, "new_tokens": 64, "temperature": 1.0},
        **{"epsilon": 0.2, "epsilon_high": None, "beta": 0.0, "scale": True},
        **{"server": None, "server_model": "model"},
        **{"rollouts": "model", "writers": 1, "updates": 1},
    }

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        self.start_rollouts()
        if self.options["server"] is not None and self.options["rollouts"] != "model":
            raise JoyError(
                f"a server writes, or rollouts: {self.options['rollouts']}, not both",
                where="task.server",
            )
        self.updates = self.options["updates"]
        self.sft = Sft(dataclasses.replace(context, options={}))
        self.reference: Any = None

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample per prompt; one longer than `data.max_length` is left out."""
        import numpy as np

        prompt = record.require("prompt")
        if isinstance(prompt, list):
            prompt = self.sft.render(prompt, record, prompt=True)
        else:
            prompt = record.text("prompt")
        tokens = [*self.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
        record.used.update(record.value)  # a reward reads what it likes
        if not tokens or len(tokens) > self.context.max_length:
            record.fate.dropped = (
                "its prompt is longer than data.max_length" if tokens else "its prompt is empty"
            )
            return []
        raw = np.frombuffer(json.dumps(dict(record.value)).encode(), np.uint8)
        return [{"tokens": np.asarray(tokens), "record": raw, "weight": np.ones(1)}]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Prompts and records as they are; answers come later, and are kept for `updates`."""
        return {
            "kept": {},
            "prompts": [one["tokens"].tolist() for one in samples],
            "records": [json.loads(bytes(one["record"])) for one in samples],
        }

    def prepare(self, model: Any) -> None:
        """The rewards, and with `beta` a copy of the model that answers may not go far from."""
        import copy

        if self.options["rollouts"] != "actors":
            self.load_rewards()
        if self.options["beta"]:
            self.reference = copy.deepcopy(model).eval().requires_grad_(False)

    @property
    def place(self) -> Path:
        """Rewards lie beside the data."""
        return self.context.files[0].parent

    def judge(self, folder: Path) -> RewardModel:
        """A model that `task: reward` trained."""
        from joymigrate.run.train.tasks._reward_model import RewardModel

        return RewardModel(folder, self.context.max_length)

    def engine_writer(self, config: Mapping[str, Any], device: Device) -> EngineWriter:
        """Our engine for this task's answers."""
        from joymigrate.run.train.reinforcement.engine_writer import EngineWriter

        longest = self.context.max_length + int(self.options["new_tokens"])
        return EngineWriter(config, _language.stops(self.tokenizer), device, longest)

    def written(
        self, writer: EngineWriter, batch: Batch, seed: int, first: int = 0
    ) -> list[list[SampledAnswer]]:
        """`group` answers of an engine to each prompt."""
        wish = self.options
        return writer.write(
            batch["prompts"], int(wish["group"]), int(wish["new_tokens"]),
            float(wish["temperature"]), seed, first,
        )  # fmt: skip

    def answers(self, model: Any, batch: Batch) -> tuple[list[list[SampledAnswer]], list[float]]:
        """`group` answers to each prompt, and what each is worth."""
        import torch

        from joymigrate.run.train.reinforcement import rollouts

        wish = self.options
        device = next(model.parameters()).device
        if wish["server"] is None and wish["rollouts"] == "model":
            found = rollouts.write_answers(
                model, batch["prompts"], int(wish["group"]), int(wish["new_tokens"]),
                float(wish["temperature"]), _language.stops(self.tokenizer),
            )  # fmt: skip
            return found, self.rewarded(batch, found, device)
        if wish["server"] is not None:
            found = rollouts.ask_server(
                wish["server"], wish["server_model"], batch["prompts"], int(wish["group"]),
                int(wish["new_tokens"]), float(wish["temperature"]), int(torch.randint(2**31, ())),
            )  # fmt: skip
            return found, self.rewarded(batch, found, device)
        from joymigrate.run.train.reinforcement import engine_writer

        config = engine_writer.config_of(model)
        return self.by_writers(engine_writer.whole_weights(model), config, batch, device)

    def rewarded(
        self, batch: Batch, found: Sequence[Sequence[SampledAnswer]], device: Any = "cpu"
    ) -> list[float]:
        """What each answer is worth: the sum of all rewards."""
        told, prompts = [], []
        ends = set(_language.stops(self.tokenizer))
        for prompt, record, group in zip(batch["prompts"], batch["records"], found, strict=True):
            text = self.tokenizer.decode(prompt)
            for one in group:
                kept = [token for token in one.tokens if token not in ends]
                completion = self.tokenizer.decode(kept, skip_special_tokens=True)
                facts = {"prompt": text, "completion": completion, "tokens": kept}
                told.append({**facts, "record": record})
                prompts.append(record["prompt"])
        texts = [facts["completion"] for facts in told]
        return self.summed(told, lambda judge: judge.scores(prompts, texts, device))

    def logs(self, model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of every token of an answer [N, L - 1], and which these are."""
        logits = model(**self.inputs(batch), use_cache=False).logits
        return _language.target_scores(logits / float(self.options["temperature"]), batch["labels"])

    def gather(self, model: Any, batch: Batch) -> dict[str, Any]:
        """What the updates of a step share: answers as tensors, gains, log-probabilities."""
        import numpy as np
        import torch

        from joymigrate.run.train.reinforcement import policy

        found, values = self.answers(model, batch)
        pairs = [(p, one) for p, some in zip(batch["prompts"], found, strict=True) for one in some]
        made = rows(
            [
                _language.document(
                    np.array([*prompt, *one.tokens]),
                    np.array([len(prompt), len(prompt) + len(one.tokens)]),
                )
                for prompt, one in pairs
            ],
            self.tokenizer.pad_token_id or 0,
        )
        device = next(model.parameters()).device
        made = {name: tensor.to(device) for name, tensor in made.items()}
        rewards = torch.tensor(values, device=device)
        group, scale = int(self.options["group"]), bool(self.options["scale"])
        kept: dict[str, Any] = {
            "answers": made,
            "gains": policy.advantages(rewards, group, scale=scale),
            "reference": None,
            "before": None,
        }
        if self.options["server"] is not None:
            before = torch.zeros(made["labels"].shape, device=device)[:, 1:]
            for number, (prompt, one) in enumerate(pairs):
                first = len(prompt) - 1
                before[number, first : first + len(one.tokens)] = torch.tensor(one.logs)
            kept["before"] = before
        if self.reference is not None:
            with torch.no_grad():
                kept["reference"], _ = self.logs(self.reference.to(device), made)
        lengths = [len(one.tokens) for _, one in pairs]
        self.last = {
            "reward": round(float(rewards.mean()), 6),
            "answer_tokens": sum(lengths) / len(lengths),
        }
        return kept

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Write, reward, and the loss: the mean over a prompt's answers, summed over prompts.

        A batch that comes again (`updates`) has the answers of the first time.
        """
        from joymigrate.run.train.reinforcement import policy

        kept = batch["kept"]
        if not kept:
            kept.update(self.gather(model, batch))
        logs, mask = self.logs(model, kept["answers"])
        if kept["before"] is None:
            kept["before"] = logs.detach()
        low, high = float(self.options["epsilon"]), self.options["epsilon_high"]
        losses = policy.answer_losses(
            logs,
            kept["before"],
            kept["gains"],
            mask,
            low=low,
            high=low if high is None else float(high),
            beta=float(self.options["beta"]),
            reference_NT=kept["reference"],
        )
        return losses.sum() / int(self.options["group"])


TASK = Grpo
