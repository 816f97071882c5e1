"""Answers written by our serving engine, with the weights of the model in training.

The engine lies in the same process (`rollouts: engine`), or in processes of its own (`actors.py`).
A text's draws depend on its seed alone, not on what else is written at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError
from joymigrate.run.train.reinforcement.rollouts import SampledAnswer

if TYPE_CHECKING:
    from torch import Tensor

    from joymigrate.device import Device

AT_ONCE = 256  # answers that hold keys and values at the same time


class EngineWriter:
    """One engine. `longest` bounds prompt and answer together."""

    def __init__(
        self, config: Mapping[str, Any], ends: Sequence[int], device: Device, longest: int
    ) -> None:
        from joymigrate.run.serve.engine.live_weights import HeldEngine
        from joymigrate.run.serve.engine.types import EngineOptions

        options = EngineOptions(max_model_len=longest, max_running=AT_ONCE, max_waiting=1 << 30)
        self.held = HeldEngine(config, ends, device, options)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The newest weights."""
        self.held.load(tensors)

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        limit: int,
        temperature: float,
        seed: int,
        first: int = 0,
    ) -> list[list[SampledAnswer]]:
        """`group` sampled answers to each prompt, an end sign included.

        `first` is the number of the first prompt among all of the step: seeds go by it.
        """
        from joymigrate.run.serve.engine.types import Request, Sampling

        engine = self.held.engine
        assert engine is not None
        for number, prompt in enumerate(prompts):
            sampling = Sampling(
                max_tokens=limit, temperature=temperature, n=group, logprobs=0,
                seed=(seed + 7_919 * (first + number)) % (1 << 31),
            )  # fmt: skip
            engine.add(Request(str(number), tuple(prompt), sampling))
        found = [[SampledAnswer([], []) for _ in range(group)] for _ in prompts]
        while not engine.idle:
            for output in engine.step():
                if output.finish_reason in ("error", "abort"):
                    raise JoyError(f"an answer could not be written: {output.error}")
                one = found[int(output.request_id)][output.index]
                one.tokens.extend(output.new_ids)
                assert one.logs is not None
                one.logs.extend(entry.logprob for entry in output.logprobs or ())
        return found


def config_of(model: Any) -> dict[str, Any]:
    """What the model's config.json would say. `JoyError` for an adapted model."""
    inner = getattr(model, "module", model)  # inside DDP
    if hasattr(inner, "get_base_model"):
        raise JoyError(
            "the engine writes with whole weights, and this model has adapters",
            where="task.rollouts",
            help="rollouts: model",
        )
    found: dict[str, Any] = json.loads(inner.config.to_json_string(use_diff=False))
    return found


def whole_weights(model: Any) -> dict[str, Tensor]:
    """All weights of a model, gathered where they are cut; every process calls it."""
    from torch.distributed.tensor import DTensor

    inner = getattr(model, "module", model)
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()
        for name, tensor in inner.state_dict().items()
    }
