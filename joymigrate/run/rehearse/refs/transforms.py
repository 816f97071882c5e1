"""Gradients of Fourier transforms, which torch_npu declares as operators of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import autograd_enabled

FORMULAS = "op-plugin derivatives.yaml"


@reference("fft_r2c_backward", source=FORMULAS)
def fft_r2c_backward(
    grad: Tensor, dim: Sequence[int], normalization: int, onesided: bool, last_dim_size: int
) -> Tensor:
    """Gradient of a real input; the missing half of a one-sided spectrum counts as zero."""
    axis = dim[-1]
    if onesided:
        shape = list(grad.shape)
        shape[axis] = last_dim_size
        full = grad.new_zeros(shape)
        full.narrow(axis, 0, grad.shape[axis]).copy_(grad)
        grad = full
    return torch.real(torch._fft_c2c(grad, list(dim), normalization, False)).contiguous()


@reference("fft_c2r_backward", source=FORMULAS)
def fft_c2r_backward(grad: Tensor, dim: Sequence[int], normalization: int) -> Tensor:
    """Gradient of a one-sided spectrum: what stands for two frequencies counts twice."""
    axis = dim[-1]
    found = torch._fft_r2c(grad, list(dim), normalization, True)
    twice = grad.shape[axis] - found.shape[axis]
    if twice > 0:
        found.narrow(axis, 1, twice).mul_(2)
    return found


@reference("stft_backward", source=FORMULAS)
def stft_backward(given: ReferenceArguments) -> Tensor:
    wanted = (
        given.grad_output
        if given.grad_output.is_complex()
        else torch.view_as_complex(given.grad_output.contiguous())
    )
    with autograd_enabled():
        leaf: Tensor = given.x.detach().clone().requires_grad_()
        found = torch.stft(
            leaf,
            given.n_fft,
            given.hop_length,
            given.win_length,
            given.window,
            center=False,
            normalized=given.normalized,
            onesided=given.onesided,
            return_complex=True,
        )
        grad = torch.autograd.grad(found, leaf, wanted.clone())
    return grad[0].detach()
