"""Group relative policy optimisation: answers that earn more than their group become likelier.

A step writes `group` answers to each of its prompts, rewards them by a function, and takes one
optimiser step. Draws depend on seed, step and rank: a run that was killed goes on with the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train import records
from joymigrate.run.train.tasks import _language
from joymigrate.run.train.tasks.sft import Sft
from joymigrate.run.train.tasks.task import Batch, Context, Task, rows
from joymigrate.run.train.tokens import Sample, TokenCache

if TYPE_CHECKING:
    import torch

    from joymigrate.run.train.reinforcement.rollouts import Rollout


class Grpo(Task):
    """Prompts alone; `reward` says what an answer is worth.

    `FILE.py:NAME`, the folder of a model that `task: reward` trained, or a list of these (summed).
    """

    SCHEMA: ClassVar[str] = '{"prompt": "…" or [messages], and what the reward reads}'
    OPTIONS: ClassVar[Mapping[str, Any]] = {
        **{"reward": None, "group": 8, "new_tokens": 64, "temperature": 1.0},
        **{"epsilon": 0.2, "epsilon_high": None, "beta": 0.0, "scale": True},
        **{"server": None, "server_model": "model"},
    }

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        for name, least in (("group", 2), ("new_tokens", 1)):
            value = self.options[name]
            if not isinstance(value, int) or value < least:
                raise JoyError(f"{name} is {least} or more, got {value!r}", where=f"task.{name}")
        if not float(self.options["temperature"]) > 0:
            raise JoyError("temperature is above 0", where="task.temperature")
        self.sft = Sft(dataclasses.replace(context, options={}))
        self.rewards: list[Any] = []
        self.judges: list[Any] = []  # models
        self.reference: Any = None
        self.last: dict[str, float] = {}

    def fields(self) -> dict[str, str]:
        """A prompt's tokens, and its record as JSON."""
        known = super().fields()
        return {"tokens": known["tokens"], "record": "uint8", "weight": "float32"}

    def encode(self, record: records.Record) -> Sequence[Sample]:
        """One sample per prompt; one longer than `data.max_length` is left out."""
        import numpy as np

        prompt = records.field(record, "prompt")
        if isinstance(prompt, list):
            prompt = self.sft.render(prompt, record, prompt=True)
        tokens = [*self.tokenizer(str(prompt), add_special_tokens=False)["input_ids"]]
        if not tokens or len(tokens) > self.context.max_length:
            return []
        raw = np.frombuffer(json.dumps(dict(record.value)).encode(), np.uint8)
        return [{"tokens": np.asarray(tokens), "record": raw, "weight": np.ones(1)}]

    def samples(self, cache: TokenCache) -> TokenCache:
        """Prompts are not packed."""
        return cache

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Prompts and records as they are; answers come later."""
        return {
            "prompts": [one["tokens"].tolist() for one in samples],
            "records": [json.loads(bytes(one["record"])) for one in samples],
        }

    def prepare(self, model: Any) -> None:
        """The rewards, and with `beta` a copy of the model that answers may not go far from."""
        import copy

        from joymigrate.run.train.reinforcement.rewards import load_reward

        if self.options["reward"] is None:
            raise JoyError("grpo needs a reward", where="task",
                           help="reward: FILE.py:NAME, or a reward model's folder")  # fmt: skip
        named, place = self.options["reward"], self.context.files[0].parent
        for one in named if isinstance(named, list | tuple) else [named]:
            if (place / str(one)).is_dir():
                from joymigrate.run.train.tasks._reward_model import RewardModel

                self.judges.append(RewardModel(place / str(one), self.context.max_length))
            else:
                self.rewards.append(load_reward(str(one), place))
        if self.options["beta"]:
            self.reference = copy.deepcopy(model).eval().requires_grad_(False)

    def answers(self, model: Any, batch: Batch) -> list[list[Rollout]]:
        """`group` answers to each prompt."""
        import torch

        from joymigrate.run.train.reinforcement import rollouts

        wish = self.options
        limit, temperature = int(wish["new_tokens"]), float(wish["temperature"])
        ends = _language.stops(self.tokenizer)
        if wish["server"] is None:
            return rollouts.write_answers(
                model, batch["prompts"], int(wish["group"]), limit, temperature, ends
            )
        seed = int(torch.randint(2**31, ()))
        return rollouts.ask_server(
            wish["server"], wish["server_model"], batch["prompts"], int(wish["group"]), limit,
            temperature, seed,
        )  # fmt: skip

    def rewarded(
        self, batch: Batch, found: Sequence[Sequence[Rollout]], device: Any = "cpu"
    ) -> list[float]:
        """What each answer is worth: the sum of all rewards."""
        values, prompts, texts = [], [], []
        ends = set(_language.stops(self.tokenizer))
        facts = zip(batch["prompts"], batch["records"], found, strict=True)
        for prompt, record, group in facts:
            text = self.tokenizer.decode(prompt)
            for one in group:
                kept = [token for token in one.tokens if token not in ends]
                completion = self.tokenizer.decode(kept, skip_special_tokens=True)
                facts_of = {"prompt": text, "completion": completion, "tokens": kept}
                facts_of["record"] = record
                values.append(sum(reward(facts_of) for reward in self.rewards))
                prompts.append(record["prompt"])
                texts.append(completion)
        for judge in self.judges:
            scores = judge.scores(prompts, texts, device)
            values = [a + b for a, b in zip(values, scores, strict=True)]
        return values

    def logs(self, model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of every token of an answer [N, L - 1], and which these are."""
        logits = model(**self.inputs(batch), use_cache=False).logits
        return _language.target_scores(logits / float(self.options["temperature"]), batch["labels"])

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Write, reward, and the loss: the mean over a prompt's answers, summed over prompts."""
        import numpy as np
        import torch

        from joymigrate.run.train.reinforcement import policy

        found = self.answers(model, batch)
        values = self.rewarded(batch, found, next(model.parameters()).device)
        group = int(self.options["group"])
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
        logs, mask = self.logs(model, made)
        before = logs.detach()
        if self.options["server"] is not None:
            before = before.clone()
            for number, (prompt, one) in enumerate(pairs):
                first = len(prompt) - 1
                before[number, first : first + len(one.tokens)] = torch.tensor(one.logs)
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference, _ = self.logs(self.reference.to(device), made)
        rewards = torch.tensor(values, device=device)
        low = float(self.options["epsilon"])
        high = self.options["epsilon_high"]
        losses = policy.answer_losses(
            logs,
            before,
            policy.advantages(rewards, group, scale=bool(self.options["scale"])),
            mask,
            low=low,
            high=low if high is None else float(high),
            beta=float(self.options["beta"]),
            reference_NT=reference,
        )
        lengths = [len(one.tokens) for _, one in pairs]
        self.last = {
            "reward": round(float(rewards.mean()), 6),
            "answer_tokens": sum(lengths) / len(lengths),
        }
        return losses.sum() / group

    def figures(self) -> dict[str, float]:
        """The mean reward of the last pass, and the length of its answers."""
        return self.last


TASK = Grpo
