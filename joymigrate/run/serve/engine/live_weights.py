"""An engine for weights that are in memory and change: those of a model in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from joymigrate.device import Device
from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.core import Engine
from joymigrate.run.serve.engine.load import make_cache
from joymigrate.run.serve.engine.models.decoder import DecoderModel
from joymigrate.run.serve.engine.models.spec import describe
from joymigrate.run.serve.engine.tokens import NumberTokens
from joymigrate.run.serve.engine.types import EngineOptions
from joymigrate.run.serve.engine.weights import HeldWeights


class HeldEngine:
    """Writes tokens with the newest weights that it was given.

    `config` is what a config.json says; its family must be one of the decoder's. Raises `JoyError`.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        ends: Sequence[int],
        device: Device,
        options: EngineOptions,
    ) -> None:
        spec, reason = describe(config)
        if spec is None:
            raise JoyError(
                f"the engine has no decoder for this model: {reason}",
                help="rollouts: model lets transformers write",
            )
        self.spec, self.ends, self.device, self.options = spec, tuple(ends), device, options
        self.engine: Engine | None = None

    @torch.inference_mode()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over weights, by transformers' names, in the type that they have."""
        dtype = next(iter(tensors.values())).dtype
        model = DecoderModel(
            self.spec, HeldWeights(tensors), dtype, self.device.at(), prepack=False,
        )  # fmt: skip
        if self.engine is None:
            cache, _ = make_cache(model, self.options, self.device)
            longest = min(model.positions, cache.blocks * cache.size)
            self.engine = Engine(model, cache, NumberTokens(), self.ends, self.options, longest)
            return
        self.engine.renew(model)
