"""Manifold-constrained hyper-connections: n residual streams, mixed before and after a layer.

n streams [.., n, D]; `h_res` [.., n, n] mixes them, `h_post` [.., n] spreads the layer's output.
What a Sinkhorn keeps for its backward has the vendor's length; its order is our own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.numerics import HF32_DROPPED_BITS_950, to_hf32
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import vjp, working

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
PADDED = 8  # the kernel pads the innermost axis to 8 numbers
Maybe = Tensor | None


def post(x: Tensor, h_res: Maybe, h_out: Tensor, h_post: Tensor) -> Tensor:
    """Streams mixed by h_res (its rows are sources), and the layer's output added to each."""
    mixed = x if h_res is None else torch.einsum("...ij,...id->...jd", h_res, x)
    return mixed + h_post.unsqueeze(-1) * h_out.unsqueeze(-2)


@reference("npu_mhc_post", source=DOCS.format("npu_mhc_post") + ", test_npu_mhc_post.py")
def npu_mhc_post(x: Tensor, h_res: Maybe, h_out: Tensor, h_post: Tensor) -> Tensor:
    wide = None if h_res is None else working(h_res)
    return post(working(x), wide, working(h_out), working(h_post)).to(x.dtype)


@reference("npu_mhc_post_backward", source="op-plugin MhcPostBackwardNpuOpApi.cpp")
def npu_mhc_post_backward(
    grad_y: Tensor, x: Tensor, h_res: Maybe, h_out: Tensor, h_post: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, h_res (zeros where there was none), h_out and h_post."""
    dx, dres, dout, dpost = vjp(post, [x, h_res, h_out, h_post], working(grad_y))
    assert dx is not None
    assert dout is not None
    assert dpost is not None
    if dres is None:
        dres = torch.zeros((*x.shape[:-1], x.shape[-2]), dtype=torch.float32)
    return dx, dres, dout, dpost


def mixing(
    x: Tensor, phi: Tensor, gamma: Maybe, norm_eps: float, hf32: bool
) -> tuple[Tensor, Tensor]:
    """x·γ through phi, [.., rows of phi], and 1/rms of x, [..]; the norm is applied later."""
    flat = x.flatten(-2)
    scaled = flat if gamma is None else flat * gamma.flatten()
    if hf32:
        scaled, phi = (to_hf32(one, HF32_DROPPED_BITS_950) for one in (scaled, phi))
    return scaled @ phi.T, (flat.square().mean(-1) + norm_eps).rsqrt()


def connections(
    mix: Tensor, inv_rms: Tensor, alpha: Tensor, bias: Tensor, n: int, hc_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """h_pre [.., n], h_post [.., n] and h_res [.., n, n] (before Sinkhorn; empty without)."""
    normed = mix * inv_rms.unsqueeze(-1)
    pre = (normed[..., :n] * alpha[0] + bias[:n]).sigmoid() + hc_eps
    after = 2 * (normed[..., n : 2 * n] * alpha[1] + bias[n : 2 * n]).sigmoid()
    rest = normed[..., 2 * n :]
    if rest.shape[-1]:
        rest = (rest * alpha[2] + bias[2 * n :]).unflatten(-1, (n, n))  # type: ignore[no-untyped-call]
    return pre, after, rest


@reference("npu_mhc_pre", source=DOCS.format("npu_mhc_pre") + ", test_npu_mhc_pre.py")
def npu_mhc_pre(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The layer's input h_in [.., D], h_post, h_res, and what the backward needs.

    Two numbers in alpha leave h_res out. 1/rms, the mix and h_pre come whatever `out_flag` says.
    """
    wide, n = working(given.x), given.x.shape[-2]
    scale = None if given.gamma is None else working(given.gamma)
    mix, inv_rms = mixing(wide, working(given.phi), scale, given.norm_eps, given.inner_precise == 1)
    pre, after, rest = connections(
        mix, inv_rms, working(given.alpha), working(given.bias), n, given.hc_eps
    )
    if given.alpha.numel() != 3:
        rest = torch.zeros(1, dtype=torch.float32)
    h_in = (pre.unsqueeze(-1) * wide).sum(-2).to(given.x.dtype)
    return h_in, after, rest, inv_rms, mix, pre


@reference("npu_mhc_pre_backward", source="op-plugin MhcPreBackwardNpuOpapi.cpp; the vjp of it")
def npu_mhc_pre_backward(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (with that of the post mapping added), phi, alpha, bias and gamma.

    The bias is found again from the saved results: a sigmoid tells its argument's derivative.
    """
    n, size = given.x.shape[-2], given.x.shape[-2] * given.x.shape[-1]
    wide, saved = working(given.x), working(given.h_mix) * given.inv_rms.unsqueeze(-1)
    factor = working(given.alpha)
    low, high = given.h_pre - given.hc_eps, given.h_post / 2
    d_pre = (working(given.grad_h_in).unsqueeze(-2) * wide).sum(-1) * low * (1 - low)
    d_post = working(given.grad_h_post) * 2 * high * (1 - high)
    parts = [d_pre, d_post]
    if given.alpha.numel() == 3:
        parts.append(working(given.grad_h_res).flatten(-2))
    before = [part * factor[k] for k, part in enumerate(parts)]
    d_normed = torch.cat(before, -1)
    d_mix = d_normed * given.inv_rms.unsqueeze(-1)
    scale = torch.ones(size) if given.gamma is None else working(given.gamma).flatten()
    rows = wide.flatten(-2).reshape(-1, size)
    left = d_mix.reshape(len(rows), -1)
    through = left @ working(given.phi)
    d_rms = (d_normed * given.h_mix).sum(-1, keepdim=True)
    by_norm = -(d_rms * given.inv_rms.unsqueeze(-1).pow(3) / size) * wide.flatten(-2)
    dx = (through * scale).reshape(given.x.shape) + by_norm.reshape(given.x.shape)
    dx = dx + given.h_pre.unsqueeze(-1) * working(given.grad_h_in).unsqueeze(-2)
    if given.grad_x_post is not None:
        dx = dx + working(given.grad_x_post)
    widths = [n, n, n * n][: len(parts)]
    d_alpha = [
        (p * s).sum() for p, s in zip(parts, saved.split_with_sizes(widths, -1), strict=True)
    ]
    d_bias = torch.cat([part.reshape(len(rows), -1).sum(0) for part in parts])
    d_gamma = torch.zeros(size) if given.gamma is None else (rows * through).sum(0)
    return (
        dx.to(given.x.dtype),
        left.T @ (rows * scale),
        torch.stack(d_alpha),
        d_bias,
        d_gamma.reshape(given.x.shape[-2:]),
    )


def sinkhorn(x: Tensor, eps: float, turns: int) -> list[tuple[Tensor, Tensor | None]]:
    """All states [T, n, n] and the sums that led to them, from the softmax of the rows on."""
    now = x.softmax(-1) + eps
    found: list[tuple[Tensor, Tensor | None]] = [(now, None)]
    for step in range(1, 2 * turns):
        total = now.sum(-2 if step % 2 else -1, keepdim=True) + eps
        now = now / total
        found.append((now, total))
    return found


@reference("npu_mhc_sinkhorn", source=DOCS.format("npu_mhc_sinkhorn"))
def npu_mhc_sinkhorn(
    x: Tensor, eps: float, num_iters: int, out_flag: int
) -> tuple[Tensor, Maybe, Maybe]:
    """[.., n, n] made doubly stochastic; with out_flag 1 all states and sums for the backward."""
    n = x.shape[-1]
    found = sinkhorn(working(x).reshape(-1, n, n), eps, num_iters)
    result = found[-1][0].reshape(x.shape)
    if not out_flag:
        return result, None, None
    count = len(found[0][0])
    states = torch.zeros(2 * num_iters, count, n, PADDED)
    totals = torch.zeros(2 * num_iters, count, PADDED)
    for k, (state, total) in enumerate(found):
        states[k, ..., :n] = state
        if total is not None:
            totals[k, ..., :n] = total.flatten(1)
    return result, states.flatten(), totals.flatten()


@reference("npu_mhc_sinkhorn_backward", source="the vjp of npu_mhc_sinkhorn")
def npu_mhc_sinkhorn_backward(grad_y: Tensor, norm: Tensor, sum: Tensor) -> Tensor:
    """Back through the divisions, last first; `norm` and `sum` as the forward gave them."""
    n = grad_y.shape[-1]
    now = working(grad_y).reshape(-1, n, n)
    states = norm.reshape(-1, len(now), n, PADDED)[..., :n]
    totals = sum.reshape(-1, len(now), PADDED)[..., :n]
    for step in range(len(states) - 1, 0, -1):
        axis = -2 if step % 2 else -1
        now = (now - (now * states[step]).sum(axis, keepdim=True)) / totals[step].unsqueeze(axis)
    # eps shifts the softmax, whose derivative is in the softmax itself; it is far below rounding
    return (states[0] * (now - (now * states[0]).sum(-1, keepdim=True))).reshape(grad_y.shape)
