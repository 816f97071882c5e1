"""Rewards by a function of the user's: `FILE.py:NAME`.

The function is called with keywords `prompt` and `completion` (texts), `tokens` (of the completion)
and `record` (the record of the prompt), and returns a number. It may take fewer of them.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError

NAMES = ("prompt", "completion", "tokens", "record")
Reward = Callable[[Mapping[str, Any]], float]


def load_reward(named: str, folder: Path, names: Sequence[str] = NAMES) -> Reward:
    """The function of `FILE.py:NAME`, the file in `folder`; it may take what `names` lists.

    `JoyError` where there is none.
    """
    file, _, name = named.rpartition(":")
    path = folder / file
    if not file or not path.is_file():
        raise JoyError(
            f"there is no reward '{named}'",
            where="task.reward",
            help=f"reward: FILE.py:NAME; a function of some of {', '.join(names)}",
        )
    spec = importlib.util.spec_from_file_location("joymigrate_reward", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise JoyError(f"{path} has no function '{name}'", where="task.reward")
    known = inspect.signature(function).parameters
    every = any(one.kind is one.VAR_KEYWORD for one in known.values())
    wanted = [one for one in names if every or one in known]
    for one, parameter in known.items():
        if one not in names and parameter.default is parameter.empty and not every:
            raise JoyError(
                f"the reward asks for '{one}'", where=named, help=f"it gets {', '.join(names)}"
            )

    def reward(facts: Mapping[str, Any]) -> float:
        found = function(**{one: facts[one] for one in wanted})
        try:
            value = float(found)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise JoyError(f"the reward of an answer is {found!r}, not a finite number",
                           where=named)  # fmt: skip
        return value

    return reward
