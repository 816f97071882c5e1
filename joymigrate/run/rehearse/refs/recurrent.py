"""LSTM and GRU: the whole-network operators behind torch.nn, and one layer in the older form.

Gate order is torch's: i, f, g (the vendor's j), o; and r, z, n. The older operators take one
transposed weight [I + H, 4H] and hand out every step's state and gates [T, B, H].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import vjp, working

LSTM = "op-plugin LSTMKernelNpuOpApi.cpp, LSTMBackwardKernelNpuOpApi.cpp"
GRU = "op-plugin GRUKernelNpuOpApi.cpp, GRUBackwardKernelNpuOpApi.cpp"
OLD = "op-plugin aclops/LstmKernelNpu.cpp (DynamicRNN, DynamicRNNGrad)"
Maybe = Tensor | None
Eight = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


# ── one layer, step by step ─────────────────────────────────────────────────────────────────────


def lstm_steps(
    x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor, mask: Maybe = None
) -> Eight:
    """y, h, c, i, j, f, o, tanh(c) of every step; x [T, B, I], h and c [B, H] or [1, B, H].

    Where the mask is zero the state stays, and y is zero.
    """
    size = weight.shape[1] // 4
    h, c = h.reshape(-1, size), c.reshape(-1, size)
    rows: list[tuple[Tensor, ...]] = []
    for step, part in enumerate(x):
        gates = torch.cat((part, h), 1) @ weight + bias
        i, f, j, o = (gates[:, n * size : (n + 1) * size] for n in range(4))
        i, f, j, o = i.sigmoid(), f.sigmoid(), j.tanh(), o.sigmoid()
        fresh = f * c + i * j
        tanhc = fresh.tanh()
        output = o * tanhc
        if mask is None:
            h, c, y = output, fresh, output
        else:
            keep = mask[step].to(h.dtype)
            h, c = keep * output + (1 - keep) * h, keep * fresh + (1 - keep) * c
            y = keep * output
        rows.append((y, h, c, i, j, f, o, tanhc))
    if not rows:
        empty = x.new_zeros(0, x.shape[1], size)
        return (empty,) * 8
    stacked = [torch.stack(column) for column in zip(*rows, strict=True)]
    return tuple(stacked)  # type: ignore[return-value]


def _mask(seq_mask: Tensor, steps: int) -> Maybe:
    """A sequence mask [T, B, H] (or [T, B, 1]), or None for the empty one."""
    return seq_mask if seq_mask.dim() == 3 and len(seq_mask) == steps else None


def _layer(
    mask: Maybe, reverse: bool, x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> Eight:
    if not reverse:
        return lstm_steps(x, weight, bias, h, c, mask)
    found = lstm_steps(x.flip(0), weight, bias, h, c, None if mask is None else mask.flip(0))
    return tuple(part.flip(0) for part in found)  # type: ignore[return-value]


def _round(found: Sequence[Tensor], dtype: torch.dtype) -> Any:
    return tuple(part.to(dtype) for part in found)


@reference("npu_lstm", source=OLD)
def npu_lstm(given: ReferenceArguments) -> Eight:
    """One layer in one direction; the outer operator composes layers and directions."""
    inputs = (working(part) for part in (given.x, given.weight, given.bias, given.h, given.c))
    mask = _mask(given.seq_mask, len(given.x)) if given.flag_seq else None
    result: Eight = _round(_layer(mask, given.direction, *inputs), given.x.dtype)
    return result


@reference("npu_lstm_backward", source=OLD)
def npu_lstm_backward(given: ReferenceArguments) -> tuple[Maybe, ...]:
    """Gradients of input, weight, bias, h and c; those of h and c are of every step."""
    return vjp(
        lambda *a: lstm_steps(*a)[:3],
        (given.x, given.weight, given.bias, given.hx, given.cx),
        (given.grady, given.gradh, given.gradc),
    )


@reference("npu_lstm_data", source=OLD)
def npu_lstm_data(
    x: Tensor,
    batch_sizes: Tensor,
    weight: Tensor,
    bias: Tensor,
    h: Tensor,
    c: Tensor,
    direction: bool,
) -> Eight:
    """As npu_lstm for padded sequences [T, B, I]; batch_sizes says how many run at each step."""
    inputs = (working(part) for part in (x, weight, bias, h, c))
    mask = _running(batch_sizes, x)
    result: Eight = _round(_layer(mask, direction, *inputs), x.dtype)
    return result


def _running(batch_sizes: Tensor, x: Tensor) -> Tensor:
    """[T, B, 1], one where sequence b still runs at step t."""
    return (torch.arange(x.shape[1]) < batch_sizes.reshape(-1, 1)).unsqueeze(-1).to(torch.float32)


@reference("npu_lstm_data_backward", source=OLD)
def npu_lstm_data_backward(given: ReferenceArguments) -> tuple[Maybe, ...]:
    mask = _running(given.batch_sizes, given.x)
    return vjp(
        lambda *a: _layer(mask, given.flag_direction, *a)[:3],
        (given.x, given.weight, given.bias, given.init_h, given.init_c),
        (given.grady_opt, given.gradh_opt, given.gradc_opt),
    )


def _cell(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Maybe, b_hh: Maybe, h: Tensor, c: Tensor
) -> Eight:
    """One step; weights are transposed, [I, 4H] and [H, 4H]."""
    bias = x.new_zeros(w_ih.shape[1])
    for part in (b_ih, b_hh):
        bias = bias if part is None else bias + part
    found = lstm_steps(x.unsqueeze(0), torch.cat((w_ih, w_hh)), bias, h, c)
    y, h, c, *gates = found
    return (y, h[0], c[0], *gates)  # type: ignore[return-value]


@reference("npu_lstm_cell", source="op-plugin aclops/LstmCellKernelNpu.cpp")
def npu_lstm_cell(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor, c: Tensor, b_ih: Maybe, b_hh: Maybe
) -> Eight:
    parts = [None if t is None else working(t) for t in (x, w_ih, w_hh, b_ih, b_hh, h, c)]
    result: Eight = _round(_cell(*parts), x.dtype)  # type: ignore[arg-type]
    return result


@reference("npu_lstm_cell_backward", source="op-plugin aclops/LstmCellKernelNpu.cpp")
def npu_lstm_cell_backward(given: ReferenceArguments) -> tuple[Maybe, ...]:
    """Gradients of input, both weights, both biases (they are equal), h and c.

    Computed from the gates the forward kept: the biases aren't among the arguments.
    """
    x = given.x
    w_ih = given.w_ih
    w_hh = given.w_hh
    h = given.h
    c = given.c
    i = given.i
    j = given.j
    f = given.f
    o = given.o
    tanhc = given.tanhc
    x, w_ih, w_hh, h, c = (part.float() for part in (x, w_ih, w_hh, h, c))
    i, j, f, o, tanhc = (part.float().reshape(c.shape) for part in (i, j, f, o, tanhc))
    dh = torch.zeros_like(c)
    for part in (given.grady, given.gradh):
        dh = dh if part is None else dh + part.float().reshape(c.shape)
    dc = dh * o * (1 - tanhc * tanhc)
    dc = dc if given.gradc is None else dc + given.gradc.float().reshape(c.shape)
    gates = torch.cat(
        (
            dc * j * i * (1 - i),
            dc * c * f * (1 - f),
            dc * i * (1 - j * j),
            dh * tanhc * o * (1 - o),
        ),
        dim=1,
    )
    bias = gates.sum(0)
    found = (gates @ w_ih.T, x.T @ gates, h.T @ gates, bias, bias, gates @ w_hh.T, dc * f)
    return tuple(part.to(given.y_output.dtype) for part in found)


def gru_steps(
    x: Tensor, hx: Tensor, w_in: Tensor, w_hid: Tensor, b_in: Tensor, b_hid: Tensor
) -> tuple[Tensor, ...]:
    """y, h, update, reset, new, hidden part of new, of every step; weights transposed."""
    size = w_hid.shape[0]
    h, rows = hx.reshape(-1, size), []
    for part in x:
        given, hidden = part @ w_in + b_in, h @ w_hid + b_hid
        reset = (given[:, :size] + hidden[:, :size]).sigmoid()
        update = (given[:, size : 2 * size] + hidden[:, size : 2 * size]).sigmoid()
        hidden_new = hidden[:, 2 * size :]
        new = (given[:, 2 * size :] + reset * hidden_new).tanh()
        h = (1 - update) * new + update * h
        rows.append((h, h, update, reset, new, hidden_new))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


@reference("npu_gru", source="op-plugin aclops/GruKernelNpu.cpp (DynamicGRUV2)")
def npu_gru(
    x: Tensor,
    hx: Tensor,
    weight_input: Tensor,
    weight_hidden: Tensor,
    bias_input: Tensor,
    bias_hidden: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    parts = (x, hx, weight_input, weight_hidden, bias_input, bias_hidden)
    found = _round(gru_steps(*(working(part) for part in parts)), x.dtype)
    result: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] = found
    return result


@reference("npu_gru_backward", source="op-plugin aclops/GruKernelNpu.cpp (DynamicGRUV2Grad)")
def npu_gru_backward(
    grady: Maybe,
    gradh: Maybe,
    x: Tensor,
    weight_input: Tensor,
    weight_hidden: Tensor,
    bias_input: Tensor,
    bias_hidden: Tensor,
    hx: Tensor,
) -> tuple[Maybe, ...]:
    """Gradients of both weights, the input, both biases and h."""
    dx, dh, dw_in, dw_hid, db_in, db_hid = vjp(
        lambda *a: gru_steps(*a)[:2],
        (x, hx, weight_input, weight_hidden, bias_input, bias_hidden),
        (grady, gradh),
    )
    return dw_in, dw_hid, dx, db_in, db_hid, dh
