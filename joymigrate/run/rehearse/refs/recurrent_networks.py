"""_lstm_npu and _gru_npu: what torch.nn.LSTM and torch.nn.GRU call on the chip, with gradients.

The backward operators run torch's own network again instead of reading the saved gates, which are
handed out in the vendor's shapes ([layers·directions, T, B, H]) all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import vjp, working
from joymigrate.run.rehearse.refs.recurrent import GRU, LSTM, gru_steps, lstm_steps

Maybe = Tensor | None


@dataclass(frozen=True, slots=True)
class Network:
    """The scalars of one call."""

    kind: str  # "lstm" or "gru"
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool
    batch_sizes: Maybe

    @classmethod
    def of(cls, kind: str, given: ReferenceArguments) -> Network:
        scalars = {one.name: getattr(given, one.name) for one in fields(cls) if one.name != "kind"}
        return cls(kind, **{**scalars, "batch_first": bool(given.batch_first)})

    def run(self, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor]) -> Any:
        """torch's network on CPU: outputs, then the final states.

        With batch_sizes x is [T·B, I], its padding kept, and the outputs are [T, B, …], zero
        where a sequence has ended.
        """
        if self.dropout and self.train and self.num_layers > 1:
            raise Unsimulated(f"_{self.kind}_npu", "dropout between layers")
        function: Callable[..., Any] = getattr(torch._VF, self.kind)
        start = list(states) if self.kind == "lstm" else states[0]
        scalars = (self.has_biases, self.num_layers, 0.0, self.train, self.bidirectional)
        if self.batch_sizes is None or not self.batch_sizes.numel():
            return function(x, start, list(params), *scalars, self.batch_first)
        rows = x.reshape(len(self.batch_sizes), -1, x.shape[-1])
        runs = torch.arange(rows.shape[1]) < self.batch_sizes.reshape(-1, 1)
        y, *final = function(rows[runs], self.batch_sizes, start, list(params), *scalars)
        return (y.new_zeros(*runs.shape, y.shape[-1]).masked_scatter(runs[..., None], y), *final)

    def gates(self, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor]) -> list[Tensor]:
        """What every layer and direction computes step by step, stacked."""
        if not self.train or (self.batch_sizes is not None and self.batch_sizes.numel()):
            return []
        rows = x.transpose(0, 1) if self.batch_first else x
        directions, each = 2 if self.bidirectional else 1, 4 if self.has_biases else 2
        found = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                at = layer * directions + direction
                own = list(params[at * each : (at + 1) * each])
                if not self.has_biases:
                    own += [own[0].new_zeros(len(own[0]))] * 2
                parts = self._steps(rows.flip(0) if direction else rows, states, at, own)
                found.append([part.flip(0) if direction else part for part in parts])
                outputs.append(found[-1][0])
            rows = torch.cat(outputs, -1)
        return [torch.stack(column) for column in zip(*found, strict=True)]

    def _steps(
        self, rows: Tensor, states: Sequence[Tensor], at: int, own: list[Tensor]
    ) -> Sequence[Tensor]:
        w_ih, w_hh, b_ih, b_hh = own
        if self.kind == "gru":
            return gru_steps(rows, states[0][at], w_ih.T, w_hh.T, b_ih, b_hh)
        weight = torch.cat((w_ih, w_hh), 1).T
        return lstm_steps(rows, weight, b_ih + b_hh, states[0][at], states[1][at])


def _wide(parts: Sequence[Tensor]) -> list[Tensor]:
    return [working(part) for part in parts]


@reference("_lstm_npu", source=LSTM)
def _lstm_npu(given: ReferenceArguments) -> tuple[Maybe, ...]:
    """y, h, c, and when training i, j, f, o, h, c, tanh(c) of every step."""
    network = Network.of("lstm", given)
    wide, states, weights = working(given.x), _wide(given.hx), _wide(given.params)
    outputs = [part.to(given.x.dtype) for part in network.run(wide, states, weights)]
    gates = [part.to(given.x.dtype) for part in network.gates(wide, states, weights)]
    if not gates:
        return (*outputs, *(given.x.new_empty(0) for _ in range(7)))
    _, h, c, i, j, f, o, tanhc = gates
    return (*outputs, i, j, f, o, h, c, tanhc)


def _gradients(
    network: Network,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    gradients: Sequence[Maybe],
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    count = len(states)

    def forward(*tensors: Tensor) -> Any:
        return network.run(tensors[0], tensors[1 : 1 + count], tensors[1 + count :])

    found = vjp(forward, (x, *states, *params), gradients)
    dense = [grad for grad in found if grad is not None]
    return dense[0], dense[1 : 1 + count], dense[1 + count :]


@reference("_lstm_npu_backward", source=LSTM)
def _lstm_npu_backward(given: ReferenceArguments) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Gradients of the input, of both states and of every parameter."""
    network = Network.of("lstm", given)
    return _gradients(
        network, given.x, given.hx, given.params, (given.grad_y, given.grad_hy, given.grad_cy)
    )


@reference("_gru_npu", source=GRU)
def _gru_npu(given: ReferenceArguments) -> tuple[Maybe, ...]:
    """y, h, and when training r, z, n, the hidden part of n, and h of every step."""
    network = Network.of("gru", given)
    wide, weights = working(given.x), _wide(given.params)
    outputs = [part.to(given.x.dtype) for part in network.run(wide, [working(given.hx)], weights)]
    gates = [part.to(given.x.dtype) for part in network.gates(wide, [working(given.hx)], weights)]
    if not gates:
        return (*outputs, *(given.x.new_empty(0) for _ in range(5)))
    _, h, update, reset, new, hidden_new = gates
    return (*outputs, reset, update, new, hidden_new, h)


@reference("_gru_npu_backward", source=GRU)
def _gru_npu_backward(given: ReferenceArguments) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Gradients of the input, of the state and of every parameter."""
    network = Network.of("gru", given)
    dx, states, dparams = _gradients(
        network, given.x, [given.hx], given.params, (given.grad_y, given.grad_h)
    )
    return dx, states[0], dparams
