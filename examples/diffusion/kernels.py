"""x * sigmoid(x) times a gate, in one kernel; without Triton or a GPU, in plain torch."""

from __future__ import annotations

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:

    @triton.jit
    def gated_silu_kernel(x, gate, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        value = tl.load(x + at, mask=inside).to(tl.float32)
        factor = tl.load(gate + at, mask=inside).to(tl.float32)
        tl.store(out + at, value / (1 + tl.exp(-value)) * factor, mask=inside)


class GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, gate)
        if triton is None or not x.is_cuda:
            return torch.nn.functional.silu(x) * gate
        x, gate = x.contiguous(), gate.contiguous()
        out = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 65536),)
        gated_silu_kernel[grid](x, gate, out, x.numel(), BLOCK=65536, num_warps=32)
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor):
        x, gate = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        return grad * gate * sigmoid * (1 + x * (1 - sigmoid)), grad * x * sigmoid


gated_silu = GatedSilu.apply
