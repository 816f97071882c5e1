"""Kernels that communicate by themselves, on every rank of a group, against one process's formula.

Run by torchrun. Rank 0 prints a JSON object: name → largest difference over all ranks.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
import torch_npu

TOKENS, WIDTH, EXPERTS, CHOSEN = 5, 8, 6, 2


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chosen(rank: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(40 + rank)
    rows = [torch.randperm(EXPERTS, generator=draws)[:CHOSEN] for _ in range(TOKENS)]
    return torch.stack(rows).to(torch.int32)


def products(name: str, rank: int, ranks: int) -> dict[str, float]:
    """Matrix products with a collective inside."""
    xs = [draw(r, 2 * ranks, 16) for r in range(ranks)]
    ws = [draw(10 + r, 16, 6) for r in range(ranks)]
    parts = [x.half().double() @ w.half().double() for x, w in zip(xs, ws, strict=True)]
    x, w = xs[rank].half().npu(), ws[rank].half().npu()
    found = {}
    total = sum(parts)
    out = torch_npu.npu_mm_all_reduce_base(x, w, name)
    found["npu_mm_all_reduce_base"] = far(out, total)
    out = torch_npu.npu_mm_reduce_scatter_base(x, w, name, ranks)
    rows = 2
    found["npu_mm_reduce_scatter_base"] = far(out, total[rank * rows : (rank + 1) * rows])
    out, gathered = torch_npu.npu_all_gather_base_mm(x, w, name, ranks)
    everybody = torch.cat(xs).half().double()
    found["npu_all_gather_base_mm"] = max(
        far(out, everybody @ ws[rank].half().double()), far(gathered, everybody)
    )
    return found


def quantised(name: str, rank: int, ranks: int) -> dict[str, float]:
    """Products beside all_to_all, and those of float8 operands."""
    width = 2 * ranks
    xs = [draw(60 + r, 4, 16).to(torch.float8_e4m3fn) for r in range(ranks)]
    ws = [draw(70 + r, 16, width).to(torch.float8_e4m3fn) for r in range(ranks)]
    rows = [draw(80 + r, 4).abs() + 0.5 for r in range(ranks)]
    columns = draw(90, width).abs() + 0.5
    parts = [x.double() @ w.double() for x, w in zip(xs, ws, strict=True)]
    mine = slice(rank * 2, rank * 2 + 2)
    real = [part * row.double()[:, None] * columns for part, row in zip(parts, rows, strict=True)]
    x, w = xs[rank].npu(), ws[rank].npu()
    out = torch_npu.npu_quant_matmul_all_to_all(
        x, w, name, ranks, x1_scale=rows[rank].npu(), x2_scale=columns.npu(),
        x1_quant_mode=3, x2_quant_mode=2,
    )  # fmt: skip
    found = {"npu_quant_matmul_all_to_all": far(out, torch.cat([one[:, mine] for one in real]))}
    half = [x.to(torch.float16) for x in xs]
    out = torch_npu.npu_matmul_all_to_all(half[rank].npu(), w.to(torch.float16), name, ranks)
    found["npu_matmul_all_to_all"] = far(out, torch.cat([one[:, mine] for one in parts]))
    each = slice(rank * (4 // ranks), (rank + 1) * (4 // ranks))
    wide = torch.cat([one[each] for one in half], -1)
    tall = draw(95, 16 * ranks, 6).half()
    out, came = torch_npu.npu_all_to_all_matmul(half[rank].npu(), tall.npu(), name, ranks)
    found["npu_all_to_all_matmul"] = max(
        far(out, wide.double() @ tall.double()), far(came, wide.double())
    )
    one = {"x1_scale": torch.tensor([0.5]).npu(), "x2_scale": torch.tensor([3.0]).npu()}
    out, came, _ = torch_npu.npu_all_gather_quant_mm(x, w, name, ranks, **one, y_dtype=torch.float32)
    everybody = torch.cat([x.double() for x in xs])
    found["npu_all_gather_quant_mm"] = max(
        far(out, everybody @ ws[rank].double() * 1.5), far(came.float(), everybody)
    )
    out, _ = torch_npu.npu_quant_mm_reduce_scatter(x, w, name, ranks, **one, y_dtype=torch.float32)
    found["npu_quant_mm_reduce_scatter"] = far(out, sum(parts)[each] * 1.5)
    return found


def exchanges(name: str, rank: int, ranks: int) -> dict[str, float]:
    """Grouped products behind and before an exchange: one is the other's way back."""
    each = 2  # experts of a rank
    counts = [
        [(sender + receiver + e) % 3 + 1 for receiver in range(ranks) for e in range(each)]
        for sender in range(ranks)
    ]
    rows = [draw(20 + r, sum(counts[r]), WIDTH).half() for r in range(ranks)]
    weight = torch.eye(WIDTH).half() * torch.arange(1, each + 1).half()[:, None, None]
    send = counts[rank]
    receive = [counts[s][rank * each + e] for s in range(ranks) for e in range(each)]
    out, _, _ = torch_npu.npu_alltoallv_gmm(
        rows[rank].npu(), weight.npu(), name, ranks, send, receive
    )
    expected = []
    for e in range(each):
        for sender in range(ranks):
            pieces = rows[sender].split(counts[sender])
            expected.append(pieces[rank * each + e].double() * (e + 1))
    found = {"npu_alltoallv_gmm": far(out, torch.cat(expected))}
    back, _ = torch_npu.npu_gmm_alltoallv(out, weight.npu(), name, ranks, receive, send)
    factors = [float(e + 1) ** 2 for _ in range(ranks) for e in range(each)]
    pieces = zip(rows[rank].split(send), factors, strict=True)
    wanted = torch.cat([piece.double() * factor for piece, factor in pieces])
    found["npu_gmm_alltoallv"] = far(back, wanted)
    return found


