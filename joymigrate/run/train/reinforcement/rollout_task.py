"""What tasks share that write answers, ask what each is worth, and learn from that.

`rollouts` says who writes: `model` (the one in training), `engine` (a copy in the same process),
`actors` (`writers` copies with the rewards, Ray actors of their own).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.reinforcement.rewards import NAMES, load_reward

if TYPE_CHECKING:
    import torch

    from joymigrate.device import Device
    from joymigrate.run.train.reinforcement.rollouts import SampledAnswer

ROLLOUTS = ("model", "engine", "actors")
Written = tuple[list[list["SampledAnswer"]], list[float]]


class RolloutTask:
    """Rewards and writers; beside `Task`, which gives `options`."""

    EVALUATES: ClassVar[bool] = False
    FACTS: ClassVar[Sequence[str]] = NAMES  # what a function of the user's may ask for
    options: dict[str, Any]

    def start_rollouts(self) -> None:
        """Look at the options that all of them have. `JoyError` for what cannot be."""
        wish = self.options
        named = wish["rollouts"]
        if named not in ROLLOUTS:
            raise JoyError(
                f"unknown rollouts '{named}'.{did_you_mean(str(named), ROLLOUTS)}",
                where="task.rollouts", help=f"one of {', '.join(ROLLOUTS)}",
            )  # fmt: skip
        for name, least in (("group", 2), ("new_tokens", 1), ("writers", 1), ("updates", 1)):
            value = wish.get(name, least)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise JoyError(f"{name} is {least} or more, got {value!r}", where=f"task.{name}")
        temperature = wish.get("temperature", 1.0)
        if not isinstance(temperature, int | float) or not temperature > 0:
            raise JoyError(f"temperature is above 0, got {temperature!r}", where="task.temperature")
        if wish["writers"] != 1 and named != "actors":
            raise JoyError("writers are actors of their own", where="task.writers",
                           help="rollouts: actors")  # fmt: skip
        self.rewards: list[Any] = []
        self.judges: list[Any] = []  # models
        self.writers: Any = None  # an engine, or actors that have some
        self.last: dict[str, float] = {}

    def load_rewards(self) -> None:
        """What says what an answer is worth: functions, and folders of models."""
        named, place = self.options["reward"], self.place
        if not named:
            raise JoyError("this task needs a reward", where="task.reward",
                           help="reward: FILE.py:NAME, or a reward model's folder")  # fmt: skip
        for one in [named] if isinstance(named, str) else named:
            if (place / str(one)).is_dir():
                self.judges.append(self.judge(place / str(one)))
            else:
                self.rewards.append(load_reward(str(one), place, self.FACTS))

    @property
    def place(self) -> Path:
        """Where the names of rewards start."""
        raise NotImplementedError

    def judge(self, folder: Path) -> Any:
        """The reward model of a folder."""
        raise NotImplementedError

    def engine_writer(self, config: Mapping[str, Any], device: Device) -> Any:
        """What writes instead of the model, without weights yet."""
        raise NotImplementedError

    def written(
        self, writer: Any, batch: Any, seed: int, first: int = 0
    ) -> list[list[SampledAnswer]]:
        """`group` answers of a writer to each prompt."""
        raise NotImplementedError

    def rewarded(
        self, batch: Any, found: Sequence[Sequence[Any]], device: Any = "cpu"
    ) -> list[float]:
        """What each answer is worth."""
        raise NotImplementedError

    def summed(
        self, facts: Sequence[Mapping[str, Any]], judged: Callable[[Any], Sequence[float]]
    ) -> list[float]:
        """The sum of all rewards; functions get the facts of one answer, models score all."""
        values = [float(sum(reward(one) for reward in self.rewards)) for one in facts]
        for judge in self.judges:
            values = [a + b for a, b in zip(values, judged(judge), strict=True)]
        return values

    def by_writers(
        self,
        weights: Mapping[str, torch.Tensor],
        config: Mapping[str, Any],
        batch: Mapping[str, Any],
        where: torch.device,
    ) -> Written:
        """Answers of an engine or of actors that get these weights, and what each is worth."""
        import torch

        seed = int(torch.randint(2**31, ()))
        if self.options["rollouts"] == "actors":
            if self.writers is None:
                from joymigrate.run.train.reinforcement.writers import Writers

                self.writers = Writers()
            found: Written = self.writers.answers(weights, config, batch, seed)
            return found
        if self.writers is None:
            self.writers = self.engine_writer(config, device_of(where))
        self.writers.load(weights)
        answers = self.written(self.writers, batch, seed)
        return answers, self.rewarded(batch, answers, where)

    def figures(self) -> dict[str, float]:
        """What there is to tell of the last pass: its mean reward, and more."""
        return self.last


def device_of(where: torch.device) -> Device:
    """The opened device that a model is on."""
    from joymigrate.chips import all_chips
    from joymigrate.device import open_device

    if where.type == "cpu":
        return open_device(None)
    chips = [chip for chip in all_chips().values() if chip.device == where.type]
    return open_device(min(chips, key=lambda chip: not chip.origin), required=True)
