"""The project's own activation."""

import torch
import torch.nn.functional as F


class Mish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        inner = torch.tanh(F.softplus(x))
        return grad * (inner + x * torch.sigmoid(x) * (1 - inner * inner))


def mish(x):
    return Mish.apply(x)
