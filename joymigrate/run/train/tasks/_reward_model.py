"""Rewards of answers by a model that `task: reward` trained: a folder with one output per text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train.records import TrainingRecord
from joymigrate.run.train.tasks.reward import Reward
from joymigrate.run.train.tasks.task import TaskContext

AT_ONCE = 64  # answers in one pass of the model


class RewardModel:
    """Scores answers as its training did: prompt and answer in the same form.

    `usual` is the most tokens of a text where the model does not say how many it can read.
    """

    def __init__(self, folder: Path, usual: int) -> None:
        from transformers import AutoModelForSequenceClassification

        from joymigrate.run.train import tokenizer

        self.folder = folder
        try:
            model = AutoModelForSequenceClassification.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise JoyError(f"this is no reward model: {error}", where=str(folder)) from None
        if model.config.num_labels != 1:
            raise JoyError(
                f"the model gives {model.config.num_labels} scores for a text, not one",
                where=str(folder),
                help="task: reward trains one that gives one",
            )
        self.model: Any = model.eval().requires_grad_(False)
        self.limit = int(getattr(model.config, "max_position_embeddings", 0) or usual)
        self.task = Reward(TaskContext(tokenizer.load(None, folder), max_length=self.limit))
        self.task.sft.options["learn"] = "all"  # an answer without a text has a score too

    def scores(self, prompts: Sequence[Any], answers: Sequence[str], device: Any) -> list[float]:
        """One score for each answer to its prompt: a text, or messages."""
        import torch

        samples = [self.sample(*pair) for pair in zip(prompts, answers, strict=True)]
        self.model.to(device)
        found: list[float] = []
        with torch.no_grad():
            for at in range(0, len(samples), AT_ONCE):
                part = samples[at : at + AT_ONCE]
                batch = {name: value.to(device) for name, value in self.task.collate(part).items()}
                scores = self.task.forward(self.model, batch).float()
                found += scores[: len(part)].tolist()
        if any(score != score for score in found):
            raise JoyError("the reward model's score of an answer is nan", where=str(self.folder))
        return found

    def sample(self, prompt: Any, answer: str) -> Any:
        """The answer as the better one of a pair with an empty one."""
        side: Any = answer
        other: Any = "," if answer == "." else "."
        if isinstance(prompt, list):
            side, other = ([{"role": "assistant", "content": text}] for text in (answer, other))
        record = TrainingRecord(
            {"prompt": prompt, "chosen": side, "rejected": other}, str(self.folder)
        )
        made = self.task.encode(record)
        if not made or int(made[0]["cut"][0]) >= self.limit:  # training cuts there
            raise JoyError(
                f"a prompt and its answer are longer than {self.limit} tokens, its most",
                where=str(self.folder),
                help="lower data.max_length or task.new_tokens",
            )
        return made[0]
