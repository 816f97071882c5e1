"""Matrix factors: Cholesky by blocks, LU with pivots, eigenvalues of symmetric matrices.

Every loop runs over columns (or blocks of them), batches run together, and no step asks the
device for a number: `info` is worked out on the device as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.fill.declare import fill

BLOCK = 32
LinAlgError = getattr(torch.linalg, "LinAlgError")  # noqa: B009  torch does not export it


def adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose."""
    return x.mT.conj() if x.is_complex() else x.mT


def factor_block(a: Tensor, first: int, info: Tensor) -> tuple[Tensor, Tensor]:
    """The lower Cholesky factor of a small block, column by column; `first` is its place."""
    size = a.shape[-1]
    rows = torch.arange(size, device=a.device)
    columns = []
    for j in range(size):
        pivot = a[..., j, j].real if a.is_complex() else a[..., j, j]
        bad = ~(pivot > 0)
        info = torch.where((info == 0) & bad, first + j + 1, info)
        root = torch.sqrt(torch.where(bad, 1, pivot))
        column = torch.where(rows >= j, a[..., :, j] / root[..., None], 0)
        columns.append(column)
        a = a - column[..., :, None] * (column.conj() if a.is_complex() else column)[..., None, :]
    return torch.stack(columns, -1), info


def cholesky_lower(a: Tensor) -> tuple[Tensor, Tensor]:
    """Lower factors of (…, n, n) and, where one is not positive definite, the failing minor."""
    n = a.shape[-1]
    info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
    left = []
    rest = a.tril() + adjoint(a.tril(-1))
    for first in range(0, n, BLOCK):
        size = min(BLOCK, n - first)
        factor, info = factor_block(rest[..., :size, :size], first, info)
        above = torch.zeros(*a.shape[:-2], first, size, dtype=a.dtype, device=a.device)
        if first + size == n:
            left.append(torch.cat([above, factor], -2))
            break
        panel = torch.linalg.solve_triangular(
            adjoint(factor), rest[..., size:, :size], upper=True, left=False
        )
        left.append(torch.cat([above, factor, panel], -2))
        rest = rest[..., size:, size:] - panel @ adjoint(panel)
    return (torch.cat(left, -1) if left else torch.zeros_like(a)), info


@fill("linalg_cholesky_ex linalg_cholesky_ex.L", rtol=2e-5, atol=2e-6)
def cholesky_ex(
    a: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """The Cholesky factor and `info`; with `upper` the upper triangle is read and written."""
    factor, info = cholesky_lower(adjoint(a) if upper else a)
    if check_errors and bool((info != 0).any()):
        raise LinAlgError(
            "linalg.cholesky: The factorization could not be completed because the input is "
            f"not positive-definite (the leading minor of order {int(info.max())})."
        )
    return (adjoint(factor) if upper else factor), info


@fill("cholesky cholesky.out", rtol=2e-5, atol=2e-6)
def cholesky(a: Tensor, upper: bool = False) -> Tensor:
    """The Cholesky factor; raises where there is none."""
    return cholesky_ex(a, upper=upper, check_errors=True)[0]


@fill("_cholesky_solve_helper", rtol=5e-5, atol=1e-5)
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool) -> Tensor:
    """X with A X = B out of A's Cholesky factor."""
    lower = adjoint(factor) if upper else factor
    half = torch.linalg.solve_triangular(lower, b, upper=False)
    found: Tensor = torch.linalg.solve_triangular(adjoint(lower), half, upper=True)
    return found


@fill("cholesky_inverse cholesky_inverse.out", rtol=1e-4, atol=1e-5)
def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    """The inverse of A out of its Cholesky factor."""
    one = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    triangle = factor.triu() if upper else factor.tril()
    return cholesky_solve(one.expand(factor.shape), triangle, upper)


def exchange(a: Tensor, order: Tensor, j: int, pivot: Tensor) -> tuple[Tensor, Tensor]:
    """Rows j and `pivot` of every matrix in the batch exchanged, and the same in `order`."""
    rows = torch.arange(a.shape[-2], device=a.device)
    source = torch.where(rows == j, pivot[..., None], rows)
    source = torch.where(rows == pivot[..., None], j, source)
    moved = a.gather(-2, source[..., None].expand(a.shape))
    return moved, order.gather(-1, source)


