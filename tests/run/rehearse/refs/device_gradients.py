"""Run by pytest inside a rehearsal: torch_npu's autograd formulas over our backward operators.

Each case computes on npu:0 through the package's function, and on the CPU in float64 through a
formula of plain torch; outputs and the gradients of all inputs must agree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_npu
from torch import Tensor

Make = Callable[[], list[Tensor]]
Function = Callable[..., Any]
CASES: dict[str, tuple[Function, Function, Make]] = {}


def case(name: str, device: Function, host: Function, *shapes: tuple[int, ...] | Tensor) -> None:
    """Inputs are normal numbers of a shape, or a tensor that is taken as it is."""

    def make() -> list[Tensor]:
        gen = torch.Generator().manual_seed(5)
        return [torch.randn(s, generator=gen) if isinstance(s, tuple) else s for s in shapes]

    CASES[name] = (device, host, make)


def first(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else value[0]


def run(function: Function, inputs: list[Tensor]) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs]
    output = first(function(*leaves))
    weight = torch.linspace(-1, 1, output.numel()).reshape(output.shape).to(output)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    grads = torch.autograd.grad(output, wanted, weight, allow_unused=True)
    return [output.detach(), *(g if g is not None else torch.zeros(()) for g in grads)]


# ── attention ───────────────────────────────────────────────────────────────────────────────────


def attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> Tensor:
    """B N S D with fewer key heads than query heads; `hidden` marks what isn't seen."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v


HEADS = ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))
CAUSAL = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def fused(layout: str, **options: Any) -> Function:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        named = {n: o.npu() if isinstance(o, Tensor) else o for n, o in options.items()}
        return torch_npu.npu_fusion_attention(q, k, v, 4, layout, scale=8**-0.5, **named)

    return function


def swapped(function: Function) -> Function:
    """A formula of B N S D for tensors of B S N D."""
    return lambda q, k, v: function(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)


def flat(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    parts = (t.unflatten(-1, (-1, 8)).transpose(1, 2) for t in (q, k, v))
    return attention(*parts).transpose(1, 2).flatten(2)


def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    found = []
    for low, high in ((0, 2), (2, 7)):
        parts = (t[low:high].transpose(0, 1)[None] for t in (q, k, v))
        hidden = torch.ones(high - low, high - low).triu(1).bool()
        found.append(attention(*parts, hidden)[0].transpose(0, 1))
    return torch.cat(found)


case("attention", fused("BNSD"), attention, *HEADS)
case(
    "attention, causal",
    fused("BNSD", atten_mask=CAUSAL, sparse_mode=2),
    lambda q, k, v: attention(q, k, v, CAUSAL[:6, :6]),
    *HEADS,
)
case(
    "attention, sequence before heads",
    fused("BSND"),
    swapped(attention),
    *((2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8)),
)
case("attention, heads flat", fused("BSH"), flat, (2, 6, 32), (2, 6, 16), (2, 6, 16))
case(
    "attention, sequences packed",
    fused(
        "TND",
        actual_seq_qlen=[2, 7],
        actual_seq_kvlen=[2, 7],
        atten_mask=CAUSAL,
        sparse_mode=3,
    ),
    packed,
    *((7, 4, 8), (7, 2, 8), (7, 2, 8)),
)
case(
    "scaled_dot_product_attention",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    lambda q, k, v: attention(q, k, v, CAUSAL[:6, :6]),
    *((2, 4, 6, 8),) * 3,
)


# ── norms and activations ───────────────────────────────────────────────────────────────────────

case(
    "npu_rms_norm",
    lambda x, g: torch_npu.npu_rms_norm(x, g, 1e-6),
    lambda x, g: F.rms_norm(x, (8,), g, 1e-6),
    *((3, 5, 8), (8,)),
)
case(
    "npu_add_layer_norm",
    lambda x, y, g, b: torch_npu.npu_add_layer_norm(x, y, g, b, 1e-5, True),
    lambda x, y, g, b: F.layer_norm(x + y, (8,), g, b),
    *((3, 8), (3, 8), (8,), (8,)),
)
case(
    "npu_deep_norm",
    lambda x, y, b, g: torch_npu.npu_deep_norm(x, y, b, g, 0.3, 1e-6)[2],
    lambda x, y, b, g: F.layer_norm(x * 0.3 + y, (8,), g, b, 1e-6),
    *((3, 8), (3, 8), (8,), (8,)),
)
case(
    "npu_group_norm_swish",
    lambda x, g, b: torch_npu.npu_group_norm_swish(x, 2, g, b, 1e-5, 1.0),
    lambda x, g, b: F.silu(F.group_norm(x, 2, g, b)),
    *((2, 4, 3, 3), (4,), (4,)),
)
case(
    "npu_swiglu",
    lambda x: torch_npu.npu_swiglu(x, -1),
    lambda x: F.silu(x[..., :4]) * x[..., 4:],
    (3, 8),
)
case(
    "npu_geglu",
    lambda x: torch_npu.npu_geglu(x, -1, 1, True),
    lambda x: F.gelu(x[..., :4], approximate="tanh") * x[..., 4:],
    (3, 8),
)
case(
    "npu_gelu",
    lambda x: torch_npu.npu_gelu(x, approximate="none"),
    F.gelu,
    (3, 8),
)
case("npu_silu", torch_npu.npu_silu, F.silu, (3, 8))
case("npu_mish", torch_npu.npu_mish, F.mish, (3, 8))
case(
    "fast_gelu",
    torch_npu.fast_gelu,
    lambda x: x / (1 + (-1.702 * x.abs()).exp()) * (0.851 * (x - x.abs())).exp(),
    (3, 8),
)
case(
    "npu_scaled_masked_softmax",
    lambda x: torch_npu.npu_scaled_masked_softmax(x, (CAUSAL[:32, :32]).npu()[None, None], 0.5),
    lambda x: (x * 0.5).masked_fill(CAUSAL[:32, :32], -10000.0).softmax(-1),
    (2, 2, 32, 32),
)


def turned(x: Tensor) -> Tensor:
    return torch.cat((-x[..., 4:], x[..., :4]), -1)


def interleaved(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


for mode, other in (("half", turned), ("interleave", interleaved)):
    case(
        f"npu_rotary_mul, {mode}",
        lambda x, c, s, mode=mode: torch_npu.npu_rotary_mul(x, c, s, mode),
        lambda x, c, s, other=other: x * c + other(x) * s,
        *((2, 5, 3, 8), (1, 5, 1, 8), (1, 5, 1, 8)),
    )

# ── products and movement ───────────────────────────────────────────────────────────────────────

case("npu_linear", torch_npu.npu_linear, F.linear, (3, 8), (5, 8), (5,))
case("npu_bmmV2", lambda a, b: torch_npu.npu_bmmV2(a, b, []), torch.bmm, (2, 3, 4), (2, 4, 5))
case(
    "npu_confusion_transpose",
    lambda x: torch_npu.npu_confusion_transpose(x, [0, 2, 1, 3], [2, 3, 8], True),
    lambda x: x.permute(0, 2, 1, 3).reshape(2, 3, 8),
    (2, 2, 3, 4),
)
case("npu_dtype_cast", lambda x: torch_npu.npu_dtype_cast(x, torch.float32), lambda x: x, (3, 4))
case("npu_max", lambda x: torch_npu.npu_max(x, 1), lambda x: x.max(1), (3, 5))
case("npu_min", lambda x: torch_npu.npu_min(x, 0), lambda x: x.min(0), (3, 5))
case(
    "repeat_interleave",
    lambda x: x.repeat_interleave(2, 1),
    lambda x: x.repeat_interleave(2, 1),
    (3, 4),
)
EXPERTS = torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1]])


