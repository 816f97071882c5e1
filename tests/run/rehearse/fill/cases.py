"""Inputs for every fill: edges, empties, halves, strides. Shapes are small on purpose."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

INF, NAN = math.inf, math.nan
Case = tuple[tuple[Any, ...], dict[str, Any]]
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 1e-30, INF, -INF, NAN])
REAL = torch.cat([torch.linspace(-6.3, 6.4, 41), EDGES])
WIDE = torch.cat([torch.linspace(-31.4, 33.1, 60), torch.tensor([1e-6, 1e-3, 80.0]), EDGES])
POSITIVE = torch.cat([torch.logspace(-4, 1.8, 50), torch.tensor([INF, NAN])])
# torch's CPU kernels give nan at infinity for these; the limit is ours (docs/how-to/fill.md)
FINITE = WIDE[torch.isfinite(WIDE)]
EMPTY = torch.empty(0, 3)


def call(*args: Any, **kwargs: Any) -> Case:
    return args, kwargs


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def strided(*shape: int) -> Tensor:
    """Not contiguous: every second column of a transposed tensor."""
    return normal(*shape[:-2], shape[-1] * 2, shape[-2], seed=3).mT[..., ::2]


def whole(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def spd(*shape: int) -> Tensor:
    a = normal(*shape, seed=5)
    return a @ a.mT + shape[-1] * torch.eye(shape[-1])


def unary(x: Tensor, *, halves: bool = True) -> list[Case]:
    found = [call(x), call(EMPTY), call(strided(3, 4).abs() + 0.5), call(torch.tensor(0.75))]
    for dtype in (torch.float16, torch.bfloat16) if halves else ():
        found.append(call(x[torch.isfinite(x) & (x.abs() > 0.01) & (x.abs() < 5)].to(dtype)))
    return found


def pairs(a: Tensor, b: Tensor) -> list[Case]:
    return [
        call(a[:, None], b[None, :]),
        call(strided(3, 4), normal(4)),
        call(EMPTY, EMPTY),
        call(normal(5).to(torch.bfloat16), normal(5, seed=1).to(torch.bfloat16)),
        call(normal(4), torch.tensor(0.5)),
    ]


def orders(*, low: float = -1.5, high: float = 1.5) -> list[Case]:
    x, n = torch.linspace(low, high, 11), torch.tensor([-1.0, 0, 1, 2, 3, 5, 8])
    return [call(x[:, None], n[None, :]), call(EMPTY, EMPTY), call(x, torch.tensor(3.0))]


X, T = normal(4, 6), normal(4, 6, seed=1)
LABELS = whole(6, 4)
LISTED = torch.tensor([[2, 0, -1, 1, 1, 1], [5, -1, 0, 0, 0, 0], [-1] * 6, [0, 1, 2, 3, 4, 5]])
LISTED_MASK = torch.tensor([[1.0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1], [0] * 6, [1.0] * 6])
BAGS = torch.tensor([0, 0, 1, 2, 2, 2])
INDICES = torch.tensor([1, 3, 3, 0, 1, 4])
NONE = torch.empty(0, dtype=torch.int64)
LENGTHS = torch.tensor([2, 0, 3])
LU, PIVOTS, _ = torch.linalg.lu_factor_ex(normal(2, 5, 5, seed=7))
QUANT = (normal(3, 8) * 4, 0.1, 3, -20, 21)
POINTS = torch.tensor([0.0, -7.2, 4.6])
SCALES = torch.tensor([0.1, 0.25, 0.5])


def bags(mode: int, weights: Tensor | None = None, freq: bool = False) -> Case:
    highest = whole(6, 3, 4, seed=2)
    sizes = torch.tensor([2, 1, 3])
    return call(normal(3, 4), INDICES, BAGS, sizes, highest, 6, freq, mode, weights, -1)


def segment_backward(reduce: str) -> list[Case]:
    data = normal(5, 3, seed=4)
    data[0, 0] = 0.0
    data[3, 1] = data[4, 1]
    plain = {"lengths": LENGTHS, "axis": 0}
    output = torch.segment_reduce(data, reduce, lengths=LENGTHS, axis=0)
    return [call(normal(3, 3), output, data, reduce, **plain)]


def segments() -> list[Case]:
    data = normal(2, 5, 3, seed=4)
    both = torch.tensor([[2, 0, 3], [1, 4, 0]])
    found = []
    for reduce in ("sum", "mean", "max", "min", "prod"):
        found.append(call(data[0], reduce, lengths=LENGTHS))
        found.append(call(data, reduce, lengths=both, axis=1, initial=1.0))
        found.append(call(data[0], reduce, offsets=torch.tensor([0, 2, 2, 5])))
    return found


def adamw(amsgrad: bool) -> Case:
    lists = [[normal(3, seed=s), normal(2, 2, seed=s + 1)] for s in range(2)]
    squares = [[normal(3).abs(), normal(2, 2).abs()] for _ in range(3)]
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    return call(
        *lists, *squares[:2], squares[2] if amsgrad else [], steps,
        lr=torch.tensor(0.01), beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8,
        amsgrad=amsgrad, maximize=False,
    )  # fmt: skip


def adagrad(rate: float | Tensor) -> Case:
    squares = [normal(3).abs(), normal(2, 2).abs()]
    lists = [[normal(3, seed=s), normal(2, 2, seed=s + 1)] for s in range(2)]
    rest = {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": True}
    return call(*lists, squares, [torch.tensor(2.0)] * 2, lr=rate, **rest)


SQUARE = normal(2, 5, 5, seed=9)
NORM = normal(3, 4, seed=8)
ROWS = whole(99, 4, 3).float()  # exact distances, so that infinity's norm finds its element
SYMMETRIC = SQUARE + SQUARE.mT

CASES: dict[str, list[Case]] = {
    "lgamma": unary(WIDE),
    "digamma": unary(WIDE),
    "polygamma": [call(n, x) for n in (0, 1, 2, 4) for x in (REAL[:41], normal(2, 3), EMPTY)],
    "special_zeta": [
        *pairs(torch.linspace(1.1, 6, 8), torch.linspace(0.2, 9, 9)),
        call(torch.tensor([1.0, 0.5, 2, 3, 3, NAN]), torch.tensor([1.0, 1, -2, -2.5, INF, 1])),
    ],
    "special_i0e": unary(WIDE),
    "i0": unary(FINITE),
    "special_i1e": unary(WIDE),
    "special_i1": unary(FINITE),
    **{f"special_bessel_{n}": unary(FINITE, halves=False) for n in ("j0", "j1")},
    **{f"special_bessel_{n}": unary(POSITIVE[:50], halves=False) for n in ("y0", "y1")},
    **{f"special_modified_bessel_i{n}": unary(FINITE, halves=False) for n in (0, 1)},
    **{f"special_modified_bessel_k{n}": unary(POSITIVE, halves=False) for n in (0, 1)},
    **{f"special_scaled_modified_bessel_k{n}": unary(POSITIVE, halves=False) for n in (0, 1)},
    "special_spherical_bessel_j0": unary(WIDE, halves=False),
    "fmax": [*pairs(REAL[::5], EDGES), call(whole(9, 4), whole(9, 4, seed=1))],
    "fmin": [*pairs(REAL[::5], EDGES), call(whole(9, 4), whole(9, 4, seed=1))],
    "max.unary_out": [call(X), call(strided(3, 4))],
    "min.unary_out": [call(X), call(strided(3, 4))],
    "copysign.Tensor": [*pairs(REAL[::5], EDGES), call(whole(9, 4), normal(4))],
    "hypot": [*pairs(REAL[::5], EDGES), call(torch.tensor([1e30, 1e-30]), torch.tensor([1e30, 0]))],
    "heaviside": [*pairs(REAL[::5], EDGES), call(whole(3, 4), whole(3, 4, seed=1))],
    "lcm": [call(whole(30, 20) - 9, whole(30, 20, seed=1) - 9)],
    "frexp.Tensor_out": [
        call(torch.cat([REAL, torch.tensor([1e-40, 3e38, 0.49999997])])),
        call(strided(3, 4)),
        call(normal(8).to(torch.float16)),
        call(normal(8).to(torch.bfloat16)),
    ],
    "nextafter": [call(REAL[:, None], EDGES[None, :]), call(strided(3, 4), normal(4))],
    "special_erfcx": unary(torch.cat([torch.linspace(-8, 60, 60), EDGES])),
    "special_log_ndtr": unary(torch.cat([torch.linspace(-60, 9, 60), EDGES])),
    "special_ndtri": unary(torch.cat([torch.logspace(-30, -0.01, 40), EDGES, torch.rand(9)])),
    "special_entr": unary(REAL),
    "special_xlog1py": pairs(REAL[::5], torch.cat([torch.linspace(-0.9, 9, 9), EDGES[:6]])),
    **{
        f"special_{shifted}chebyshev_polynomial_{name}": orders(low=low, high=1.2)
        for shifted, low in (("", -1.2), ("shifted_", 0.05))
        for name in "tuvw"
    },
    **{
        f"special_{name}": orders()
        for name in ("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l")
    },
    "special_legendre_polynomial_p": orders(low=-0.95, high=0.95),
    "huber_loss": [
        *(call(X * 3, T, reduction, 0.7) for reduction in (0, 1, 2)),
        call(X.half(), T.half()),
    ],
    "huber_loss_backward.out": [
        call(torch.tensor(1.0), X * 3, T, 1, 0.7),
        call(X, X * 3, T, 0, 0.7),
    ],
    "multi_margin_loss": [
        *(
            call(X, LABELS, p, 0.8, w, r)
            for p in (1, 2)
            for r in (0, 1, 2)
            for w in (None, torch.rand(6))
        ),
        call(X[0], LABELS[0]),
    ],
    "multi_margin_loss_backward": [
        *(
            call(torch.tensor(2.0), X, LABELS, p, 0.8, w, 1)
            for p in (1, 2)
            for w in (None, torch.rand(6))
        ),
        call(normal(4), X, LABELS, 1, 0.8, None, 0),
    ],
    "multilabel_margin_loss_backward": [
        call(torch.tensor(2.0), X, LISTED, 1, LISTED_MASK),
        call(normal(4), X, LISTED, 0, LISTED_MASK),
    ],
    "_pdist_backward": [
        call(normal(6), ROWS, p, torch.pdist(ROWS, p)) for p in (0.0, 1.0, 2.0, 3.5, INF)
    ],
    "_masked_softmax_backward": [call(normal(3, 4), normal(3, 4).softmax(-1), normal(3, 4) > 0)],
    "_fused_rms_norm_backward": [
        call(
            normal(3, 4),
            NORM,
            [4],
            torch.rsqrt((NORM**2).mean(-1, keepdim=True)),
            weight,
            [True, weight is not None],
        )
        for weight in (None, normal(4))
    ],
    "scatter.reduce": [
        call(X, 1, whole(6, 4, 3), normal(4, 3), reduce=r) for r in ("add", "multiply")
    ],
    "scatter.value_reduce": [
        call(X, 0, whole(4, 3, 6), 1.5, reduce=r) for r in ("add", "multiply")
    ],
    "scatter_add.out": [call(X, 1, whole(6, 4, 3), normal(4, 3))],
    "index_reduce_": [
        call(X, d, whole(4, 3), normal(*([3, 6] if d == 0 else [4, 3])), r, include_self=s)
        for r in ("prod", "mean", "amax", "amin")
        for s in (True, False)
        for d in (0, 1)
    ],
    "segment_reduce": segments(),
    "_segment_reduce_backward": [
        case for r in ("sum", "mean", "max", "min", "prod") for case in segment_backward(r)
    ],
    "_logcumsumexp": [
        call(X * 30, 1),
        call(strided(3, 7), 0),
        call(EMPTY, 1),
        call(torch.tensor(2.0), 0),
        call(torch.tensor([-INF, 1.0, -INF, 80.0, NAN]), 0),
        call(X.half(), 1),
    ],
    "_embedding_bag_dense_backward": [
        bags(0),
        bags(1),
        bags(2),
        bags(0, torch.rand(6)),
        bags(0, freq=True),
    ],
    "_embedding_bag_backward": [
        call(
            normal(3, 4),
            INDICES,
            torch.tensor([0, 2, 3]),
            BAGS,
            torch.tensor([2, 1, 3]),
            NONE,
            6,
            False,
            mode,
            sparse,
            weights,
            padding,
        )
        for mode, sparse, weights, padding in (
            (0, False, None, -1),
            (1, False, None, -1),
            (0, True, None, -1),
            (1, True, None, -1),
            (0, True, torch.rand(6), 2),
            (1, True, None, 2),
        )
    ],
    "mode": [call(whole(4, 5, 9).float(), d, k) for d in (0, 1) for k in (True, False)],
    "nonzero_static": [call(whole(2, 3, 4), size=n, fill_value=-1) for n in (0, 3, 20)]
    + [call(normal(2, 2, 2) > 0, size=5, fill_value=7)],
    "linalg_cholesky_ex": [
        call(spd(2, 5, 5)),
        call(spd(2, 5, 5), upper=True),
        call(spd(40, 40)),
        call(torch.empty(0, 0)),
    ],
    "cholesky": [call(spd(2, 4, 4), upper) for upper in (False, True)],
    "_cholesky_solve_helper": [
        call(normal(4, 2), torch.linalg.cholesky(spd(4, 4), upper=u), u) for u in (False, True)
    ],
    "cholesky_inverse": [call(torch.linalg.cholesky(spd(4, 4), upper=u), u) for u in (False, True)],
    "linalg_lu_factor_ex": [
        call(SQUARE),
        call(normal(3, 5)),
        call(normal(5, 3)),
        call(spd(4, 4), pivot=True),
    ],
    "lu_unpack": [call(LU, PIVOTS), call(*torch.linalg.lu_factor(normal(3, 5)))],
    "linalg_lu": [call(SQUARE), call(normal(5, 3)), call(normal(3, 5))],
    "_linalg_eigh": [call(SYMMETRIC, u, True) for u in "LU"]
    + [call(torch.diag(torch.tensor([3.0, 1, 2])))],
    "linalg_lu_solve": [
        call(LU, PIVOTS, normal(2, *((5, 3) if left else (3, 5))), left=left, adjoint=adjoint)
        for left in (True, False)
        for adjoint in (True, False)
    ],
    "_linalg_solve_ex": [
        call(spd(2, 5, 5), normal(2, 5, 3)),
        call(spd(5, 5), normal(5)),
        call(spd(5, 5), normal(3, 5), left=False),
        call(SQUARE, normal(2, 5, 3)),
        call(SQUARE.mT, normal(2, 5)),
        call(SQUARE, normal(2, 3, 5), left=False),
    ],
    "linalg_inv_ex": [call(spd(2, 5, 5)), call(torch.empty(0, 0))],
    "_linalg_det": [call(SQUARE), call(torch.empty(0, 0)), call(torch.zeros(2, 2))],
    "_linalg_slogdet": [call(SQUARE), call(torch.zeros(2, 2))],
    "linalg_matrix_exp": [call(SQUARE), call(torch.zeros(3, 3)), call(normal(6, 6) * 3)],
    "linalg_lstsq.out": [call(normal(6, 3), normal(6, 2)), call(normal(3, 6), normal(3, 2))],
    "fake_quantize_per_tensor_affine_cachemask": [call(*QUANT)],
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": [
        call(QUANT[0], torch.tensor([0.1]), torch.tensor([3]), torch.tensor([on]), -20, 21)
        for on in (0, 1)
    ],
    "fake_quantize_per_channel_affine_cachemask": [
        call(QUANT[0], SCALES, POINTS.round().to(torch.int32), 0, -20, 21),
    ],
    "_fake_quantize_learnable_per_tensor_affine": [
        call(QUANT[0], torch.tensor([0.3]), torch.tensor([2.6]), -20, 21),
    ],
    "_fake_quantize_learnable_per_channel_affine": [
        call(QUANT[0], SCALES, POINTS, 0, -20, 21),
    ],
    "_fake_quantize_learnable_per_tensor_affine_backward": [
        call(normal(3, 8), QUANT[0], torch.tensor([0.3]), torch.tensor([2.6]), -20, 21, 0.5),
    ],
    "_fake_quantize_learnable_per_channel_affine_backward": [
        call(normal(3, 8), QUANT[0], SCALES, POINTS, 0, -20, 21, 0.5),
    ],
    "_int_mm": [
        call(
            (whole(255, 17, 1040) - 127).to(torch.int8), (whole(255, 1040, 8) - 127).to(torch.int8)
        )
    ],
    "_weight_int8pack_mm": [
        call(
            normal(4, 32).bfloat16(),
            (whole(255, 8, 32) - 127).to(torch.int8),
            torch.rand(8).bfloat16(),
        )
    ],
    "_fused_adamw_.tensor_lr": [adamw(False), adamw(True)],
    "_fused_adagrad_": [adagrad(0.1), adagrad(torch.tensor(0.1))],
    "_weight_norm_interface": [call(normal(4, 3, 2), normal(4, 1, 1), 0)],
    "_weight_norm_interface_backward": [
        call(
            normal(4, 3),
            NORM.reshape(4, 3),
            normal(4, 1),
            NORM.reshape(4, 3).norm(dim=1, keepdim=True),
            0,
        )
    ],
}
