"""The writers of rollouts as a trainer sees them: Ray actors that answer, and may die meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train.reinforcement.rollouts import SampledAnswer

NAMESPACE = "JOYMIGRATE_TRAIN_NAMESPACE"  # of the actors of this run
ATTEMPT = "JOYMIGRATE_TRAIN_ATTEMPT"  # how often its trainers were started
PATIENCE_S = 300.0  # for a writer that is started again
Answers = tuple[list[list[SampledAnswer]], list[float]]


class Writers:
    """The writers as a trainer sees them."""

    def __init__(self) -> None:
        import ray

        from joymigrate.run.train import group

        if NAMESPACE not in os.environ:
            raise JoyError(
                "this process belongs to no controller with writers",
                where="task.rollouts",
                help="rollouts: actors is started by `joymigrate train`, not by torchrun",
            )
        rank, ranks = group.rank(), int(os.environ.get("WORLD_SIZE", "1"))
        self.space = os.environ[NAMESPACE]
        self.ray = ray
        count = int(os.environ["JOYMIGRATE_TRAIN_WRITERS"])
        mine = [number for number in range(count) if number % ranks == rank]
        self.handles = [
            ray.get_actor(f"writer-{number}", namespace=self.space)
            for number in (mine or [rank % count])
        ]
        self.asked = 0

    def answers(
        self,
        weights: Mapping[str, Any],
        config: Mapping[str, Any],
        batch: Mapping[str, Any],
        seed: int,
    ) -> Answers:
        """Every writer has a run of the prompts; the answers come in their order."""
        self.asked += 1
        version = (os.environ[ATTEMPT], self.asked)
        held = [self.ray.put({name: tensor.cpu() for name, tensor in weights.items()})]
        count = len(batch["prompts"])
        edges = [count * part // len(self.handles) for part in range(len(self.handles) + 1)]
        portions = [
            (handle, {name: batch[name][start:stop] for name in ("prompts", "records")}, start)
            for handle, start, stop in zip(self.handles, edges, edges[1:], strict=False)
            if start < stop
        ]
        asked = [
            handle.answers.remote(version, held, config, part, seed, start)
            for handle, part, start in portions
        ]
        found: list[list[SampledAnswer]] = []
        values: list[float] = []
        for number, (handle, part, start) in enumerate(portions):
            some, worth = self.patient(
                asked[number],
                lambda h=handle, p=part, s=start: h.answers.remote(  # type: ignore[misc]
                    version, held, config, p, seed, s
                ),
            )
            found += some
            values += worth
        return found, values

    def patient(self, reference: Any, again: Callable[[], Any]) -> Answers:
        """The answer, asked again while a writer is being started anew."""
        errors = self.ray.exceptions
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                found: Answers = self.ray.get(reference)
                return found
            except (errors.ActorUnavailableError, errors.ActorDiedError) as error:
                if time.monotonic() > deadline:
                    raise JoyError(
                        f"a writer stays away: {str(error).splitlines()[0][:200]}",
                        help="look at Ray's log of the actor",
                    ) from None
                time.sleep(0.2)
                reference = again()
            except errors.RayTaskError as error:
                raise ours(error) from None


def ours(error: Any) -> Exception:
    """The user's mistake that an actor met, as it was raised there; any other error as it is."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, JoyError):
        return JoyError(cause.what, where=cause.where, help=cause.help)
    found: Exception = error
    return found
