"""What the layers of a model keep, from its configuration alone: built without any weights.

Only layers with states need this (see states.py): how large a state is, and in which dtype, is
what transformers' own layer writes when it is called on three tokens that have no numbers either.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.models import states

ATTENDS = "ALL_ATTENTION_FUNCTIONS"  # how a layer's source asks for its attention
TOKENS = 3


@dataclass(frozen=True, slots=True)
class KeptState:
    """`state_bytes` of each text, and how many layers keep keys and values."""

    state_bytes: int
    attending: int


def kept_by(folder: Path, dtype: torch.dtype) -> KeptState | None:
    """What a folder's model keeps; None where no layer of it keeps a state.

    Raises `JoyError` where there are such layers and they could not be called.
    """
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder)
        kind: Any = AutoModelForCausalLM._model_mapping[type(config)]
    except Exception:  # the check of the family tells it, and loading does
        return None
    if not states.keeps_states(kind):
        return None
    try:
        with torch.device("meta"), torch.inference_mode():
            maker: Any = AutoModelForCausalLM
            return count(maker.from_config(config, dtype=dtype).eval(), dtype)
    except Exception as error:  # a layer's code raises what it likes
        lines = str(error).strip().splitlines() or [""]
        raise JoyError(
            f"its layers keep states, which could not be counted ({type(error).__name__}: "
            f"{lines[0][:120]})",
            help="the server counts them when it loads the model: leave memory for them",
        ) from error


def count(model: Any, dtype: torch.dtype) -> KeptState:
    """What a model on the meta device keeps."""
    width = int(model.config.get_text_config(decoder=True).hidden_size)
    found: dict[int, states.Layer] = {}
    attending: set[int] = set()
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            continue
        if states.writes(type(module)):
            form = inspect.signature(type(module).forward)
            name = next(name for name in states.CACHES if name in form.parameters)
            held = states.TextStates()
            module(torch.empty(1, TOKENS, width, dtype=dtype), **{name: held})
            found[layer] = held.states
        elif attends(module):
            attending.add(layer)
    return KeptState(states.count_bytes(found), len(attending))


def attends(module: Any) -> bool:
    """Whether a layer asks transformers for an attention function."""
    try:
        return ATTENDS in inspect.getsource(type(module))
    except (OSError, TypeError):
        return False
