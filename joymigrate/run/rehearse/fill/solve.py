"""Solving with factors: solve, inverse, determinant, least squares; the matrix exponential."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from joymigrate.run.rehearse.fill.declare import fill
from joymigrate.run.rehearse.fill.factors import LinAlgError, adjoint, lu_rows, order_of, triangles


def through(factors: Tensor, order: Tensor, b: Tensor) -> Tensor:
    """X with A X = B, A's rows being in `order` in its factors."""
    lower, upper = triangles(factors)
    batch = torch.broadcast_shapes(factors.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    b = b.expand(*batch, *b.shape[-2:])
    rows = order[..., None].expand(*batch, *b.shape[-2:])
    half = torch.linalg.solve_triangular(lower, b.gather(-2, rows), upper=False, unitriangular=True)
    found: Tensor = torch.linalg.solve_triangular(upper, half, upper=True)
    return found


def through_adjoint(factors: Tensor, order: Tensor, b: Tensor) -> Tensor:
    """X with A^H X = B: U^H first, then L^H, then the rows back in their places."""
    lower, upper = triangles(factors)
    half = torch.linalg.solve_triangular(adjoint(upper), b, upper=False)
    done: Tensor = torch.linalg.solve_triangular(
        adjoint(lower), half, upper=True, unitriangular=True
    )
    back = torch.argsort(order.to(torch.float32), -1)  # whole numbers sort on the host's side
    return done.gather(-2, back[..., None].expand(done.shape))


@fill("linalg_lu_solve linalg_lu_solve.out", rtol=5e-5, atol=1e-5)
def lu_solve(
    factors: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """X with A X = B (or X A = B, or with A's adjoint) out of packed factors."""
    order = order_of(pivots, factors.shape[-2])
    if left:
        return (through_adjoint if adjoint else through)(factors, order, b)
    turned = b.mT.conj() if b.is_complex() else b.mT
    found = (through if adjoint else through_adjoint)(factors, order, turned)
    return found.mT.conj() if found.is_complex() else found.mT


@cache
def factors_transpose(name: str) -> bool:
    """Whether this torch's operator leaves the factors of A's transpose for a contiguous A.

    Its autograd formula counts on them then, and releases differ; so torch's own is asked.
    """
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        a = torch.tensor([[1.0, 8.0], [4.0, 2.0]], device="cpu")
        if name == "_linalg_solve_ex":
            factors = torch.ops.aten._linalg_solve_ex(a, a)[1]
        else:
            factors = torch.ops.aten._linalg_det(a)[1]
        return float(factors[0, 0]) == 8.0


def turn_matrix(a: Tensor, name: str) -> tuple[Tensor, bool]:
    """The matrix that torch would factor, and whether it is A's transpose."""
    transposed = a.is_contiguous() and not a.is_complex() and factors_transpose(name)
    return (a.mT if transposed else a), transposed


def fail(info: Tensor, name: str) -> None:
    """Raise as torch does where a factorisation met a zero."""
    if bool((info != 0).any()):
        raise LinAlgError(f"{name}: The solver failed because the input matrix is singular.")


@fill("_linalg_solve_ex _linalg_solve_ex.result", rtol=5e-5, atol=1e-5)
def solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X with A X = B, and A's factors for the gradient."""
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    matrix, transposed = turn_matrix(a, "_linalg_solve_ex")
    factors, pivots, _, info = lu_rows(matrix, pivot=True)
    if check_errors:
        fail(info, "torch.linalg.solve")
    right = b[..., None] if vector else b
    found = lu_solve(factors, pivots, right, left=left, adjoint=transposed)
    return (found.squeeze(-1) if vector else found), factors, pivots, info


@fill("linalg_inv_ex linalg_inv_ex.inverse", rtol=1e-4, atol=1e-5)
def inv_ex(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """The inverse and `info`."""
    factors, _, order, info = lu_rows(a, pivot=True)
    if check_errors:
        fail(info, "linalg.inv")
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    return through(factors, order, one.expand(a.shape)), info


def sign_of(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    """1 or -1 by the number of exchanges."""
    place = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)
    odd = torch.remainder((pivots != place).to(torch.float32).sum(-1), 2) == 1
    return torch.where(odd, -1.0, 1.0).to(dtype)


@fill("_linalg_det _linalg_det.result", rtol=2e-5, atol=1e-5)
def det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The determinant, and A's factors for the gradient."""
    factors, pivots, _, _ = lu_rows(turn_matrix(a, "_linalg_det")[0], pivot=True)
    diagonal = torch.diagonal(factors, dim1=-2, dim2=-1)
    return torch.prod(diagonal, -1) * sign_of(pivots, a.dtype), factors, pivots


@fill("_linalg_slogdet _linalg_slogdet.sign", rtol=2e-5, atol=1e-5)
def slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sign and logarithm of the determinant, and A's factors for the gradient."""
    factors, pivots, _, _ = lu_rows(turn_matrix(a, "_linalg_det")[0], pivot=True)
    diagonal = torch.diagonal(factors, dim1=-2, dim2=-1)
    sign = torch.prod(torch.sgn(diagonal), -1) * sign_of(pivots, a.dtype)
    return sign, torch.log(torch.abs(diagonal)).sum(-1), factors, pivots


@fill(
    "linalg_matrix_exp",
    rtol=3e-5,
    atol=1e-5,
    note="waits for the device once, to see the largest norm",
)
def matrix_exp(a: Tensor) -> Tensor:
    """exp(A): Taylor's series of A / 2^k, whose norm is below 1/2, squared k times."""
    if a.numel() == 0:
        return a.clone()
    norm = float(torch.abs(a).sum(-2).amax())
    squarings = max(0, math.ceil(math.log2(norm)) + 1) if 0 < norm < math.inf else 0
    degree = 16 if a.dtype in (torch.float64, torch.complex128) else 9
    scaled = a / 2**squarings
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    total = one
    for order in range(degree, 0, -1):
        total = one + scaled @ total / order
    for _ in range(squarings):
        total = total @ total
    return total


@fill(
    "linalg_lstsq.out",
    rtol=1e-4,
    atol=1e-5,
    note="full rank only, by QR; rank and singular values are not worked out",
)
def lstsq(
    a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The least squares solution; of wide matrices the one with the smallest norm."""
    vector = b.dim() == a.dim() - 1
    right = b[..., None] if vector else b
    m, n = a.shape[-2:]
    none = torch.empty(0, dtype=a.dtype, device=a.device)
    if m < n:
        q, r = torch.linalg.qr(adjoint(a))
        found = q @ torch.linalg.solve_triangular(adjoint(r), right, upper=False)
    else:
        q, r = torch.linalg.qr(a)
        found = torch.linalg.solve_triangular(r, adjoint(q) @ right, upper=True)
    residuals = none
    if m > n:
        gap = torch.abs(a @ found - right)
        residuals = (gap * gap).sum(-2)
    rank = torch.empty(0, dtype=torch.int64, device=a.device)
    return (found.squeeze(-1) if vector else found), residuals, rank, none
