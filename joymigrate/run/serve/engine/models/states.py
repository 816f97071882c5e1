"""Layers that keep a state of each text: Mamba, gated delta rules, short convolutions.

transformers' layers of this kind read and write their states through one interface of its caches
(`get_conv_state`, `update_recurrent_state`, ...). A step's tokens lie in one row, so each layer is
called once for every piece of a text, with that text's states, and once for all texts that go on
by one token. New states are kept only when the whole pass has succeeded, beside those before it: a
step that fails can be computed again. A text that starts over has none, but those that the prefix
cache keeps behind a full block. Tokens cannot be taken back, so there are no drafts.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError

WRITES = ("update_conv_state(", "update_recurrent_state(")
CACHES = ("cache_params", "past_key_values")  # what a layer's cache is called
Key = tuple[str, int]  # kind of state, and its number in the layer
Layer = dict[Key, Tensor]  # [texts, ...] each


def keeps_states(model: type) -> bool:
    """Whether a model's class has layers of this kind."""
    module = sys.modules.get(getattr(model, "__module__", ""))
    return module is not None and writes(module)


def writes(thing: Any) -> bool:
    """Whether a class's or module's source writes states."""
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):
        return False
    return any(word in source for word in WRITES)


class TextStates:
    """What a layer sees as its cache: the states of the texts of one call."""

    def __init__(self, states: Layer | None = None) -> None:
        self.states: Layer = dict(states or {})

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The last inputs of a convolution, None before the first."""
        return self.states.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The state of a recurrence, None before the first token."""
        return self.states.get(("recurrent", state_idx))

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        """Whether any token was seen."""
        return bool(self.states)

    def is_recording_past(self, layer_idx: int) -> bool:
        """Older states are not kept here."""
        return False

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0,
        conv_kernel_size: int | None = None, **_: Any,
    ) -> Tensor:  # fmt: skip
        """Keep the newest inputs [texts, channels, tokens]; returns them behind those before."""
        before = self.states.get(("conv", state_idx))
        whole = conv_states if before is None else torch.cat((before, conv_states), -1)
        size = conv_kernel_size or (before if before is not None else conv_states).shape[-1]
        kept = whole[..., -size:]
        kept = torch.nn.functional.pad(kept, (size - kept.shape[-1], 0))
        self.states["conv", state_idx] = kept.clone()
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        """Keep a recurrence's state."""
        self.states["recurrent", state_idx] = recurrent_states
        return recurrent_states


def attach(model: torch.nn.Module, current: Any) -> int:
    """Let the layers of a model that keep states do so by text; how many there are. `current()` is
    the step that runs (see library.py), None outside of one."""
    found = 0
    for module in model.modules():
        if isinstance(getattr(module, "layer_idx", None), int) and writes(type(module)):
            form = inspect.signature(type(module).forward)
            name = next((name for name in CACHES if name in form.parameters), None)
            if name is None:
                raise JoyError(f"{type(module).__name__} does not say where its states are")
            # Mamba's first kind computes several tokens from nothing only: then one by one.
            goes_on = "initial_state" in inspect.getsource(type(module))
            call = functools.partial(by_text, module, module.forward, form, name, goes_on, current)
            module.forward = call
            found += 1
    return found


def by_text(
    module: Any, forward: Any, form: inspect.Signature, name: str, goes_on: bool, current: Any,
    *others: Any, **named: Any,
) -> Any:  # fmt: skip
    """A layer's forward pass over the packed tokens [1, T, width], its first argument."""
    step = current()
    if step is None:
        return forward(*others, **named)
    bound = form.bind(module, *others, **named)
    first_name = list(form.parameters)[1]
    hidden: Tensor = bound.arguments[first_name]
    if "attention_mask" in bound.arguments:
        bound.arguments["attention_mask"] = None

    def run(rows: Tensor, states: Layer) -> tuple[Tensor, Layer]:
        if rows.shape[1] > 1 and not goes_on and any(kind == "recurrent" for kind, _ in states):
            made = []
            for place in range(rows.shape[1]):
                one, states = run(rows[:, place : place + 1], states)
                made.append(one)
            return torch.cat(made, 1), states
        held = TextStates(states)
        bound.arguments[first_name] = rows
        bound.arguments[name] = held
        made = forward(*bound.args[1:], **bound.kwargs)
        if not isinstance(made, Tensor):
            raise JoyError(f"{type(module).__name__} gives more than its states say")
        return made, held.states

    layer = module.layer_idx
    if step.batch is None:
        made, states = run(hidden, {})
        step.states[0] = {**step.states.get(0, {}), layer: states}
        return made
    pieces: list[Tensor | None] = [None] * len(step.batch.chunks)
    ones = []
    for number, chunk in enumerate(step.batch.chunks):
        if chunk.start and chunk.width == 1:
            ones.append(number)
            continue
        first, last = step.batch.starts[number : number + 2]
        before = {key: state.clone() for key, state in step.before[number].get(layer, {}).items()}
        pieces[number], states = run(hidden[:, first:last], before)
        step.states.setdefault(number, {})[layer] = states
    if ones:
        rows = torch.stack([hidden[0, step.batch.starts[number]] for number in ones])
        olds = [step.before[number][layer] for number in ones]
        made, states = run(
            rows[:, None], {key: torch.cat([o[key] for o in olds]) for key in olds[0]}
        )
        for place, number in enumerate(ones):
            pieces[number] = made[place : place + 1]
            step.states.setdefault(number, {})[layer] = {
                key: state[place : place + 1] for key, state in states.items()
            }
    return torch.cat([piece for piece in pieces if piece is not None], 1)


def recall(chunks: Any) -> list[dict[int, Layer]]:
    """The states of each chunk's text before it; raises `JoyError` where they are lost."""
    found = []
    for chunk in chunks:
        kept = chunk.sequence.kept
        if chunk.start and chunk.start not in kept:
            raise JoyError(f"the states of a text before its token {chunk.start} are not there")
        found.append(kept[chunk.start] if chunk.start else {})
    return found


def keep(chunks: Any, before: list[dict[int, Layer]], states: dict[int, dict[int, Layer]]) -> None:
    """Keep the states behind each chunk, and those before it until the next step."""
    for number, chunk in enumerate(chunks):
        made = {
            layer: {key: state.clone() for key, state in found.items()}
            for layer, found in states[number].items()
        }
        chunk.sequence.kept = {chunk.start: before[number], chunk.start + chunk.width: made}


def count_bytes(states: dict[int, Layer]) -> int:
    """Memory of a text's states."""
    tensors = [state for layer in states.values() for state in layer.values()]
    return sum(state.numel() * state.element_size() for state in tensors)