def experts(name: str, rank: int, ranks: int, version: str) -> dict[str, float]:
    """Tokens to experts that multiply by their number + 1, and back."""
    each = EXPERTS // ranks
    x, ids = draw(30 + rank, TOKENS, WIDTH).half(), chosen(rank)
    weights = draw(50 + rank, TOKENS, CHOSEN).abs()
    place = (name, ranks, rank, EXPERTS)
    dispatch = getattr(torch_npu, f"npu_moe_distribute_dispatch{version}")
    combine = getattr(torch_npu, f"npu_moe_distribute_combine{version}")
    rows, _, note, counted, ends, _, _ = dispatch(x.npu(), ids.npu(), *place)
    factors = torch.arange(each) + rank * each + 1
    spread = torch.ones(len(rows))
    spread[: int(counted.sum())] = factors.repeat_interleave(counted.cpu()).float()
    out = rows * spread.half().npu()[:, None]
    back = combine(out, ids.npu(), note, ends, weights.npu(), *place)
    wanted = x.double() * (weights.double() * (ids + 1)).sum(1, keepdim=True)
    return {f"npu_moe_distribute_combine{version}": far(back, wanted)}


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape, (found.shape, expected.shape)
    size = expected.abs().max().clamp(min=1.0)
    return float((found.cpu().double() - expected.double()).abs().max() / size)


def main() -> None:
    dist.init_process_group("hccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.npu.set_device(rank)
    dist.barrier()
    backend = dist.group.WORLD._get_backend(torch.device("npu"))
    name = backend.get_hccl_comm_name(rank)
    found = products(name, rank, ranks) | exchanges(name, rank, ranks)
    found |= quantised(name, rank, ranks)
    for version in ("", "_v2"):
        found |= experts(name, rank, ranks, version)
    everybody = [None] * ranks
    dist.all_gather_object(everybody, found)
    if rank == 0:
        print(json.dumps({key: max(one[key] for one in everybody) for key in found}))
    dist.destroy_process_group()


main()