def shuffled(tokens: Tensor, probabilities: Tensor) -> Tensor:
    rows, order = torch_npu.npu_moe_token_permute(tokens, EXPERTS.npu())
    return torch_npu.npu_moe_token_unpermute(rows * 2, order, probabilities)


case(
    "npu_moe_token_permute and unpermute",
    shuffled,
    lambda tokens, probabilities: tokens * 2 * probabilities.sum(1, keepdim=True),
    *((4, 8), (4, 2)),
)

# ── losses ──────────────────────────────────────────────────────────────────────────────────────

LABELS = torch.tensor([1, 4, -100, 0])
case(
    "npu_cross_entropy_loss",
    lambda x: torch_npu.npu_cross_entropy_loss(x, LABELS.npu())[0][0],
    lambda x: F.cross_entropy(x, LABELS),
    (4, 6),
)
TARGETS = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
for reduction in ("none", "mean", "sum"):
    for loss in (F.l1_loss, F.mse_loss, F.smooth_l1_loss):
        same = lambda x, y, loss=loss, reduction=reduction: loss(x, y, reduction=reduction)  # noqa: E731
        case(f"{loss.__name__}, {reduction}", same, same, (4, 6), (4, 6))
    soft = lambda x, y, reduction=reduction: F.kl_div(  # noqa: E731
        x.log_softmax(-1), y.softmax(-1), reduction=reduction
    )
    case(f"kl_div, {reduction}", soft, soft, (4, 6), (4, 6))
    logits = lambda x, reduction=reduction: F.binary_cross_entropy_with_logits(  # noqa: E731
        x, TARGETS.to(x), reduction=reduction
    )
    case(f"binary_cross_entropy_with_logits, {reduction}", logits, logits, (4, 6))

# ── pictures and transforms ─────────────────────────────────────────────────────────────────────

case(
    "npu_convolution",
    lambda x, w, b: torch_npu.npu_convolution(x, w, b, [2, 1], [1, 0], [1, 2], 2),
    lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 0), (1, 2), 2),
    *((2, 4, 6, 7), (6, 2, 3, 2), (6,)),
)
for name, spectrum in {
    "rfft": lambda x: torch.view_as_real(torch.fft.rfft(x)),
    "fft and back": lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=8),
    "fft2": lambda x: torch.view_as_real(torch.fft.fft2(x)),
}.items():
    case(name, spectrum, spectrum, (3, 8))
