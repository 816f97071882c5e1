"""Fused cells of torch's recurrent layers, from gates that are already multiplied."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.gradients import working

SOURCE = "torch native_functions.yaml, op-plugin LstmCellKernelNpuOpApi.cpp"
Maybe = Tensor | None


def _add_products(given: Tensor, hidden: Tensor, b_in: Maybe, b_hid: Maybe) -> Tensor:
    total = working(given) + working(hidden)
    for bias in (b_in, b_hid):
        total = total if bias is None else total + working(bias)
    return total


@reference("aten::_thnn_fused_lstm_cell", source=SOURCE)
def thnn_fused_lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Maybe, hidden_bias: Maybe
) -> tuple[Tensor, Tensor, Tensor]:
    """h, c, and the activated gates [B, 4H] (i, f, g, o) for the backward operator."""
    i, f, g, o = _add_products(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * working(cx) + i * g
    workspace = torch.cat((i, f, g, o), 1)
    dtype = cx.dtype
    return (o * cy.tanh()).to(dtype), cy.to(dtype), workspace.to(dtype)


@reference("aten::_thnn_fused_lstm_cell_backward_impl", source=SOURCE)
def thnn_fused_lstm_cell_backward_impl(
    grad_hy: Maybe, grad_cy: Maybe, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Maybe]:
    """Gradients of the gates, of c, and of each bias."""
    i, f, g, o = working(workspace).chunk(4, 1)
    tanhc = working(cy).tanh()
    dh = torch.zeros_like(tanhc) if grad_hy is None else working(grad_hy)
    dc = dh * o * (1 - tanhc * tanhc)
    if grad_cy is not None:
        dc = dc + working(grad_cy)
    gates = torch.cat(
        (
            dc * g * i * (1 - i),
            dc * working(cx) * f * (1 - f),
            dc * i * (1 - g * g),
            dh * tanhc * o * (1 - o),
        ),
        1,
    ).to(cx.dtype)
    return gates, (dc * f).to(cx.dtype), gates.sum(0) if has_bias else None


@reference("aten::_thnn_fused_gru_cell", source=SOURCE)
def thnn_fused_gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Maybe, hidden_bias: Maybe
) -> tuple[Tensor, Tensor]:
    """h, and (reset, update, new, h, hidden part of new) [B, 5H] for the backward operator."""
    given = working(input_gates) + (0 if input_bias is None else working(input_bias))
    hidden = working(hidden_gates) + (0 if hidden_bias is None else working(hidden_bias))
    (r_in, z_in, n_in), (r_h, z_h, n_h) = given.chunk(3, 1), hidden.chunk(3, 1)
    reset, update = (r_in + r_h).sigmoid(), (z_in + z_h).sigmoid()
    new = (n_in + reset * n_h).tanh()
    hy = new + update * (working(hx) - new)
    workspace = torch.cat((reset, update, new, working(hx), n_h), 1)
    return hy.to(hx.dtype), workspace.to(hx.dtype)


@reference("aten::_masked_scale", source="torch native_functions.yaml")
def masked_scale(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return (working(x) * mask * scale).to(x.dtype)