def lu_rows(a: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Packed LU, pivots (from 1), the order of the rows, `info`; one column after the other."""
    m, n = a.shape[-2:]
    batch = a.shape[:-2]
    rows = torch.arange(m, device=a.device)
    order = rows.expand(*batch, m).contiguous()
    info = torch.zeros(batch, dtype=torch.int32, device=a.device)
    pivots = []
    for j in range(min(m, n)):
        chosen = torch.full(batch, j, dtype=torch.int64, device=a.device)
        if pivot:
            chosen = torch.argmax(torch.abs(a[..., j:, j]), -1) + j
            a, order = exchange(a, order, j, chosen)
        pivots.append(chosen.to(torch.int32) + 1)
        head = a[..., j, j]
        zero = head == 0
        info = torch.where((info == 0) & zero, j + 1, info).to(torch.int32)
        scaled = a[..., :, j] / torch.where(zero, 1, head)[..., None]
        column = torch.where(rows > j, scaled, 0)
        columns = torch.arange(n, device=a.device)
        row = torch.where(columns > j, a[..., j, :], 0)
        place = (rows[:, None] > j) & (columns[None, :] == j)
        a = torch.where(place, scaled[..., :, None], a - column[..., :, None] * row[..., None, :])
    if not pivots:
        return a.clone(), torch.zeros(*batch, 0, dtype=torch.int32, device=a.device), order, info
    return a, torch.stack(pivots, -1), order, info


@fill("linalg_lu_factor_ex linalg_lu_factor_ex.out", rtol=2e-5, atol=5e-6)
def lu_factor_ex(
    a: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Packed LU factors, pivots and `info`."""
    factors, pivots, _, info = lu_rows(a, pivot)
    if check_errors and bool((info != 0).any()):
        raise LinAlgError(f"linalg.lu_factor: U[{int(info.max())},{int(info.max())}] is zero")
    return factors, pivots, info


def order_of(pivots: Tensor, rows: int) -> Tensor:
    """The order of the rows that a list of exchanges leads to."""
    batch = pivots.shape[:-1]
    place = torch.arange(rows, device=pivots.device)
    order = place.expand(*batch, rows).contiguous()
    for j in range(pivots.shape[-1]):
        other = pivots[..., j : j + 1].to(torch.int64) - 1
        source = torch.where(place == j, other, place)
        source = torch.where(place == other, j, source)
        order = order.gather(-1, source)
    return order


def permutation(order: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix P with A = P L U."""
    rows = torch.arange(order.shape[-1], device=order.device)
    return (order[..., None, :] == rows[:, None]).to(dtype)


def triangles(factors: Tensor) -> tuple[Tensor, Tensor]:
    """L with its ones, and U."""
    m, n = factors.shape[-2:]
    k = min(m, n)
    one = torch.eye(m, k, dtype=factors.dtype, device=factors.device)
    return factors[..., :, :k].tril(-1) + one, factors[..., :k, :].triu()


@fill("lu_unpack lu_unpack.out", rtol=0, atol=0)
def lu_unpack(
    factors: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U out of packed factors; what is not asked for is empty."""
    empty = torch.empty(0, dtype=factors.dtype, device=factors.device)
    lower, upper = triangles(factors) if unpack_data else (empty, empty)
    order = order_of(pivots, factors.shape[-2]) if unpack_pivots else None
    return (empty if order is None else permutation(order, factors.dtype)), lower, upper


@fill("linalg_lu linalg_lu.out", rtol=2e-5, atol=5e-6)
def lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U with A = P L U."""
    factors, _, order, _ = lu_rows(a, pivot)
    empty = torch.empty(0, dtype=a.dtype, device=a.device)
    return (permutation(order, a.dtype) if pivot else empty), *triangles(factors)


@fill(
    "_linalg_eigh _linalg_eigh.eigenvalues",
    rtol=2e-5,
    atol=1e-5,
    note="through the singular values of A + 2 |A| I: errors are relative to the largest one",
)
def eigh(a: Tensor, uplo: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues from small to large, and eigenvectors; one triangle of A is read."""
    lower = a.tril() if uplo.upper() == "L" else adjoint(a.triu())
    full = lower + adjoint(lower.tril(-1))
    if a.shape[-1] == 0:
        return torch.abs(full).sum(-1), full
    norm = torch.abs(full).sum(-1).amax(-1)  # bounds every eigenvalue
    shift = 2 * torch.where(norm == 0, 1, norm)
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    u, s, _ = torch.linalg.svd(full + shift[..., None, None] * one)
    values = (s - shift[..., None]).flip(-1)
    return values, u.flip(-1) if compute_v else torch.empty(0, dtype=a.dtype, device=a.device)
