"""Losses, optimisers, recurrence, convolutions, transforms and boxes against formulas."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.run.rehearse.refs.formulas import DTYPES, call, gradients, near, numbers

# ── losses ──────────────────────────────────────────────────────────────────────────────────────


def entropy(x: Tensor, target: Tensor, weight: Tensor, ignore: int, smooth: float) -> list[Tensor]:
    """Cross entropy sample by sample, with its weights."""
    found = []
    for row, label in zip(x, target.tolist(), strict=True):
        logs = row - row.logsumexp(0)
        if label == ignore:
            found.append(0 * logs.sum())
            continue
        plain = -weight[label] * logs[label]
        spread = -(weight * logs).sum() / len(row)
        found.append((1 - smooth) * plain + smooth * spread)
    return found


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("ignore", "smooth"), [(-100, 0.0), (2, 0.0), (1, 0.2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(reduction: str, ignore: int, smooth: float, dtype: torch.dtype) -> None:
    x, weight = numbers(6, 5, dtype=dtype), numbers(5).abs() + 0.1
    target = torch.tensor([0, 2, 4, 2, 1, 3])

    def formula(a: Tensor) -> Tensor:
        losses = torch.stack(entropy(a, target, weight.double(), ignore, smooth))
        if reduction == "none":
            return losses
        if reduction == "sum":
            return losses.sum().reshape(1)
        used = [label for label in target.tolist() if label != ignore]
        return (losses.sum() / weight.double()[used].sum()).reshape(1)

    loss, log_prob, *_ = call(
        "npu_cross_entropy_loss", x, target, weight, reduction, ignore, smooth
    )
    near(loss, formula(x.double()))
    near(log_prob, x.double() - x.double().logsumexp(1, keepdim=True))
    dy = numbers(6 if reduction == "none" else 1)
    found = call(
        "npu_cross_entropy_loss_backward",
        *(dy, log_prob, target, weight, None, None, reduction, ignore, smooth),
    )
    near(found, gradients(formula, (x,), dy)[0], factor=4)  # log_prob was rounded once


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_backward_operators_of_torchs_losses(reduction: int) -> None:
    x, t, w = numbers(3, 4), numbers(3, 4, seed=1).abs(), numbers(4).abs()
    dy = numbers(3, 4) if reduction == 0 else numbers()

    def reduced(terms: Tensor) -> Tensor:
        return {0: terms, 1: terms.sum() / terms.numel(), 2: terms.sum()}[reduction]

    found = call("l1_loss_backward", dy, x, t, reduction)
    near(found, gradients(lambda a: reduced((a - t.double()).abs()), (x,), dy)[0])
    for log_target in (False, True):

        def divergence(a: Tensor, b: Tensor, log: bool = log_target) -> Tensor:
            return reduced(b.exp() * (b - a) if log else b * (b.log() - a))

        options: dict[str, Any] = {"log_target": log_target}
        right = gradients(divergence, (x, t), dy)
        near(call("kl_div_backward", dy, x, t, reduction, **options), right[0])
        near(call("kl_div_target_backward", dy, x, t, reduction, **options), right[1])

    def logits(a: Tensor) -> Tensor:
        p = 1 / (1 + (-a).exp())
        terms = -(w.double() * t.double() * p.log() + (1 - t.double()) * (1 - p).log())
        return reduced(terms * t.double())

    found = call("npu_binary_cross_entropy_with_logits_backward", dy, x, t, t, w, reduction)
    near(found, gradients(logits, (x,), dy)[0])


def test_softmax_cross_entropy_of_distributions() -> None:
    x, labels, dy = numbers(4, 5), numbers(4, 5).softmax(1), numbers(4)

    def formula(a: Tensor) -> Tensor:
        return torch.stack(
            [-(p * (r - r.logsumexp(0))).sum() for r, p in zip(a, labels.double(), strict=True)]
        )

    near(call("npu_softmax_cross_entropy_with_logits", x, labels), formula(x.double()))
    found = call("npu_softmax_cross_entropy_with_logits_backward", dy, x, labels)
    near(found, gradients(formula, (x,), dy)[0])


def test_two_ranks_of_a_vocabulary_make_the_whole_loss() -> None:
    x, weight, target = numbers(5, 4), numbers(6, 4), torch.tensor([0, 2, 3, 5, 1])
    parts = [
        call("npu_fused_linear_online_max_sum", x, weight[s], target, s.start, s.stop - 1, True)
        for s in (slice(0, 3), slice(3, 6))
    ]
    maximum = torch.maximum(parts[0][0], parts[1][0])
    total = sum(part[1] * (part[0] - maximum).exp() for part in parts)
    predicted = torch.zeros(5)
    for s, part in zip((slice(0, 3), slice(3, 6)), parts, strict=True):
        mine = (target >= s.start) & (target < s.stop)
        predicted += torch.where(mine, part[2] + part[0] - maximum, 0.0)
    logits = x.double() @ weight.double().T
    expected = torch.stack(
        [logits[i].logsumexp(0) - logits[i, t] for i, t in enumerate(target.tolist())]
    )
    loss, softmax = call(
        "npu_fused_cross_entropy_loss_with_max_sum",
        *(maximum, total, predicted),
        vocab_parallel_logits=parts[0][5],
    )
    near(loss, expected)
    near(softmax, logits.softmax(1)[:, :3])
    dy = numbers(5)

    def formula(a: Tensor, w: Tensor) -> Tensor:
        scores = a @ w.T
        return torch.stack(
            [scores[i].logsumexp(0) - scores[i, t] for i, t in enumerate(target.tolist())]
        )

    right = gradients(formula, (x, weight), dy)
    found = [
        call(
            "npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
            *(dy, x, weight[s], part[3], part[4]),
            logits_max=maximum,
            sum_exp_logits=total,
        )
        for s, part in zip((slice(0, 3), slice(3, 6)), parts, strict=True)
    ]
    near(found[0][0] + found[1][0], right[0])
    near(torch.cat((found[0][1], found[1][1])), right[1])


# ── optimisers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_fused_adamw_is_torchs(amsgrad: bool, maximize: bool) -> None:
    start = numbers(7)
    parameter = torch.nn.Parameter(start.double())
    options = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.2}
    theirs = torch.optim.AdamW([parameter], amsgrad=amsgrad, maximize=maximize, **options)
    var, m, v = start.clone(), torch.zeros(7), torch.zeros(7)
    largest = torch.zeros(7) if amsgrad else None
    for step in range(3):
        grad = numbers(7, seed=step)
        parameter.grad = grad.double()
        theirs.step()
        powers = 0.9**step, 0.95**step
        call(
            "npu_apply_adam_w.out",
            *(*powers, 0.1, 0.2, 0.9, 0.95, 1e-6, grad, largest, amsgrad, maximize),
            out=[var, m, v],
        )
        if not amsgrad or step == 0:
            near(var, parameter.detach())
    state = theirs.state[parameter]
    near(m, state["exp_avg"])
    near(v, state["exp_avg_sq"])
    if largest is not None:
        near(largest, state["max_exp_avg_sq"])


def test_fused_adam_and_bert_adam() -> None:
    var, m, v, grad = numbers(5), numbers(5, seed=1), numbers(5, seed=2).abs(), numbers(5, seed=3)
    for nesterov in (False, True):
        parts = [part.clone() for part in (var, m, v)]
        call(
            "npu_apply_adam.out",
            *(0.81, 0.98, 0.1, 0.9, 0.99, 1e-6, grad, None, nesterov),
            out=parts,
        )
        for i in range(5):
            first = 0.9 * float(m[i]) + 0.1 * float(grad[i])
            second = 0.99 * float(v[i]) + 0.01 * float(grad[i]) ** 2
            rate = 0.1 * math.sqrt(1 - 0.98) / (1 - 0.81)
            step = 0.9 * first + 0.1 * float(grad[i]) if nesterov else first
            right = float(var[i]) - rate * step / (math.sqrt(second) + 1e-6)
            assert math.isclose(float(parts[0][i]), right, rel_tol=1e-5, abs_tol=1e-6)
    parts = [part.clone() for part in (var, m, v)]
    call(
        "npu_bert_apply_adam.out",
        *(0.1, 0.9, 0.99, 1e-6, grad, 1.0, 4.0, 0.01),
        out=parts,
    )
    clipped = grad.double() / 4
    first, second = 0.9 * m.double() + 0.1 * clipped, 0.99 * v.double() + 0.01 * clipped**2
    update = first / (second.sqrt() + 1e-6) + 0.01 * var.double()
    near(parts[0], var.double() - 0.1 * update)


# ── products ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 3), (3, 5)),
        ((2, 4, 3), (3, 5)),
        ((2, 1, 4, 3), (6, 3, 5)),
        ((3,), (3,)),
        ((2, 4, 3), (3,)),
        ((3,), (2, 3, 5)),
    ],
)
def test_matmul_gradients_of_every_rank(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = numbers(*left), numbers(*right, seed=1)
    dy = torch.matmul(a, b) * 0.5 + 1
    found = call("aten::matmul_backward", dy, a, b, [True, True])
    expected = gradients(torch.matmul, (a, b), dy)
    for grad, wanted in zip(found, expected, strict=True):
        near(grad, wanted)
    assert call("aten::matmul_backward", dy, a, b, [False, True])[0] is None


def test_double_backward_of_matmul() -> None:
    a, b, dy = numbers(4, 3), numbers(3, 5), numbers(4, 5)
    ga, gb = numbers(4, 3, seed=1), numbers(3, 5, seed=2)
    found = call("matmul_double_backward", ga, gb, dy, a, b, [True, True, True])

    def formula(out: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        return [out @ y.T, x.T @ out]

    expected = gradients(formula, (dy, a, b), (ga, gb))
    for grad, wanted in zip(found, expected, strict=True):
        near(grad, wanted)


def test_linear_and_batched_products_with_gradients() -> None:
    x, w, b, dy = numbers(4, 3), numbers(5, 3), numbers(5), numbers(4, 5)
    near(call("npu_linear", x, w, b), torch.einsum("mk,nk->mn", x.double(), w.double()) + b)
    expected = gradients(lambda a, c: a @ c.T, (x, w), dy)
    for grad, wanted in zip(call("npu_linear_backward", dy, x, w), expected, strict=True):
        near(grad, wanted)
    p, q, dz = numbers(2, 4, 3), numbers(2, 3, 5), numbers(2, 4, 5)
    near(call("npu_bmmV2", p, q, []), torch.einsum("bmk,bkn->bmn", p.double(), q.double()))
    expected = gradients(torch.bmm, (p, q), dz)
    near(call("npu_bmm_v2_mat1_backward", dz, p, q, [2, 4, 3]), expected[0])
    near(call("npu_bmm_v2_mat2_backward", dz, p, q, [2, 3, 5]), expected[1])
    turned = call("npu_transpose_batchmatmul", p.transpose(0, 1), q, perm_x1=[1, 0, 2])
    near(turned, torch.einsum("bmk,bkn->mbn", p.double(), q.double()))


def test_feed_forward_by_expert() -> None:
    x, w1, w2, b1 = numbers(5, 3), numbers(2, 3, 8), numbers(2, 4, 3), numbers(2, 8)
    found = call("npu_ffn", x, w1, w2, "swiglu", expert_tokens=[2, 3], bias1=b1)
    for row in range(5):
        e = 0 if row < 2 else 1
        hidden = x[row].double() @ w1[e].double() + b1[e].double()
        gate = hidden[:4] / (1 + (-hidden[:4]).exp())
        near(found[row], (gate * hidden[4:]) @ w2[e].double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_that_widen_their_dtype(dtype: torch.dtype) -> None:
    a, b, c = numbers(4, 3, dtype=dtype), numbers(3, 5, dtype=dtype), numbers(5)
    near(call("aten::mm.dtype", a, b, torch.float32), a.double() @ b.double())
    found = call("aten::addmm.dtype", c, a, b, torch.float32, beta=0.5, alpha=2)
    near(found, 0.5 * c.double() + 2 * (a.double() @ b.double()))
    total = numbers(3, 5)
    before = total.clone()
    call("atb::_npu_matmul_add_fp32", a[:, :3], numbers(4, 5, dtype=dtype), total)
    near(total, before.double() + a.double().T @ numbers(4, 5, dtype=dtype).double())


# ── recurrence ──────────────────────────────────────────────────────────────────────────────────


def network(kind: str, layers: int, bidirectional: bool, bias: bool = True) -> Any:
    torch.manual_seed(1)
    cls = torch.nn.LSTM if kind == "lstm" else torch.nn.GRU
    return cls(4, 5, layers, bias=bias, batch_first=True, bidirectional=bidirectional).double()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("layers", "bidirectional", "bias"), [(1, False, True), (1, True, True), (2, True, False)]
)
def test_networks_are_torchs_with_their_gradients(
    kind: str, layers: int, bidirectional: bool, bias: bool
) -> None:
    module = network(kind, layers, bidirectional, bias)
    directions = 2 if bidirectional else 1
    x = numbers(2, 3, 4)
    hx = [numbers(layers * directions, 2, 5, seed=s) for s in range(2 if kind == "lstm" else 1)]
    params = [p.detach().float() for p in module.parameters()]
    flags = (bias, layers, 0.0, True, bidirectional)
    start = hx if kind == "lstm" else hx[0]
    found = call(f"_{kind}_npu", x, start, params, *flags, batch_first=True)
    wide = x.double().requires_grad_()
    states = [part.double().requires_grad_() for part in hx]
    y, last = module(wide, tuple(states) if kind == "lstm" else states[0])
    outputs = [y, *(last if kind == "lstm" else [last])]
    for ours, theirs in zip(found, outputs, strict=False):
        near(ours, theirs)
    h = found[7] if kind == "lstm" else found[6]
    assert h.shape == (layers * directions, 3, 2, 5)
    near(h[0, -1], outputs[1][0])
    grads = [numbers(*part.shape, seed=9 + n) for n, part in enumerate(outputs)]
    expected = torch.autograd.grad(
        outputs, [wide, *states, *module.parameters()], [g.double() for g in grads]
    )
    saved = found[3:] if kind == "lstm" else found[2:]
    back = call(f"_{kind}_npu_backward", *grads, x, start, params, *saved, *flags, batch_first=True)
    dx, dstates, dparams = back
    dense = [dx, *(dstates if kind == "lstm" else [dstates]), *dparams]
    for grad, wanted in zip(dense, expected, strict=True):
        near(grad, wanted)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_packed_networks(kind: str) -> None:
    module = network(kind, 1, False)
    x, sizes = numbers(6, 4), torch.tensor([2, 2, 1])  # [T·B, I]; the last row is padding
    hx = [numbers(1, 2, 5, seed=s) for s in range(2 if kind == "lstm" else 1)]
    params = [p.detach().float() for p in module.parameters()]
    start = hx if kind == "lstm" else hx[0]
    found = call(f"_{kind}_npu", x, start, params, True, 1, 0.0, True, False, batch_sizes=sizes)
    packed = torch.nn.utils.rnn.PackedSequence(x[:5].double(), sizes)
    states = tuple(part.double() for part in hx)
    y, last = module(packed, states if kind == "lstm" else states[0])
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(y)
    near(found[0], padded)
    near(found[1], last[0] if kind == "lstm" else last)


@pytest.mark.parametrize("reverse", [False, True])
def test_one_layer_of_the_older_lstm(reverse: bool) -> None:
    x, weight, bias = numbers(4, 2, 3), numbers(8, 20), numbers(20)
    h, c = numbers(1, 2, 5), numbers(1, 2, 5, seed=1)
    found = call(
        "npu_lstm",
        x,
        weight,
        bias,
        torch.empty(0),
        h,
        c,
        *(True, 1, 0.0, True, False, False, False, reverse),
    )
    cell_h, cell_c = h[0].double(), c[0].double()
    steps = range(3, -1, -1) if reverse else range(4)
    for t in steps:
        gates = torch.cat((x[t].double(), cell_h), 1) @ weight.double() + bias.double()
        i, f, g, o = (gates[:, 5 * n : 5 * n + 5] for n in range(4))
        cell_c = torch.sigmoid(f) * cell_c + torch.sigmoid(i) * torch.tanh(g)
        cell_h = torch.sigmoid(o) * torch.tanh(cell_c)
        near(found[0][t], cell_h)
        near(found[2][t], cell_c)
        near(found[3][t], torch.sigmoid(i))


def test_older_lstm_gradients_and_padding() -> None:
    x, weight, bias = numbers(3, 2, 3), numbers(8, 20), numbers(20)
    h, c = numbers(1, 2, 5), numbers(1, 2, 5, seed=1)
    sizes = torch.tensor([2, 1, 1])
    flags = (True, 1, 0.0, True, False, False, True, False)
    found = call("npu_lstm_data", x, sizes, weight, bias, torch.empty(0), h, c, *flags)
    assert torch.equal(found[1][2, 1], found[1][0, 1])  # the second sequence has ended
    assert not found[0][1:, 1].any()
    grads = [numbers(3, 2, 5, seed=s) for s in range(3)]

    def formula(
        a: Tensor, w: Tensor, b: Tensor, hh: Tensor, cc: Tensor, lengths: Any
    ) -> list[Tensor]:
        states, rows = (hh[0], cc[0]), []
        for t in range(3):
            gates = torch.cat((a[t], states[0]), 1) @ w + b
            i, f, g, o = gates.chunk(4, 1)
            fresh = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
            out = o.sigmoid() * fresh.tanh()
            runs = torch.tensor([[1.0 if s < lengths[t] else 0.0] for s in range(2)]).double()
            states = (
                runs * out + (1 - runs) * states[0],
                runs * fresh + (1 - runs) * states[1],
            )
            rows.append((runs * out, *states))
        return [torch.stack(column) for column in zip(*rows, strict=True)]

    inputs = (x, weight, bias, h, c)
    right = gradients(lambda *a: formula(*a, [2, 1, 1]), inputs, grads)
    back = call("npu_lstm_data_backward", *grads, x, sizes, weight, bias, h, c, *found, False)
    for grad, wanted in zip(back, right, strict=True):
        near(grad, wanted)
    plain = call("npu_lstm", *inputs[:3], torch.empty(0), h, c, *flags[:6], False, False)
    right = gradients(lambda *a: formula(*a, [2, 2, 2]), inputs, grads)
    for grad, wanted in zip(call("npu_lstm_backward", *grads, *inputs, *plain), right, strict=True):
        near(grad, wanted)


def test_cells() -> None:
    torch.manual_seed(2)
    cell, gru = torch.nn.LSTMCell(3, 5).double(), torch.nn.GRUCell(3, 5).double()
    x, h, c = numbers(2, 3), numbers(2, 5), numbers(2, 5, seed=1)
    w_ih, w_hh, b_ih, b_hh = (p.detach().float() for p in cell.parameters())
    found = call("npu_lstm_cell", x, w_ih.T, w_hh.T, h, c, b_ih, b_hh)
    wide = [part.double().requires_grad_() for part in (x, h, c)]
    outputs = cell(wide[0], (wide[1], wide[2]))
    near(found[1], outputs[0])
    near(found[2], outputs[1])
    dh, dc = numbers(2, 5, seed=3), numbers(2, 5, seed=4)
    expected = torch.autograd.grad(
        outputs,
        [wide[0], *cell.parameters(), wide[1], wide[2]],
        [dh.double(), dc.double()],
    )
    back = call("npu_lstm_cell_backward", None, dh, dc, x, w_ih.T, w_hh.T, h, c, *found)
    transposed = [part.T if part.shape[0] == 20 and part.dim() == 2 else part for part in expected]
    for grad, wanted in zip(back, transposed, strict=True):
        near(grad, wanted)
    gates = (x @ w_ih.T, h @ w_hh.T)
    hy, cy, workspace = call("aten::_thnn_fused_lstm_cell", *gates, c, b_ih, b_hh)
    near(hy, outputs[0])
    near(cy, outputs[1])
    dgates, dcx, dbias = call(
        "aten::_thnn_fused_lstm_cell_backward_impl", dh, dc, c, cy, workspace, True
    )
    near(dgates @ w_ih, expected[0])
    near(dcx, expected[6])
    near(dbias, dgates.double().sum(0))
    w_ih, w_hh, b_ih, b_hh = (p.detach().float() for p in gru.parameters())
    hy, _ = call("aten::_thnn_fused_gru_cell", x @ w_ih.T, h @ w_hh.T, h, b_ih, b_hh)
    near(hy, gru(x.double(), h.double()))
    out = call(
        "npu_gru",
        x.unsqueeze(0),
        h.unsqueeze(0),
        w_ih.T,
        w_hh.T,
        b_ih,
        b_hh,
        torch.empty(0),
        *(True, 1, 0.0, True, False, False),
    )
    near(out[0][0], gru(x.double(), h.double()))


# ── convolutions and transforms ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_with_gradients(groups: int) -> None:
    x, w, b = numbers(2, 4, 6, 5), numbers(6, 4 // groups, 3, 2), numbers(6)
    sizes = ([2, 1], [1, 0], [1, 2], groups)

    def formula(a: Tensor, c: Tensor, d: Tensor) -> Tensor:
        columns = F.unfold(a, (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1))
        parts = columns.view(2, groups, (4 // groups) * 6, -1)
        weights = c.view(groups, 6 // groups, -1)
        found = torch.einsum("gok,bgkl->bgol", weights, parts)
        return found.reshape(2, 6, 3, 3) + d.view(1, 6, 1, 1)

    near(call("npu_convolution", x, w, b, *sizes), formula(x.double(), w.double(), b.double()))
    dy = numbers(2, 6, 3, 3)
    expected = gradients(formula, (x, w, b), dy)
    found = call("npu_convolution_backward", x, dy, w, *sizes, [True, True, True])
    for grad, wanted in zip(found, expected, strict=True):
        near(grad, wanted)
    found = call("npu_convolution_backward", x, dy, w, *sizes, [True, False, False])
    assert found[1:] == (None, None)


def test_transposed_and_depthwise_convolutions() -> None:
    x, w = numbers(2, 3, 4, 4), numbers(3, 5, 3, 3)
    found = call("npu_convolution_transpose", x, w, None, [1, 1], [1, 1], [2, 2], [1, 1], 1)
    expected = torch.zeros(2, 5, 10, 10, dtype=torch.float64)
    for i in range(4):
        for j in range(4):
            patch = torch.einsum("bc,cokl->bokl", x[:, :, i, j].double(), w.double())
            expected[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += patch
    near(found, expected[:, :, 1:9, 1:9])
    deep = numbers(3, 1, 3, 3)
    found = call("aten::_conv_depthwise2d", x, deep, [3, 3], None, [1, 1], [1, 1], [1, 1])
    for c in range(3):
        right = F.conv2d(x[:, c : c + 1].double(), deep[c : c + 1].double(), padding=1)
        near(found[:, c : c + 1], right)


def test_deformable_convolution_without_shifts_is_a_convolution() -> None:
    x, w, b = numbers(2, 4, 5, 6), numbers(3, 4, 3, 3), numbers(3)
    sizes = ([3, 3], [1, 1, 1, 1], [1, 1, 1, 1])
    offset = torch.zeros(2, 3 * 2 * 9, 5, 6)
    offset[:, 36:] = 1.0  # the factors
    found, _ = call("npu_deformable_conv2d", x, w, offset, b, *sizes, deformable_groups=2)
    near(found, F.conv2d(x.double(), w.double(), b.double(), padding=1))


def test_deformable_convolution_samples_between_pixels() -> None:
    x, w = numbers(1, 2, 4, 4), numbers(2, 2, 1, 1)
    offset = numbers(1, 3, 4, 4) * 1.5
    sizes = ([1, 1], [1, 1, 1, 1], [0, 0, 0, 0])
    found, _ = call("npu_deformable_conv2d", x, w, offset, None, *sizes)

    def at(c: int, y: int, z: int) -> float:
        return float(x[0, c, y, z]) if 0 <= y < 4 and 0 <= z < 4 else 0.0

    for i in range(4):
        for j in range(4):
            col, row = j + float(offset[0, 0, i, j]), i + float(offset[0, 1, i, j])
            y, z = math.floor(row), math.floor(col)
            fy, fx = row - y, col - z
            pixel = torch.tensor(
                [
                    (1 - fy) * ((1 - fx) * at(c, y, z) + fx * at(c, y, z + 1))
                    + fy * ((1 - fx) * at(c, y + 1, z) + fx * at(c, y + 1, z + 1))
                    for c in range(2)
                ],
                dtype=torch.float64,
            )
            right = w[:, :, 0, 0].double() @ pixel * float(offset[0, 2, i, j])
            near(found[0, :, i, j], right)


def test_causal_convolution_sees_no_later_step() -> None:
    x, w, dy = numbers(5, 2, 3), numbers(3, 3), numbers(5, 2, 3, seed=1)
    mask = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 1, 1, 0]]).bool()

    def formula(a: Tensor, c: Tensor) -> Tensor:
        rows = []
        for s in range(5):
            terms = [c[k] * a[s - 2 + k] for k in range(3) if s - 2 + k >= 0]
            rows.append(sum(terms[1:], terms[0]) * mask[:, s].double().view(2, 1))
        return torch.stack(rows)

    near(call("npu_masked_causal_conv1d", x, w, mask=mask), formula(x.double(), w.double()))
    found = call("npu_masked_causal_conv1d_backward", dy, x, w, mask=mask)
    for grad, wanted in zip(found, gradients(formula, (x, w), dy), strict=True):
        near(grad, wanted)


def test_fourier_gradients_are_torchs() -> None:
    x = numbers(3, 7).double().requires_grad_()
    for onesided in (True, False):
        y = torch._fft_r2c(x, [1], 0, onesided)
        dy = torch.randn_like(y)
        expected = torch.autograd.grad(y, x, dy)[0]
        near(call("fft_r2c_backward", dy, [1], 0, onesided, 7), expected)
    z = torch.complex(numbers(3, 4).double(), numbers(3, 4, seed=1).double()).requires_grad_()
    for size in (6, 7):
        y = torch._fft_c2r(z, [1], 2, size)
        dy = torch.randn_like(y)
        expected = torch.autograd.grad(y, z, dy)[0]
        found = call("fft_c2r_backward", dy, [1], 2)
        assert (found - expected).abs().max() < 1e-9


def test_synchronised_batch_norm_over_two_ranks_is_one_batch_norm() -> None:
    x, weight, bias, dy = numbers(6, 3, 4), numbers(3), numbers(3), numbers(6, 3, 4, seed=2)
    parts = (x[:2], x[2:])
    means, rstds = zip(*(call("aten::batch_norm_stats", part, 1e-5) for part in parts), strict=True)
    counts = torch.tensor([8.0, 16.0])
    running = torch.zeros(3), torch.ones(3)
    mean, rstd = call(
        "aten::batch_norm_gather_stats_with_counts",
        *(x, torch.stack(means), torch.stack(rstds), *running, 0.1, 1e-5, counts),
    )
    theirs = torch.zeros(3).double(), torch.ones(3).double()
    wide = x.double().requires_grad_()
    y = F.batch_norm(wide, *theirs, weight.double(), bias.double(), True, 0.1, 1e-5)
    ours = torch.cat(
        [call("aten::batch_norm_elemt", part, weight, bias, mean, rstd, 1e-5) for part in parts]
    )
    near(ours, y)
    near(running[0], theirs[0])
    near(running[1], theirs[1])
    sums = [
        call("aten::batch_norm_backward_reduce", d, part, mean, rstd, weight, True, True, True)
        for d, part in zip((dy[:2], dy[2:]), parts, strict=True)
    ]
    total, moment = sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]
    found = torch.cat(
        [
            call(
                "aten::batch_norm_backward_elemt",
                d,
                part,
                mean,
                rstd,
                weight,
                total,
                moment,
                counts.int(),
            )
            for d, part in zip((dy[:2], dy[2:]), parts, strict=True)
        ]
    )
    near(found, torch.autograd.grad(y, wide, dy.double())[0])
    reduced = [call("batch_norm_reduce", part, 1e-5) for part in parts]
    again = call(
        "batch_norm_gather_stats_update",
        *(x, *(torch.stack(column) for column in zip(*reduced, strict=True))),
        *(None, None, 0.1, 1e-5, counts),
    )
    near(again[0], mean.double())
    near(again[1], rstd.double(), factor=10)


# ── shapes, boxes, sampling ─────────────────────────────────────────────────────────────────────


def test_confusion_transpose_and_back() -> None:
    x = numbers(2, 3, 4)
    for first, perm, shape in ((True, [0, 2, 1], [2, 12]), (False, [1, 0], [6, 4])):
        y = call("npu_confusion_transpose", x, perm, shape, first)
        dy = numbers(*y.shape, seed=1)

        def formula(a: Tensor, f: bool = first, p: Any = perm, s: Any = shape) -> Tensor:
            return a.permute(p).reshape(s) if f else a.reshape(s).permute(p)

        assert torch.equal(y, formula(x))
        found = call("npu_confusion_transpose_backward", dy, perm, [2, 3, 4], not first)
        assert torch.equal(found.double(), gradients(formula, (x,), dy)[0])


def test_positions_and_shapes() -> None:
    x = numbers(4, 5)
    assert torch.equal(call("npu_slice", x, [1, 2], [2, -1]), x[1:3, 2:])
    assert torch.equal(call("npu_indexing", x, [1, 0], [0, 4], [1, 2], 0, 1), x[1:, 0:4:2])
    start, end = torch.tensor([[0, 1, 4, 2]]), torch.tensor([[2, 1, 5, 9]])
    filled = call("npu_masked_fill_range", x, start, end, torch.tensor([7.0]))
    inside = (torch.arange(5) >= start.T) & (torch.arange(5) < end.T)
    assert torch.equal(filled, torch.where(inside, 7.0, x))
    padded = call("npu_pad", x, [1, 0, 2, 1])
    assert padded.shape == (5, 8)
    assert torch.equal(padded[1:, 2:7], x)
    hot = call("npu_one_hot", torch.tensor([2, 0]), -1, 3, 5, -1)
    assert hot.tolist() == [[-1, -1, 5], [5, -1, -1]]
    _values, places = call("npu_max.dim", x, 0)
    assert places.dtype == torch.int32
    dy = numbers(5)
    found = call("npu_max_backward", dy, 0, places, [4, 5], False)
    near(found, gradients(lambda a: a.amax(0), (x,), dy)[0])
    repeats = torch.tensor([1, 0, 3, 2])
    dz = numbers(6, 5)
    found = call("repeat_interleave_backward_tensor", dz, x, repeats, 0)
    near(found, gradients(lambda a: a.repeat_interleave(repeats, 0), (x,), dz)[0])
    dz = numbers(4, 15)
    found = call("repeat_interleave_backward_int", dz, x, 3, 1)
    near(found, gradients(lambda a: a.repeat_interleave(3, 1), (x,), dz)[0])
    dz = numbers(40)
    found = call("repeat_interleave_backward_int", dz, x, 2)
    near(found, gradients(lambda a: a.repeat_interleave(2), (x,), dz)[0])
    bits = call("npu_sign_bits_pack", torch.tensor([1.0, -1, 0, -2, 3, 4, -5, 6, -7]), 1)
    assert bits.tolist() == [[0b10110101, 0]]
    back = call("npu_sign_bits_unpack", bits.reshape(-1), 1, torch.float32)
    assert back[0, :9].tolist() == [1, -1, 1, -1, 1, 1, -1, 1, -1]


def test_overlaps_and_suppression() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30], [0, 0, 10, 9]])
    found = call("npu_iou", boxes, boxes[:1])
    expected = torch.tensor([[1.0, 0.81, 0.0, 0.9]]).double()
    near(found, expected)
    scores = torch.tensor([0.9, 0.8, 0.7, 0.95])
    chosen, count = call("npu_nms_v4", boxes, scores, 4, torch.tensor(0.5), torch.tensor(0.1))
    assert (int(count), chosen.tolist()) == (2, [3, 2, 0, 0])
    _, _, kept = call("npu_nms_with_mask", torch.cat((boxes, scores.view(4, 1)), 1), 0.85)
    assert kept.tolist() == [1, 1, 1, 0]
    anchors, norms = boxes + 1, (0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.2)
    deltas = call("npu_bounding_box_encode", anchors, boxes, *norms)
    back = call("npu_bounding_box_decode", anchors, deltas, *norms, [1], 0.016)
    near(back, boxes.double())
    near(call("npu_giou", boxes.T, boxes.T), torch.ones(4, 1).double())
    dy = numbers(4, 1)
    others = (boxes + torch.tensor([1.0, 2, 3, 1])).T
    found = call("npu_giou_backward", dy, boxes.T, others)
    step = 1e-3
    for row in range(4):
        moved = boxes.T.clone()
        moved[row, 1] += step
        slope = (
            call("npu_giou", moved.double(), others.double())
            - call("npu_giou", boxes.T.double(), others.double())
        )[1, 0] / step
        assert abs(float(found[0][row, 1]) - float(slope * dy[1, 0])) < 1e-2


def test_region_pooling_averages_samples() -> None:
    plane = torch.arange(64.0).view(1, 1, 8, 8)
    rois = torch.tensor([[0.0, 1, 1, 5, 5]])
    found = call("npu_roi_align", plane, rois, 1.0, 2, 2, 2, 0)
    # a linear picture: the average of the samples is the value at the middle of the bin
    expected = [[y * 8 + x for x in (2.0, 4.0)] for y in (2.0, 4.0)]
    near(found[0, 0], torch.tensor(expected).double())
    x, dy = numbers(2, 3, 8, 8), numbers(1, 3, 2, 2)
    grad = call("npu_roi_alignbk", dy, rois, [2, 3, 8, 8], 2, 2, 1.0, 2, 0)
    inner = (call("npu_roi_align", x, rois, 1.0, 2, 2, 2, 0).double() * dy.double()).sum()
    assert abs(float((grad.double() * x.double()).sum() - inner)) < 1e-4  # it is linear in x


def test_filters_for_sampling() -> None:
    logits = torch.tensor([[1.0, 4, 2, 3], [0, 0, 5, 1]])
    found = call("npu_top_k_top_p", logits, torch.tensor([1.0, 0.5]), torch.tensor([2, 4]))
    low = -math.inf
    assert found.tolist() == [[low, 4, low, 3], [low, low, 5, low]]


def test_a_decoding_step_moves_every_query_on() -> None:
    tokens, positions, slots = torch.zeros(3).long(), torch.zeros(3).long(), torch.zeros(3).long()
    lengths, table = torch.tensor([5, 8, 2]), torch.tensor([[4, 7, 1], [2, 0, 9], [3, 5, 6]])
    call(
        "npu_advance_step_flashattn",
        tokens,
        torch.tensor([[7], [8], [9]]),
        positions,
        lengths,
        slots,
        table,
        3,
        2,
        4,
    )
    assert tokens.tolist() == [7, 8, 0]
    assert positions.tolist() == [5, 8, 0]
    assert lengths.tolist() == [6, 9, 2]
    assert slots.tolist() == [7 * 4 + 1, 9 * 4 + 0, 0]


def test_casts_keep_values_and_widen_gradients() -> None:
    x = numbers(3, 4)
    assert call("npu_dtype_cast", x, 15).dtype == torch.bfloat16
    assert call("_npu_dtype_cast_backward", x.half(), torch.float32).dtype == torch.float32
    y = torch.zeros(3, 4, dtype=torch.float16)
    assert call("npu_dtype_cast_", y, x) is y
    near(y, x.double())
    assert call("one_", copy.deepcopy(x)).eq(1).all()


# ── ATB ─────────────────────────────────────────────────────────────────────────────────────────


def attention(q: Tensor, k: Tensor, v: Tensor, shift: int | None) -> Tensor:
    """[S, N, D] attention at scale 0.3; `shift` None sees everything, else causal."""
    out = torch.zeros(len(q), q.shape[1], v.shape[2], dtype=torch.float64)
    for i in range(len(q)):
        for n in range(q.shape[1]):
            m = n * k.shape[1] // q.shape[1]
            stop = len(k) if shift is None else i + shift + 1
            logits = k[:stop, m].double() @ q[i, n].double() * 0.3
            out[i, n] = logits.softmax(0) @ v[:stop, m].double()
    return out


def test_packed_and_paged_attention_of_the_library() -> None:
    q, k, v = numbers(5, 4, 8), numbers(5, 2, 8), numbers(5, 2, 8, seed=1)
    lengths, out = torch.tensor([2, 3]), torch.zeros(5, 4, 8)
    call("atb::_npu_flash_attention_unpad", q, k, v, lengths, 0.3, 4, 2, out)
    near(out[:2], attention(q[:2], k[:2], v[:2], None))
    near(out[2:], attention(q[2:], k[2:], v[2:], None))
    for mask in (torch.full((3, 3), -torch.inf).triu(1), torch.ones(3, 3).triu(1)):
        call("atb::_npu_flash_attention", q, k, v, mask, lengths, 0.3, 4, 2, out)
        near(out[2:], attention(q[2:], k[2:], v[2:], 0))
    keys, values = numbers(4, 4, 2, 8), numbers(4, 4, 2, 6)
    table, seen = torch.tensor([[3, 1], [0, 2]]), torch.tensor([5, 8])
    rows = [
        [part[table[b]].reshape(8, 2, -1)[: seen[b]] for part in (keys, values)] for b in (0, 1)
    ]
    single = torch.zeros(2, 4, 6)
    call("atb::_npu_paged_attention", q[:2], keys, values, 2, 4, 0.3, table, seen, single)
    for b in (0, 1):
        near(single[b : b + 1], attention(q[b : b + 1], *rows[b], None))
    mixed = torch.zeros(5, 4, 6)
    empty = torch.empty(0)
    call(
        "atb::_npu_paged_attention_splitfuse",
        q,
        keys,
        values,
        table,
        seen,
        empty,
        lengths,
        2,
        4,
        0.3,
        mixed,
    )
    near(mixed[:2], attention(q[:2], *rows[0], 3))
    near(mixed[2:], attention(q[2:], *rows[1], 5))
    latent = torch.zeros(2, 4, 6)
    call("atb::_npu_paged_attention_mla", q[:2], keys, 2, 4, 0.3, table, seen, 6, latent)
    near(latent[:1], attention(q[:1], rows[0][0], rows[0][0][..., :6], None))


def test_group_top_k_zeroes_the_other_groups() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.4, 0.3, 0.2, 0.8, 0.7]])
    call("atb::_npu_group_topk", scores, 2, 4, 2)
    assert [round(v, 1) for v in scores[0].tolist()] == [0.1, 0.9, 0, 0, 0, 0, 0.8, 0.7]


def test_library_rope_in_both_styles() -> None:
    cache, positions = numbers(10, 8), torch.tensor([3, 7])
    for neox in (True, False):
        q, k = numbers(2, 16), numbers(2, 8)
        old = q.clone()
        call("atb::_npu_rotary_embedding", positions, q, k, 8, cache, neox)
        for t in range(2):
            for i in range(4):
                a, b = (i, i + 4) if neox else (2 * i, 2 * i + 1)
                cos, sin = cache[positions[t], i].double(), cache[positions[t], 4 + i].double()
                near(q[t, a], old[t, a].double() * cos - old[t, b].double() * sin)
                near(q[t, b], old[t, b].double() * cos + old[t, a].double() * sin)