case(
    "cdist",
    lambda x, y: torch.cdist(x, y, p=1.0),
    lambda x, y: torch.cdist(x, y, p=1.0),
    *((3, 4), (5, 4)),
)
BOXES = torch.tensor([[1.0, 2, 5, 7], [0, 0, 3, 3], [2, 2, 6, 5]]).T.contiguous()


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Generalised overlap of boxes [4, n] given as centre and size; [n, 1]."""
    low_a, high_a = a[:2] - a[2:] / 2, a[:2] + a[2:] / 2
    low_b, high_b = b[:2] - b[2:] / 2, b[:2] + b[2:] / 2
    inner = (torch.minimum(high_a, high_b) - torch.maximum(low_a, low_b)).clamp(min=0).prod(0)
    joint = a[2:].prod(0) + b[2:].prod(0) - inner
    hull = (torch.maximum(high_a, high_b) - torch.minimum(low_a, low_b)).prod(0)
    return (inner / joint - (hull - joint) / hull)[:, None]


case(
    "npu_giou",
    lambda a, b: torch_npu.npu_giou(a, b, trans=True, is_cross=False, mode=0),
    overlap,
    *(BOXES, BOXES.flip(1) + 0.25),
)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_match_the_cpu(name: str) -> None:
    device, host, make = CASES[name]
    inputs = make()
    found = run(device, [t.npu() for t in inputs])
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    expected = run(host, wide)
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == wanted.shape
        torch.testing.assert_close(got.cpu().double(), wanted.double(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("both", [False, True])
def test_recurrent_networks_match_the_cpu(kind: Any, both: bool) -> None:
    torch.manual_seed(1)
    host = kind(3, 5, num_layers=2, batch_first=True, bidirectional=both)
    device = copy.deepcopy(host).npu()
    x = torch.randn(2, 4, 3)
    y, z = x.clone().requires_grad_(), x.npu().requires_grad_()
    wanted, found = host(y)[0], device(z)[0]
    torch.testing.assert_close(found.cpu(), wanted, rtol=2e-5, atol=2e-5)
    (wanted**2).sum().backward()
    (found**2).sum().backward()
    torch.testing.assert_close(z.grad.cpu(), y.grad, rtol=2e-4, atol=2e-5)
    for ours, theirs in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell])
def test_recurrent_cells_match_the_cpu(kind: Any) -> None:
    torch.manual_seed(1)
    host = kind(3, 5)
    device = copy.deepcopy(host).npu()
    x, h = torch.randn(2, 3), torch.randn(2, 5)
    state = (h, h.flip(0)) if kind is torch.nn.LSTMCell else h
    moved = tuple(t.npu() for t in state) if isinstance(state, tuple) else state.npu()
    wanted, found = first(host(x, state)), first(device(x.npu(), moved))
    torch.testing.assert_close(found.cpu(), wanted, rtol=2e-5, atol=2e-5)
    wanted.sum().backward()
    found.sum().backward()
    for ours, theirs in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_packed_sequences_match_the_cpu(kind: Any) -> None:
    """The package's LSTM keeps the padding in a packed sequence: its data are [T·B, I]."""
    torch.manual_seed(1)
    host = kind(3, 5, batch_first=True)
    device = copy.deepcopy(host).npu()
    x = torch.randn(3, 4, 3)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2, 1]), True)
    steps = torch.arange(4)[:, None] < torch.tensor([4, 2, 1])
    kept = steps.flatten() if kind is torch.nn.LSTM else torch.ones(7, dtype=torch.bool)
    data = x.transpose(0, 1).reshape(12, 3) if kind is torch.nn.LSTM else packed.data
    moved = torch.nn.utils.rnn.PackedSequence(data.npu(), packed.batch_sizes)
    wanted, found = host(packed)[0].data, device(moved)[0].data.reshape(-1, 5)
    torch.testing.assert_close(found.cpu()[kept], wanted, rtol=2e-5, atol=2e-5)
    wanted.sum().backward()
    (found * kept[:, None].npu()).sum().backward()
    for ours, theirs in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=2e-5, atol=2e-5)


def test_dropout_keeps_the_share_and_its_gradient_the_mask() -> None:
    x = torch.ones(64, 64).npu().requires_grad_()
    y = F.dropout(x, 0.25)
    y.sum().backward()
    kept = y.detach().cpu() != 0
    assert 0.7 < kept.float().mean() < 0.8
    torch.testing.assert_close(y.detach().cpu()[kept], torch.full((int(kept.sum()),), 4 / 3))
    torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())


def test_the_fused_optimiser_matches_adamw() -> None:
    torch.manual_seed(2)
    host = torch.nn.Linear(4, 3)
    device = copy.deepcopy(host).npu()
    ours = torch_npu.optim.NpuFusedAdamW(device.parameters(), lr=0.1, weight_decay=0.1)
    theirs = torch.optim.AdamW(host.parameters(), lr=0.1, weight_decay=0.1)
    x = torch.randn(5, 4)
    for _ in range(3):
        for model, optimiser, batch in ((device, ours, x.npu()), (host, theirs, x)):
            optimiser.zero_grad()
            (model(batch) ** 2).sum().backward()
            optimiser.step()
    for a, b in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=2e-5, atol=2e-5)
