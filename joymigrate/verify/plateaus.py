"""Schedulers that follow a measured result: what they are given, and what they make of it.

Rounding moves a result over a threshold now and then, and the rate falls in another step. Whether
the scheduler itself is the baseline's is told by a copy of it that gets the baseline's results.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from joymigrate.verify.identity_map import IdentityMap

SERIES = "plateau"


class Plateaus:
    """The schedulers of one process; items of a series are [step, optimiser, updates, result,
    rates after it, whether a copy makes the baseline's rates of the baseline's results]."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.names: IdentityMap[str] = IdentityMap()
        self.made = 0
        self.twins: dict[str, Any] = {}  # fed with the baseline's results
        self.counts: dict[str, int] = {}

    def before(self, scheduler: Any) -> None:
        """A scheduler is about to be stepped, the first time: a copy of it as it is."""
        if self.names.get(scheduler) is not None:
            return
        name = f"{SERIES} {self.made}"
        self.names.put(scheduler, name)
        self.made += 1
        if self.recorder.replay_session.baseline is None:
            return
        groups = [{**group, "params": []} for group in scheduler.optimizer.param_groups]
        twin = copy.copy(scheduler)
        twin.optimizer = SimpleNamespace(param_groups=copy.deepcopy(groups))
        for key, value in vars(twin).items():
            if isinstance(value, list):
                setattr(twin, key, list(value))
        self.twins[name] = twin

    def after(self, scheduler: Any, result: Any, step: Any) -> None:
        """It has been stepped with a result; `step` is its class's own method."""
        recorder, name = self.recorder, self.names.get(scheduler)
        if name is None:
            return
        number = self.counts[name] = self.counts.get(name, -1) + 1
        log = recorder.log_of_program
        key = log.order.get(scheduler.optimizer) or ""
        same = self.follows(name, number, step)
        rates = [float(group["lr"]) for group in scheduler.optimizer.param_groups]
        item = [key, log.updates.get(key, -1) + 1, float(result), rates, same]
        recorder.run_watch.note(name, recorder.step, *item)

    def follows(self, name: str, number: int, step: Any) -> bool | None:
        """Whether the copy makes the baseline's rates of the baseline's results so far; None where
        the baseline has none."""
        twin, baseline = self.twins.get(name), self.recorder.replay_session.baseline
        if twin is None:
            return None
        items = baseline.rank.json("watch.json").get("series", {}).get(name, [])
        if number >= len(items):
            return None
        _, _, _, result, rates, _ = items[number]
        step(twin, result)
        mine = [float(group["lr"]) for group in twin.optimizer.param_groups]
        return len(mine) == len(rates) and all(
            abs(a - b) <= 1e-6 * abs(b) for a, b in zip(mine, rates, strict=True)
        )
